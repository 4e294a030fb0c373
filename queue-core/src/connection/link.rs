use std::fmt;

use diesel::QueryResult;
use diesel::deserialize::FromSqlRow;
use diesel::mysql::Mysql;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncMysqlConnection;

#[cfg(feature = "simulation")]
use super::simulation::{self, StandIn};
use super::{
    Connection, FromRow, HostNo, Selects, ServerUrl, SessionKind, Statement, Wanted, connect_to,
};
use crate::model::Result;

/// The connection of a [`Session`](super::Session): to a server, or to the model of one in a
/// simulation.
#[non_exhaustive]
pub enum Link {
    /// To a server.
    Server(AsyncMysqlConnection),
    /// To the model.
    #[cfg(feature = "simulation")]
    Model(Box<dyn StandIn>),
}

impl Link {
    /// Opens a connection to a server that is accepted; see [`connect()`](super::connect()).
    pub(crate) async fn open(
        url: &ServerUrl,
        kind: SessionKind,
        wanted: Wanted,
    ) -> Result<(Self, HostNo)> {
        #[cfg(feature = "simulation")]
        if let Some(opening) = simulation::connect(url) {
            let opening = async { Ok(Self::Model(opening.await?)) };
            let link = super::connect::set_up_stand_in(url, kind, opening).await?;
            return Ok((link, HostNo::FIRST));
        }
        let (conn, host) = connect_to(url, kind, wanted).await?;
        Ok((Self::Server(conn), host))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl Connection for Link {
    async fn execute<Q>(&mut self, query: Q) -> QueryResult<usize>
    where
        Q: QueryFragment<Mysql> + QueryId + Send,
    {
        match self {
            Self::Server(conn) => conn.execute(query).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::execute(conn.as_mut(), query).await,
        }
    }

    async fn select<Q, T, S>(&mut self, query: Q) -> QueryResult<Vec<T>>
    where
        Q: Selects<T, S>,
        T: FromSqlRow<S, Mysql> + Send,
    {
        match self {
            Self::Server(conn) => conn.select(query).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::select(conn.as_mut(), query).await,
        }
    }

    async fn load<T>(&mut self, statement: Statement<'_>) -> QueryResult<Vec<T>>
    where
        T: FromRow + Send,
    {
        match self {
            Self::Server(conn) => conn.load(statement).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::load(conn.as_mut(), statement).await,
        }
    }

    async fn batch(&mut self, sql: &str) -> QueryResult<()> {
        match self {
            Self::Server(conn) => conn.batch(sql).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::batch(conn.as_mut(), sql).await,
        }
    }
}
