//! A connection to no server.

use std::collections::BTreeSet;

use diesel::QueryResult;
use diesel::deserialize::FromSqlRow;
use diesel::mysql::{Mysql, MysqlQueryBuilder};
use diesel::query_builder::{QueryBuilder, QueryFragment, QueryId};
use rowmq_core::connection::{Connection, FromRow, Selects, Statement};

/// Records the text of each statement. A query has no rows.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The texts of all statements so far.
    pub(crate) texts: BTreeSet<String>,
    /// Those of them that a connection does not keep prepared.
    pub(crate) not_kept: BTreeSet<String>,
    /// Those that change rows and were not run again at once.
    pub(crate) once: BTreeSet<String>,
    /// The one that was run last.
    last: String,
    matched: usize,
}

impl Recorder {
    /// Answers every statement that changes rows with this number of them.
    pub(crate) fn answering(matched: usize) -> Self {
        let [texts, not_kept, once] = [const { BTreeSet::new() }; 3];
        Self { texts, not_kept, once, last: String::new(), matched }
    }

    fn record(&mut self, query: &impl QueryFragment<Mysql>) -> QueryResult<String> {
        let mut text = MysqlQueryBuilder::new();
        query.to_sql(&mut text, &Mysql)?;
        let text = text.finish();
        if !query.is_safe_to_cache_prepared(&Mysql)? {
            self.not_kept.insert(text.clone());
        }
        self.texts.insert(text.clone());
        Ok(text)
    }
}

impl Connection for Recorder {
    async fn execute<Q>(&mut self, query: Q) -> QueryResult<usize>
    where
        Q: QueryFragment<Mysql> + QueryId + Send,
    {
        let text = self.record(&query)?;
        if self.last == text {
            self.once.remove(&text);
        } else {
            self.once.insert(text.clone());
        }
        self.last = text;
        Ok(self.matched)
    }

    async fn select<Q, T, S>(&mut self, query: Q) -> QueryResult<Vec<T>>
    where
        Q: Selects<T, S>,
        T: FromSqlRow<S, Mysql> + Send,
    {
        self.record(&query)?;
        Ok(Vec::new())
    }

    async fn load<T>(&mut self, statement: Statement<'_>) -> QueryResult<Vec<T>>
    where
        T: FromRow + Send,
    {
        self.record(&statement)?;
        Ok(Vec::new())
    }

    async fn batch(&mut self, sql: &str) -> QueryResult<()> {
        self.texts.insert(sql.to_owned());
        Ok(())
    }
}
