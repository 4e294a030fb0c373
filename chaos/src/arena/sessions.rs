//! The fleet's connections, as the server sees them.

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Text, Unsigned};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::AsyncMysqlConnection;

use super::accounts::PREFIX;
use super::{Arena, Member};

/// A connection of one of the fleet's accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The server's number for it.
    pub(crate) id: u64,
    /// The port of 127.0.0.1 that it comes from: the proxy's.
    pub(crate) port: u16,
    /// Whether it executes a statement.
    pub(crate) busy: bool,
}

/// The two sessions of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, QueryableByName)]
pub(crate) struct Pair {
    #[diesel(sql_type = Unsigned<BigInt>)]
    pub(crate) life: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    pub(crate) work: u64,
}

impl Arena {
    /// Returns every connection of the fleet.
    pub(crate) async fn sessions(&self) -> anyhow::Result<Vec<Listed>> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Unsigned<BigInt>, column_name = "Id")]
            id: u64,
            #[diesel(sql_type = Text, column_name = "User")]
            user: String,
            #[diesel(sql_type = Text, column_name = "Host")]
            host: String,
            #[diesel(sql_type = Text, column_name = "Command")]
            command: String,
        }
        let mut conn = self.connect().await?;
        let rows: Vec<Row> = diesel::sql_query("SHOW PROCESSLIST").load(&mut conn).await?;
        let listed = |row: Row| {
            let (_, port) = row.host.rsplit_once(':')?;
            let port = port.parse().ok()?;
            row.user.starts_with(PREFIX).then_some(Listed {
                id: row.id,
                port,
                busy: row.command != "Sleep",
            })
        };
        Ok(rows.into_iter().filter_map(listed).collect())
    }

    /// Returns the connections of one member.
    pub(crate) async fn sessions_of(&self, member: &Member) -> anyhow::Result<Vec<Listed>> {
        let ports = member.proxy.ports();
        let mut sessions = self.sessions().await?;
        sessions.retain(|listed| ports.contains(&listed.port));
        Ok(sessions)
    }

    /// Returns the sessions of every worker that counts as alive.
    pub(crate) async fn workers(&self) -> anyhow::Result<Vec<Pair>> {
        let mut conn = self.connect().await?;
        let alive = "SELECT life_conn_id AS life, conn_id AS work FROM queue_worker \
                     WHERE state = 'alive'";
        Ok(diesel::sql_query(alive).load(&mut conn).await?)
    }

    /// Returns the names under which the workers that count as alive hold their locks.
    pub(crate) async fn instances(&self) -> anyhow::Result<Vec<String>> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Text)]
            name: String,
        }
        let alive = "SELECT LOWER(HEX(instance)) AS name FROM queue_worker WHERE state = 'alive'";
        let rows: Vec<Row> = diesel::sql_query(alive).load(&mut self.connect().await?).await?;
        Ok(rows.into_iter().map(|row| row.name).collect())
    }

    /// Opens a connection of another login, and returns it with its number.
    pub(crate) async fn stranger(&self) -> anyhow::Result<(AsyncMysqlConnection, u64)> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Unsigned<BigInt>)]
            id: u64,
        }
        let mut conn = self.connect().await?;
        let row: Row =
            diesel::sql_query("SELECT CONNECTION_ID() AS id").get_result(&mut conn).await?;
        Ok((conn, row.id))
    }

    /// Has the server end a connection; one that is already gone is ignored.
    pub(crate) async fn kill(&self, id: u64) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
        if let Err(error) = conn.batch_execute(&format!("KILL {id}")).await {
            tracing::debug!(%error, "There was nothing to kill.");
        }
        Ok(())
    }

    /// Kills what each of the sessions executes, with a pause after each kill.
    pub(crate) async fn kill_statements(
        &self,
        ids: impl Iterator<Item = u64>,
        pause: Duration,
    ) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
        for id in ids {
            if let Err(error) = conn.batch_execute(&format!("KILL QUERY {id}")).await {
                tracing::debug!(%error, "There was nothing to kill.");
            }
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
