use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;

use super::millis;
use crate::connection::{Link, Session};
use crate::model::{ConnId, Result};
use crate::store;
use crate::store::stream::holding::{self, NameHeld, RangesHeld};
use crate::store::worker::{Incarnation, WorkerRow};

/// How many workers are read when those that have ended are included: the newest.
const LATEST: u32 = 200;

/// The workers to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// Live workers.
    Alive,
    /// Workers that have ended too: the newest 200.
    All,
}

/// The signs that a worker is alive. One of them is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// One of its sessions holds its name lock.
    Lock,
    /// One of its sessions is in the server's process list.
    List,
    /// Its last beat is no older than its lease.
    Beat,
}

impl Sign {
    /// The word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::List => "list",
            Self::Beat => "beat",
        }
    }
}

/// A worker: its identity, the claims it holds, and the signs that it is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Its registration.
    pub id: u64,
    /// The client id of its process.
    pub client_id: String,
    /// The program's version.
    pub version: String,
    /// The account of its sessions.
    pub account: String,
    /// `alive`, `dead` or `stopped`.
    pub state: String,
    /// The connection that beats.
    pub life_conn_id: u64,
    /// The connection that claims.
    pub work_conn_id: u64,
    /// Claims of queue messages that it holds.
    pub claims: u32,
    /// Ranges of streams that it holds.
    pub ranges: u64,
    /// Messages in those.
    pub range_messages: u64,
    /// The member names that it has in broadcast groups.
    pub members: Vec<NameHeld>,
    /// After this silence the server drops its sessions, in milliseconds.
    pub lease_ms: u64,
    /// How long ago it beat last, in milliseconds.
    pub beat_age_ms: u64,
    /// The signs that it is alive.
    pub alive_by: Vec<Sign>,
    /// When it registered, server time.
    #[cfg_attr(feature = "json-schema", schemars(with = "chrono::DateTime<chrono::Utc>"))]
    pub registered_at: String,
    /// Why it ended.
    pub end_reason: Option<String>,
}

/// Returns the workers.
pub async fn workers(session: &mut Session, which: Workers) -> Result<Vec<WorkerStatus>> {
    let read = async |conn: &mut Link| {
        let rows = match which {
            Workers::All => store::worker::latest(conn, LATEST).await?,
            Workers::Alive => store::worker::alive(conn).await?,
        };
        // The list is read after the rows: otherwise it would lack a session opened in between.
        let connections = store::process_list::show(conn).await?;
        let incarnation = store::worker::incarnation(conn).await?;
        let held = holding::ranges_held(conn).await?;
        let names = holding::names_held(conn).await?;
        let now = store::topic::server_time(conn).await?.and_utc();
        let age = |row: &WorkerRow| (now - row.beat_at).to_std().unwrap_or_default();
        let worker = |row: WorkerRow| {
            let age = age(&row);
            WorkerStatus::new(row, age, &connections, &incarnation).holding(&held, &names)
        };
        Ok(rows.into_iter().map(worker).collect())
    };
    session.call("list the workers", read).await
}

impl WorkerStatus {
    fn new(
        row: WorkerRow,
        beat_age: Duration,
        connections: &HashSet<ConnId>,
        incarnation: &Incarnation,
    ) -> Self {
        // Connection ids from before a server restart do not apply to this run of the server.
        let listed = row.incarnation.is_same(incarnation)
            && [row.conn, row.life_conn].iter().any(|conn| connections.contains(conn));
        let signs = [
            (Sign::Lock, row.locked),
            (Sign::List, listed),
            (Sign::Beat, row.state == "alive" && beat_age < row.lease),
        ];
        Self {
            id: row.id.0,
            client_id: row.client_id,
            version: row.version,
            account: row.account,
            state: row.state,
            life_conn_id: row.life_conn.0,
            work_conn_id: row.conn.0,
            claims: row.claims,
            ranges: 0,
            range_messages: 0,
            members: Vec::new(),
            lease_ms: millis(row.lease),
            beat_age_ms: millis(beat_age),
            alive_by: signs.iter().filter(|(_, seen)| *seen).map(|(sign, _)| *sign).collect(),
            registered_at: row.registered_at.to_rfc3339(),
            end_reason: row.end_reason,
        }
    }

    /// Adds the ranges and member names that it holds.
    fn holding(mut self, ranges: &[RangesHeld], names: &[NameHeld]) -> Self {
        if let Some(held) = ranges.iter().find(|held| held.worker.0 == self.id) {
            (self.ranges, self.range_messages) = (held.ranges, held.messages);
        }
        self.members = names.iter().filter(|held| held.worker.0 == self.id).cloned().collect();
        self
    }
}
