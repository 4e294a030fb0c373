//! The loads: what they do to the server, stated in full, so that a figure can be read without the
//! source.

mod backlog;
mod call;
mod console;
mod delays;
mod drain;
mod enqueue;
mod find;
mod insert;
mod limited;
mod memory;
mod peer;
mod pickup;
mod rescue;
mod spill;
mod steady;
mod stream;

use std::time::Duration;

use rowmq_core::model::Sampling;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
pub(crate) use crate::claimer::{Claimer, WakeUp};
use crate::figure::Sample;

pub(crate) use self::limited::Limited;
pub(crate) use self::peer::{Peer, PeerDrain, PeerEnqueue};
pub(crate) use self::rescue::{Reconnect, Rescue, Source};
pub(crate) use self::stream::{Appending, LongLog, LongLogAsked, Readers, Reading, Sequencing};

/// One load.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "load", rename_all = "snake_case")]
pub(crate) enum Load {
    /// The raw limit of writing.
    Insert(Insert),
    /// Our producers.
    Enqueue(Enqueue),
    /// A backlog to drain.
    Drain(Drain),
    /// A backlog of messages with keys, drained under limits of claims.
    Limited(Limited),
    /// Messages that come and go at the same time.
    Steady(Steady),
    /// Claims behind a backlog, timed one by one.
    Backlog(Backlog),
    /// Messages that come one by one to consumers with nothing to do.
    Pickup(Pickup),
    /// Consumers that are killed while they hold messages.
    Rescue(Rescue),
    /// A consumer that loses its connections while it holds messages.
    Reconnect(Reconnect),
    /// Finding out what became of a message, beside a backlog.
    Find(Find),
    /// Delayed messages that fall due one by one, beside many that do not.
    Delays(Delays),
    /// The sequencer of a stream, alone.
    Sequence(Sequencing),
    /// Producers of a stream.
    Append(Appending),
    /// Resetting a group, and reading its lag.
    LongLog(LongLog),
    /// Groups that read a stream.
    Read(Reading),
    /// The memory of a consumer that drains a backlog.
    Memory(Drain),
    /// The console's pages, each requested repeatedly.
    Pages(Pages),
    /// The console's pages, left open.
    Viewers(Viewers),
    /// Another queue's backlog, drained by its own program.
    PeerDrain(PeerDrain),
    /// Another queue's producers, in its own program.
    PeerEnqueue(PeerEnqueue),
}

/// INSERT in a loop.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Insert {
    /// The table.
    pub(crate) table: Table,
    /// How a statement is committed.
    pub(crate) commit: Commit,
    /// Concurrent connections.
    pub(crate) connections: usize,
    /// Rows per statement.
    pub(crate) rows: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How long it runs.
    #[serde(serialize_with = "seconds")]
    pub(crate) time: Duration,
}

/// A table of the raw references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Table {
    /// An id and a body.
    Bare,
    /// The queue's table.
    Queue,
}

/// What commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Commit {
    /// The statement itself.
    Auto,
    /// BEGIN before it and COMMIT after it.
    Transaction,
}

/// Our producers in a loop.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Enqueue {
    /// How messages are enqueued.
    pub(crate) way: Way,
    /// Concurrent connections.
    pub(crate) connections: usize,
    /// Messages per send.
    pub(crate) batch: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Whether the topic is searchable.
    pub(crate) searchable: bool,
    /// Which messages of the topic leave a trace.
    pub(crate) trace: Sampling,
    /// How long it runs.
    #[serde(serialize_with = "seconds")]
    pub(crate) time: Duration,
}

/// How messages are enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// `Producer`: idempotent, in a lane for each connection.
    Lane,
    /// `Producer::send` with four lanes, by as many callers as connections.
    Send,
    /// `Producer::send_async`, with as many tasks as connections, each with a hundred open
    /// receipts: the producer makes batches of them, one in flight at a time.
    Receipts,
    /// The same, with a spill journal that nothing goes into.
    Journal,
    /// `Producer::send` while the server is away: into the spill journal, by as many tasks as
    /// connections.
    Spill,
    /// As `Spill`, but only the sending from the journal is timed.
    Refill,
    /// `enqueue_to` on a connection in autocommit: nothing distinguishes a resend from a second
    /// message.
    Plain,
    /// `enqueue_to` between the caller's BEGIN and COMMIT.
    Transaction,
    /// The same, with ids chosen by the sender in a topic with a dedupe window.
    Given,
    /// The same, with a unique key for each message that is held until the message is done.
    Unique,
    /// `CALL queue_send` by the bare driver, prepared, in autocommit; of several messages
    /// `CALL queue_send_all` in a transaction.
    Call,
}

/// A backlog that processes drain.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Drain {
    /// How messages are claimed and settled.
    pub(crate) by: Claimer,
    /// Processes.
    pub(crate) consumers: usize,
    /// Concurrent handlers in each, where there are handlers.
    pub(crate) concurrency: usize,
    /// The most messages of one claim.
    pub(crate) batch: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Messages before the start.
    pub(crate) backlog: u64,
    /// Messages still undrained after this time do not count.
    pub(crate) limit: Duration,
    /// Whether a transaction that began before the drain stays open, so that nothing is purged.
    pub(crate) long_reader: bool,
}

