//! What is drawn from a seed before its history begins.

use std::time::Duration;

use rowmq_core::model::{Limits, OnDone};
use rowmq_core::worker::ClaimStrategy;

use crate::rules::Rule;
use crate::server::RingFates;

/// How long messages of a searchable topic can be looked up.
pub(crate) const SEARCHABLE: Duration = Duration::from_secs(3600);

/// What may go wrong in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Nothing.
    Calm,
    /// Only faults that must not cause a second run: in single connections, janitors, producers,
    /// clocks.
    Mild,
    /// Everything.
    Wild,
}

/// What is drawn from the seed before a history begins.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) weather: Weather,
    pub(crate) rule: Option<Rule>,
    /// Whether the server often executes statements after their connection broke.
    pub(crate) late: bool,
    pub(crate) lease: Duration,
    pub(crate) consumers: u32,
    pub(crate) janitors: u32,
    pub(crate) senders: u32,
    pub(crate) strategy: ClaimStrategy,
    pub(crate) on_done: OnDone,
    /// How long a handler may run before its claim is taken back; some run longer.
    pub(crate) max_run_time: Option<Duration>,
    pub(crate) faulty: Duration,
    /// Every n-th message kills the process that handles it; 0 for none.
    pub(crate) poison: u32,
    /// Whether dead letters are enqueued in a separate topic, which no consumer handles.
    pub(crate) dead_letter_topic: bool,
    /// Whether both topics are searchable.
    pub(crate) searchable: bool,
    /// Whether the topic remembers the ids of its messages; if not, some have unique keys.
    pub(crate) dedupe: bool,
    /// The limits of the topic's claims.
    pub(crate) limits: Limits,
    /// Whether every message of the topic leaves a trace.
    pub(crate) traced: bool,
    /// How many processes cancel messages.
    pub(crate) cancellers: u32,
    /// How many messages each of them wants cancelled.
    pub(crate) cancels: u32,
    /// How many operators create and delete topics.
    pub(crate) operators: u32,
    /// Whether some handlers save checkpoints.
    pub(crate) checkpoints: bool,
    /// Whether it goes on until all totals are reported, which may take half a minute more.
    pub(crate) told: bool,
    /// Whether consumers take their deliveries from a `Receiver`.
    pub(crate) receives: bool,
    /// How receivers wait for their bells; if not, they poll.
    pub(crate) bells: Option<Bells>,
    /// The topic is a stream instead of a queue.
    pub(crate) stream: Option<Streamed>,
}

/// The bells of receivers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bells {
    /// How long a receiver relies on the sweeper before it looks for messages itself.
    pub(crate) safety: Duration,
    pub(crate) fates: RingFates,
}

/// A stream and its readers.
#[derive(Debug, Clone)]
pub(crate) struct Streamed {
    pub(crate) partitions: u32,
    /// Whether each of its groups is ordered.
    pub(crate) groups: Vec<bool>,
    /// How long a message is kept; what a group has not handled is always kept.
    pub(crate) retention: Duration,
    /// Whether its log is written in pages.
    pub(crate) pages: bool,
}
