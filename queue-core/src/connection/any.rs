use std::future::Future;

use diesel::mysql::Mysql;
use diesel::{QueryResult, QueryableByName};
use diesel_async::{AsyncConnectionCore, RunQueryDsl};

use crate::connection::Statement;

/// What the store's statements run on: any of diesel-async's MySQL connections, pooled or not, and
/// what a [`Session`](super::Session) holds.
pub trait Connection: Send {
    /// Runs a statement; the number of rows it matched.
    #[doc(hidden)]
    fn execute(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    /// Runs a query; its rows by column name.
    #[doc(hidden)]
    fn load<T>(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
    where
        T: QueryableByName<Mysql> + Send + 'static;

    /// Runs statements without values in one round trip, kept prepared by nobody.
    #[doc(hidden)]
    fn batch(&mut self, sql: &str) -> impl Future<Output = QueryResult<()>> + Send;
}

impl<C: AsyncConnectionCore<Backend = Mysql>> Connection for C {
    fn execute(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<usize>> + Send {
        RunQueryDsl::execute(statement, self)
    }

    fn load<T>(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
    where
        T: QueryableByName<Mysql> + Send + 'static,
    {
        RunQueryDsl::load(statement, self)
    }

    fn batch(&mut self, sql: &str) -> impl Future<Output = QueryResult<()>> + Send {
        self.batch_execute(sql)
    }
}