/// Messages that come and go at the same time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Steady {
    /// The consumers and their batches.
    pub(crate) drain: Drain,
    /// Messages per send of the one producer, which waits while the backlog is long.
    pub(crate) send: usize,
    /// How long it runs.
    #[serde(serialize_with = "seconds")]
    pub(crate) time: Duration,
}

/// Claims behind a backlog.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Backlog {
    /// Messages before the start.
    pub(crate) backlog: u64,
    /// What else is in the database.
    pub(crate) beside: Beside,
    /// Messages of one claim.
    pub(crate) batch: usize,
    /// How many claims are timed.
    pub(crate) claims: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
}

/// What else is in the database while claims are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Beside {
    /// Nothing.
    Nothing,
    /// This many handled messages that the topic keeps.
    Finished(u64),
    /// This many messages that are due in an hour.
    Scheduled(u64),
    /// This many dead letters.
    Dead(u64),
}

/// Messages that come one by one to consumers with nothing to do.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Pickup {
    /// Processes.
    pub(crate) consumers: usize,
    /// Topics that each consumes; the messages are of the first one.
    pub(crate) topics: usize,
    /// How they learn of messages.
    pub(crate) wake_up: WakeUp,
    /// Messages a second.
    pub(crate) rate: u32,
    /// How many messages.
    pub(crate) messages: usize,
    /// How long the consumers are measured while no message comes.
    #[serde(serialize_with = "seconds")]
    pub(crate) idle: Duration,
}

/// Delayed messages that fall due one by one, beside many that do not.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Delays {
    /// Messages that are due in hours.
    pub(crate) pending: u64,
    /// Messages that fall due a second.
    pub(crate) rate: u32,
    /// How long they fall due.
    #[serde(serialize_with = "seconds")]
    pub(crate) time: Duration,
    /// How long the sweeper is measured before that, while nothing is due.
    #[serde(serialize_with = "seconds")]
    pub(crate) idle: Duration,
    /// Bytes of a body.
    pub(crate) body: usize,
}

/// Finding out what became of a message, beside a backlog.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Find {
    /// Messages that are ready.
    pub(crate) backlog: u64,
    /// Whether they are in the lookup.
    pub(crate) searchable: bool,
    /// What is known of the message.
    pub(crate) asked: Asked,
    /// How many requests.
    pub(crate) asks: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
}

/// The console's pages, each requested repeatedly.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Pages {
    /// Messages that are ready.
    pub(crate) backlog: u64,
    /// Messages that are scheduled, and as many dead letters.
    pub(crate) others: u64,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How often each page is requested.
    pub(crate) asks: usize,
}

/// The console's pages, left open: each viewer has one of them, in turn.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Viewers {
    /// How many viewers.
    pub(crate) viewers: usize,
    /// Messages that are ready.
    pub(crate) backlog: u64,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How long it runs.
    #[serde(serialize_with = "seconds")]
    pub(crate) time: Duration,
}

/// What is known of a message to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    /// Its business id.
    BizId,
    /// Its message id.
    MsgId,
}

impl Load {
    /// Runs the load on the server, once.
    pub(crate) async fn run(&self, arena: &Arena) -> anyhow::Result<Sample> {
        arena.clear().await?;
        stream::clear(&mut arena.raw().await?).await?;
        match self {
            Self::Insert(insert) => insert::run(arena, *insert).await,
            Self::Enqueue(enqueue) => enqueue::run(arena, *enqueue).await,
            Self::Drain(drain) => drain::run(arena, *drain).await,
            Self::Limited(limited) => limited::run(arena, *limited).await,
            Self::Steady(steady) => steady::run(arena, *steady).await,
            Self::Backlog(backlog) => backlog::run(arena, *backlog).await,
            Self::Pickup(pickup) => pickup::run(arena, *pickup).await,
            Self::Rescue(load) => rescue::run(arena, *load).await,
            Self::Reconnect(load) => rescue::reconnects(arena, *load).await,
            Self::Find(find) => find::run(arena, *find).await,
            Self::Delays(delays) => delays::run(arena, *delays).await,
            Self::Sequence(load) => stream::sequencing(arena, *load).await,
            Self::Append(load) => stream::appending(arena, *load).await,
            Self::LongLog(load) => stream::long_log(arena, *load).await,
            Self::Read(load) => stream::reading(arena, *load).await,
            Self::Memory(drain) => memory::run(arena, *drain).await,
            Self::Pages(pages) => console::pages(arena, *pages).await,
            Self::Viewers(viewers) => console::viewers(arena, *viewers).await,
            Self::PeerDrain(load) => peer::drain(arena, load).await,
            Self::PeerEnqueue(load) => peer::enqueue(arena, load).await,
        }
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}
