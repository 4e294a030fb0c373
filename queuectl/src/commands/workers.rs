use std::collections::HashSet;
use std::time::Duration;

use queue_core::connection::{Link, Session};
use queue_core::message::ConnId;
use queue_core::store;
use queue_core::store::stream::holding::{self, NameHeld, RangesHeld};
use queue_core::store::worker::{Incarnation, WorkerRow};
use serde::Serialize;

use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// How many workers `--all` shows, the newest first.
const LATEST: u32 = 200;

/// Show the workers: who they are, what they hold, and by what they count as alive.
#[derive(Debug, clap::Args)]
pub(crate) struct Workers {
    /// Show those that have ended too: the newest 200.
    #[arg(long)]
    all: bool,
}

/// What tells that a worker is alive. One of them is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Sign {
    /// A session of it holds its name lock.
    Lock,
    /// A session of it is in the server's process list.
    List,
    /// It has beaten within its lease.
    Beat,
}

impl Sign {
    fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::List => "list",
            Self::Beat => "beat",
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Worker {
    id: u64,
    client_id: String,
    version: String,
    account: String,
    state: String,
    life_conn_id: u64,
    work_conn_id: u64,
    claims: u32,
    ranges: u64,
    range_messages: u64,
    members: Vec<NameHeld>,
    lease_ms: u64,
    beat_age_ms: u64,
    alive_by: Vec<Sign>,
    registered_at: String,
    end_reason: Option<String>,
}

pub(super) const HEADER: [&str; 12] = [
    "id",
    "client",
    "version",
    "state",
    "life",
    "work",
    "claims",
    "ranges",
    "member of",
    "last beat",
    "alive by",
    "end reason",
];

impl Row for Worker {
    fn cells(&self) -> Vec<String> {
        let signs: Vec<_> = self.alive_by.iter().map(|sign| sign.word()).collect();
        let name = |held: &NameHeld| format!("{} as {}", held.group, held.member);
        let names: Vec<_> = self.members.iter().map(name).collect();
        vec![
            self.id.to_string(),
            self.client_id.clone(),
            self.version.clone(),
            self.state.clone(),
            self.life_conn_id.to_string(),
            self.work_conn_id.to_string(),
            self.claims.to_string(),
            self.ranges.to_string(),
            names.join(", "),
            units::age(Duration::from_millis(self.beat_age_ms)),
            signs.join(", "),
            self.end_reason.clone().unwrap_or_default(),
        ]
    }
}

impl Workers {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let workers = read(&mut session, self.all).await?;
        invocation.output.rows(&HEADER, &workers, NO_WORKERS)
    }
}

/// What is said where there is no worker to show.
pub(super) const NO_WORKERS: &str = "No worker is registered: start a consumer.";

/// The workers that are alive; with `all` the newest of those that have ended too.
pub(super) async fn read(session: &mut Session, all: bool) -> queue_core::Result<Vec<Worker>> {
    let read = async |conn: &mut Link| {
        let rows = if all {
            store::worker::latest(conn, LATEST).await?
        } else {
            store::worker::alive(conn).await?
        };
        // After the rows, or a session made in between would be missing from the list.
        let connections = store::process_list::show(conn).await?;
        let incarnation = store::worker::incarnation(conn).await?;
        let held = holding::ranges_held(conn).await?;
        let names = holding::names_held(conn).await?;
        let now = store::topic::server_time(conn).await?.and_utc();
        let age = |row: &WorkerRow| (now - row.beat_at).to_std().unwrap_or_default();
        let worker = |row: WorkerRow| {
            let age = age(&row);
            Worker::new(row, age, &connections, &incarnation).holding(&held, &names)
        };
        Ok(rows.into_iter().map(worker).collect())
    };
    session.call("list the workers", read).await
}

impl Worker {
    fn new(
        row: WorkerRow,
        beat_age: Duration,
        connections: &HashSet<ConnId>,
        incarnation: &Incarnation,
    ) -> Self {
        // Connection ids of an earlier life of the server say nothing about this one.
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

    /// With what it holds of streams.
    fn holding(mut self, ranges: &[RangesHeld], names: &[NameHeld]) -> Self {
        if let Some(held) = ranges.iter().find(|held| held.worker.0 == self.id) {
            (self.ranges, self.range_messages) = (held.ranges, held.messages);
        }
        self.members = names.iter().filter(|held| held.worker.0 == self.id).cloned().collect();
        self
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
