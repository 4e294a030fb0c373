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

/// The queues of which only so many messages run at once in the whole fleet: fewer than their
/// consumers could run, and enough to keep up with their senders.
pub(crate) const MAX_RUNNING: [(&str, NonZeroU32); 3] = [
    (EFFECTS, NonZeroU32::MIN.saturating_add(2)),
    (CALLS, NonZeroU32::MIN.saturating_add(4)),
    (URGENT, NonZeroU32::MIN.saturating_add(2)),
];

/// Returns how many messages of the queue run at once; `None`: any number.
pub(crate) fn max_running(topic: &str) -> Option<NonZeroU32> {
    MAX_RUNNING.iter().find(|(name, _)| *name == topic).map(|(_, n)| *n)
}
