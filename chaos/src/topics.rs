//! The topics of a run that are queues.

use std::num::NonZeroU32;

/// The topic whose consumers are the target of the faults.
pub(crate) const WORK: &str = "work";
/// Filled in transactions that think and roll back.
pub(crate) const LEDGER: &str = "ledger";
/// Handled in transactions that write an effect for each message.
pub(crate) const EFFECTS: &str = "effects";
/// The same, by sessions that claim and settle by the SQL contract.
pub(crate) const CALLS: &str = "calls";
/// The same sessions claim from here before each batch of the other topic, and hold claims of both.
pub(crate) const URGENT: &str = "urgent-calls";
/// Handled by programs that the real `rowmq-consumer exec` and `rowmq-consumer pool` run.
pub(crate) const PROGRAM: &str = "program";
/// Handled by a web service that the real `rowmq-consumer webhook` calls.
pub(crate) const HOOK: &str = "hook";
/// Flooded by the fault that crashes a server under load.
pub(crate) const BURST: &str = "burst";

/// Every topic of a run.
pub(crate) const TOPICS: [&str; 8] = [WORK, LEDGER, EFFECTS, CALLS, URGENT, PROGRAM, HOOK, BURST];

/// How many messages of [`EFFECTS`] run at once in the whole fleet: fewer than one consumer could
/// run, and enough to keep up with their senders.
pub(crate) const EFFECTS_RUNNING: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
