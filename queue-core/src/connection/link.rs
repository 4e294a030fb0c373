use std::fmt;

use diesel::mysql::Mysql;
use diesel::{QueryResult, QueryableByName};
use diesel_async::AsyncMysqlConnection;

use super::{Connection, ServerUrl, SessionKind, connect};
use crate::error::Result;
#[cfg(feature = "simulation")]
use crate::simulation::{self, StandIn};
use crate::store::Statement;

/// What a [`Session`](super::Session) holds: a connection to a server, or to the model of one in a
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
    /// Opens a connection; see [`connect()`].
    pub(super) async fn open(url: &ServerUrl, kind: SessionKind) -> Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(opening) = simulation::connect(url) {
            return super::connect::set_up(url, kind, async { Ok(Self::Model(opening.await?)) })
                .await;
        }
        Ok(Self::Server(connect(url, kind).await?))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl Connection for Link {
    async fn execute(&mut self, statement: Statement<'_>) -> QueryResult<usize> {
        match self {
            Self::Server(conn) => conn.execute(statement).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::execute(conn.as_mut(), &statement).await,
        }
    }

    async fn load<T>(&mut self, statement: Statement<'_>) -> QueryResult<Vec<T>>
    where
        T: QueryableByName<Mysql> + Send + 'static,
    {
        match self {
            Self::Server(conn) => conn.load(statement).await,
            #[cfg(feature = "simulation")]
            Self::Model(conn) => simulation::load(conn.as_mut(), &statement).await,
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
