use std::future::Future;

use diesel::QueryResult;
use diesel::deserialize::FromSqlRow;
use diesel::mysql::Mysql;
use diesel::query_builder::{Query, QueryFragment, QueryId};
use diesel::query_dsl::CompatibleType;
use diesel::result::Error;
use diesel_async::AsyncConnectionCore;
use futures_util::{StreamExt, TryStreamExt};

use super::{FromRow, Statement, row};

/// The connection that the store's statements run on: any of diesel-async's MySQL connections,
/// pooled or not, and the one that a [`Session`](super::Session) holds.
pub trait Connection: Send {
    /// Runs a statement. Returns the number of rows it matched.
    #[doc(hidden)]
    fn execute<Q>(&mut self, query: Q) -> impl Future<Output = QueryResult<usize>> + Send
    where
        Q: QueryFragment<Mysql> + QueryId + Send;

    /// Runs a query of Diesel's. Returns its rows.
    #[doc(hidden)]
    fn select<Q, T, S>(&mut self, query: Q) -> impl Future<Output = QueryResult<Vec<T>>> + Send
    where
        Q: Selects<T, S>,
        T: FromSqlRow<S, Mysql> + Send;

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

/// A query of Diesel's whose rows, of the SQL type `S`, are read as `T`.
pub trait Selects<T, S>:
    Query<SqlType: CompatibleType<T, Mysql, SqlType = S>> + QueryFragment<Mysql> + QueryId + Send
{
}

impl<Q, T, S> Selects<T, S> for Q
where
    Q: Query + QueryFragment<Mysql> + QueryId + Send,
    Q::SqlType: CompatibleType<T, Mysql, SqlType = S>,
{
}

impl<C: AsyncConnectionCore<Backend = Mysql>> Connection for C {
    async fn execute<Q>(&mut self, query: Q) -> QueryResult<usize>
    where
        Q: QueryFragment<Mysql> + QueryId + Send,
    {
        self.execute_returning_count(query).await
    }

    async fn select<Q, T, S>(&mut self, query: Q) -> QueryResult<Vec<T>>
    where
        Q: Selects<T, S>,
        T: FromSqlRow<S, Mysql> + Send,
    {
        let rows = AsyncConnectionCore::load(self, query).await?;
        rows.map(|row| T::build_from_row(&row?).map_err(Error::DeserializationError))
            .try_collect()
            .await
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
