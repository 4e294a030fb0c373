use std::future::Future;

use diesel::QueryResult;
use diesel::mysql::Mysql;
use diesel_async::{AsyncConnectionCore, RunQueryDsl};
use futures_util::{StreamExt, TryStreamExt};

use super::{FromRow, Statement, row};

/// The connection that the store's statements run on: any of diesel-async's MySQL connections,
/// pooled or not, and the one that a [`Session`](super::Session) holds.
pub trait Connection: Send {
    /// Runs a statement. Returns the number of rows it matched.
    #[doc(hidden)]
    fn execute(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    /// Runs a query. Returns its rows, read by position.
    #[doc(hidden)]
    fn load<T>(
        &mut self,
        statement: Statement<'_>,
    ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
    where
        T: FromRow + Send;

    /// Runs statements without values in one round trip; they are not kept prepared.
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

    async fn load<T>(&mut self, statement: Statement<'_>) -> QueryResult<Vec<T>>
    where
        T: FromRow + Send,
    {
        let rows = AsyncConnectionCore::load(self, statement).await?;
        rows.map(|row| row::read(&row?)).try_collect().await
    }

    fn batch(&mut self, sql: &str) -> impl Future<Output = QueryResult<()>> + Send {
        self.batch_execute(sql)
    }
}
