//! The names of metrics, and the one function for each event that counts it. No other file names a
//! metric (clippy forbids the raw macros), so that docs/metrics.md can be checked against this
//! file.

#![allow(clippy::disallowed_macros)]

mod sampled;

pub use self::sampled::{Gauges, is_known};

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{
    Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::model::{Delivery, Fault};

macro_rules! names {
    ($($name:ident = $text:literal, $kind:ident, $unit:ident, $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: &str = $text;
        )*

        /// Every metric: name, type and meaning, as the documentation lists them.
        pub const METRICS: &[(&str, &str, &str)] =
            &[$(($text, stringify!($kind), $meaning)),*];

        /// Registers the meaning of each metric with the installed recorder. Call it once after
        /// installing the recorder.
        pub fn describe() {
            $(names!(@describe $kind, $text, $unit, $meaning);)*
        }
    };
    (@describe counter, $text:literal, $unit:ident, $meaning:literal) => {
        describe_counter!($text, Unit::$unit, $meaning)
    };
    (@describe gauge, $text:literal, $unit:ident, $meaning:literal) => {
        describe_gauge!($text, Unit::$unit, $meaning)
    };
    (@describe histogram, $text:literal, $unit:ident, $meaning:literal) => {
        describe_histogram!($text, Unit::$unit, $meaning)
    };
}

names! {
    ENQUEUED = "queue_enqueued_total", counter, Count, "Messages enqueued and committed by this process, by topic.";
    DUPLICATES = "queue_duplicates_total", counter, Count, "Messages that this process sent and that were there already, by topic.";
    RESENT = "queue_resent_total", counter, Count, "Batches sent again after a lost or refused reply, by topic.";
    FOUND_FULL = "queue_enqueue_full_total", counter, Count, "Tries of this process to enqueue that found the topic full, by topic.";
    UNSENT = "queue_unsent_bytes", gauge, Bytes, "Room taken by messages that this process's producers have accepted and that have no outcome yet.";
    SPILLED = "queue_spilled_total", counter, Count, "Messages written to the spill journal, by topic.";
    DRAINED = "queue_drained_total", counter, Count, "Messages of the spill journal that are stored now, by topic.";
    SET_ASIDE = "queue_set_aside_total", counter, Count, "Messages of the spill journal that were put into a file for a person to decide on, by topic and reason.";
    SPILL_BYTES = "queue_spill_bytes", gauge, Bytes, "Size of the spill journal.";
    CLAIMED = "queue_claimed_total", counter, Count, "Messages claimed, by topic.";
    SETTLED = "queue_settled_total", counter, Count, "Deliveries settled, by topic and verb.";
    FENCED = "queue_fenced_total", counter, Count, "Settles refused because the claim had been taken back, by topic.";
    UNKNOWN = "queue_unknown_settles_total", counter, Count, "Settles whose commit had no answer and whose rows were gone on looking again, by topic.";
    CONFLICTS = "queue_conflicts_total", counter, Count, "Transactions run again after a deadlock or lock wait, by operation and fault.";
    SESSIONS_LOST = "queue_sessions_lost_total", counter, Count, "Sessions of this worker that were lost, by role.";
    WORKERS_DIED = "queue_workers_died_total", counter, Count, "Times this process found its worker declared dead.";
    DOORBELL = "queue_doorbell_ringing", gauge, Count, "1 while a sweeper wakes this process, 0 while it polls.";
    RINGS = "queue_doorbell_rings_total", counter, Count, "Wake-ups by the doorbell, by topic.";
    RUN_SECONDS = "queue_run_seconds", histogram, Seconds, "Time a handler ran, by topic and outcome.";
    PICKUP_SECONDS = "queue_pickup_seconds", histogram, Seconds, "Time from enqueue, or a delayed message's moment, to the first claim by the server's clock, by topic.";
    FORWARD_WAITS = "queue_forward_waits_total", counter, Count, "Times a forward waited because its receiver took nothing, by topic.";
    PAUSED = "queue_paused_on_errors", gauge, Count, "1 while this consumer claims nothing of a topic because too many of its messages failed, by topic.";
    PAUSES = "queue_error_pauses_total", counter, Count, "Times this consumer has paused a topic because too many of its messages failed, by topic.";
    RUNNING = "queue_running", gauge, Count, "Handlers running now, by topic.";
    HELD = "queue_held", gauge, Count, "Deliveries claimed and not yet settled, by topic.";
    DECLARED_DEAD = "queue_workers_declared_dead_total", counter, Count, "Workers this sweeper declared dead, by reason.";
    RESCUED = "queue_rescued_total", counter, Count, "Messages taken back from dead workers.";
    CRASH_LETTERS = "queue_crash_dead_letters_total", counter, Count, "Messages dead-lettered because their worker crashed on them alone too often.";
    PROMOTED = "queue_promoted_total", counter, Count, "Due messages made ready.";
    LATENESS_SECONDS = "queue_promotion_lateness_seconds", histogram, Seconds, "Time from when a message was due until it was ready.";
    TICKS = "queue_ticks_total", counter, Count, "Messages of schedules enqueued.";
    SEQUENCED = "queue_sequenced_total", counter, Count, "Messages of streams that this process gave their offsets.";
    LOST = "queue_lost_to_retention_total", counter, Count, "Messages that retention removed before a group had claimed them, by group.";
    FILTERED = "queue_filtered_total", counter, Count, "Messages that the filter of a group did not let through, by group.";
    PRUNED = "queue_pruned_total", counter, Count, "Rows removed at the end of their time, by table.";
    DUTY_RUNS = "queue_duty_runs_total", counter, Count, "Runs of a duty, by duty and outcome.";
    DUTY_SECONDS = "queue_duty_seconds", histogram, Seconds, "Time a duty took, by duty.";
    SWEEPING = "queue_sweeping", gauge, Count, "1 while this process is the one that sweeps.";
    LIST_PROVED = "queue_process_list_proved", gauge, Count, "1 when the process list is proved complete, 0 when only locks and beats decide.";
    WORKERS_ALIVE = "queue_workers_alive", gauge, Count, "Workers alive at the last sweep.";
    BACKLOG_DEPTH = "queue_backlog_messages", gauge, Count, "Messages, ready and claimed, of a topic that has a limit, as last measured.";
    BACKLOG_BYTES = "queue_backlog_bytes", gauge, Bytes, "Bytes of bodies and headers of a topic that has a limit of them, as last estimated.";
    BACKLOG_FULL = "queue_backlog_full", gauge, Count, "1 while a topic that has a limit is full.";
    DEPTH = "queue_depth", gauge, Count, "Messages of a topic by state, counted up to 10000.";
    LAG = "queue_group_lag", gauge, Count, "Messages of its stream that a group is not through with, by group.";
    LAG_SECONDS = "queue_group_lag_seconds", gauge, Seconds, "How long the oldest of those has been in the log, by group.";
    OLDEST_SECONDS = "queue_oldest_age_seconds", gauge, Seconds, "Age of a topic's oldest message that is not settled.";
    GROUP_POSITION = "queue_group_position", gauge, Count, "How far a group has come: the sum over the partitions of the lowest offset that it is not through with.";
    RETENTION_USED = "queue_group_retention_used_ratio", gauge, Count, "Share of its stream's retention time that the oldest message a group is not through with has used up.";
    TOPIC_BYTES = "queue_topic_bytes", gauge, Bytes, "Bytes of bodies and headers of a topic's ready and claimed messages and, of a stream, its log, as last estimated.";
    STREAM_MESSAGES = "queue_stream_messages", gauge, Count, "Messages in a stream's log.";
    STREAM_OLDEST = "queue_stream_oldest_age_seconds", gauge, Seconds, "How long the oldest message of a stream's log has been there.";
    STREAM_APPENDED = "queue_stream_appended_total", counter, Count, "Messages that a stream's log has ever had, by the database's own count.";
    SERVER_INFO = "queue_server_info", gauge, Count, "1, with the product and version of the server.";
    SERVER_DURABLE = "queue_server_durable", gauge, Count, "1 while every commit reaches the disk before it is acknowledged, by the server's settings.";
    SERVER_SEMI_SYNC = "queue_server_semi_sync", gauge, Count, "1 while semi-synchronous replication waits for a replica, 0 while it is switched on and does not; absent where it is off.";
    SERVER_HISTORY = "queue_server_history_list_length", gauge, Count, "Transactions whose old row versions InnoDB has not purged.";
    SERVER_CONNECTIONS = "queue_server_connections", gauge, Count, "Connections open on the server.";
    SERVER_CONNECTIONS_LIMIT = "queue_server_connections_limit", gauge, Count, "The most connections that the server takes.";
    TABLE_BYTES = "queue_table_bytes", gauge, Bytes, "Room that one of the queue's tables takes on disk, by the server's statistics.";
}

/// Counts messages that were enqueued and committed.
pub fn enqueued(topic: &str, messages: usize) {
    counter!(ENQUEUED, "topic" => topic.to_owned()).increment(messages as u64);
}

/// Counts messages that were sent but already there.
pub fn duplicates(topic: &str, messages: usize) {
    if messages > 0 {
        counter!(DUPLICATES, "topic" => topic.to_owned()).increment(messages as u64);
    }
}

/// Counts stream messages that got their offsets.
pub fn sequenced(messages: usize) {
    counter!(SEQUENCED).increment(messages as u64);
}

/// Counts messages that retention removed before the group had claimed them.
pub fn lost_to_retention(group: &str, messages: u64) {
    if messages > 0 {
        counter!(LOST, "topic" => group.to_owned()).increment(messages);
        tracing::warn!(topic.name = group, messages, "Retention has removed messages unread.");
    }
}

/// Counts messages that a group's filter rejected.
pub fn filtered(group: &str, messages: u64) {
    if messages > 0 {
        counter!(FILTERED, "topic" => group.to_owned()).increment(messages);
    }
}

/// Counts a batch that is sent again.
pub fn resent(topic: &str) {
    counter!(RESENT, "topic" => topic.to_owned()).increment(1);
}

/// Counts that a topic was found full.
pub fn found_full(topic: &str) {
    counter!(FOUND_FULL, "topic" => topic.to_owned()).increment(1);
}

/// Adds the bytes of messages that a producer has accepted.
pub fn accepted(bytes: usize) {
    gauge!(UNSENT).increment(bytes as f64);
}

/// Subtracts the bytes of messages that have their outcomes.
pub fn answered(bytes: usize) {
    gauge!(UNSENT).decrement(bytes as f64);
}

/// Counts messages that were written to the spill journal.
pub fn spilled(topic: &str, messages: usize) {
    counter!(SPILLED, "topic" => topic.to_owned()).increment(messages as u64);
}

/// Counts messages of the spill journal that were stored.
pub fn drained(topic: &str, messages: usize) {
    counter!(DRAINED, "topic" => topic.to_owned()).increment(messages as u64);
}

/// Counts messages of the spill journal that were set aside.
pub fn set_aside(topic: &str, reason: &'static str, messages: usize) {
    counter!(SET_ASIDE, "topic" => topic.to_owned(), "reason" => reason).increment(messages as u64);
}

/// Sets the size of the spill journal.
pub fn spill_size(bytes: u64) {
    gauge!(SPILL_BYTES).set(bytes as f64);
}

/// Counts messages that were claimed.
pub fn claimed(topic: &str, messages: usize) {
    counter!(CLAIMED, "topic" => topic.to_owned()).increment(messages as u64);
}

/// Counts deliveries that were settled.
pub fn settled(topic: &str, verb: &'static str, deliveries: usize) {
    counter!(SETTLED, "topic" => topic.to_owned(), "verb" => verb).increment(deliveries as u64);
}

/// Counts a settle that the fence refused.
pub fn fenced(topic: &str) {
    counter!(FENCED, "topic" => topic.to_owned()).increment(1);
}

/// Counts a settle that had no answer and whose row was then gone.
pub fn settled_unknown(topic: &str) {
    counter!(UNKNOWN, "topic" => topic.to_owned()).increment(1);
}

/// Counts a retry of one of the library's own transactions.
pub fn conflict_retried(operation: &'static str, fault: Fault) {
    let fault = if fault == Fault::LockWait { "lock_wait" } else { "deadlock" };
    counter!(CONFLICTS, "operation" => operation, "fault" => fault).increment(1);
}

/// Counts a lost session of the worker.
pub fn session_lost(role: &'static str) {
    counter!(SESSIONS_LOST, "role" => role).increment(1);
}

/// Counts that this process found its worker declared dead.
pub fn worker_died() {
    counter!(WORKERS_DIED).increment(1);
}

/// Sets whether a sweeper wakes this process.
pub fn doorbell_ringing(now: bool) {
    gauge!(DOORBELL).set(f64::from(u8::from(now)));
}

/// Counts that the doorbell has woken a topic's consumers.
pub fn rang(topic: &str) {
    counter!(RINGS, "topic" => topic.to_owned()).increment(1);
}

/// Counts that a forward waits for its receiver.
pub fn forward_waits(topic: &str) {
    counter!(FORWARD_WAITS, "topic" => topic.to_owned()).increment(1);
}

/// The labels of settled deliveries.
const VERBS: [&str; 6] = ["ack", "retry", "snooze", "dead_letter", "discard", "release"];

/// The metrics that the loop of one topic updates with every message. It keeps their handles:
/// looking a metric up by its labels costs more than a handler that does nothing.
pub struct TopicMeter {
    topic: String,
    running: Gauge,
    held: Gauge,
    pickups: Histogram,
    runs: Mutex<Vec<(&'static str, Histogram)>>,
}

impl TopicMeter {
    /// The meter of a topic.
    #[must_use]
    pub fn new(topic: &str) -> Self {
        // A counter that first appears with its first event shows no increase for it.
        claimed(topic, 0);
        counter!(FENCED, "topic" => topic.to_owned()).increment(0);
        for verb in VERBS {
            settled(topic, verb, 0);
        }
        Self {
            topic: topic.to_owned(),
            running: gauge!(RUNNING, "topic" => topic.to_owned()),
            held: gauge!(HELD, "topic" => topic.to_owned()),
            pickups: histogram!(PICKUP_SECONDS, "topic" => topic.to_owned()),
            runs: Mutex::default(),
        }
    }

    /// Counts a claimed message.
    pub fn picked_up(&self, delivery: &Delivery) {
        if let Some(after) = delivery.pickup() {
            self.pickups.record(after);
        }
    }

    /// Counts a handler that ended.
    pub fn ran(&self, outcome: &'static str, time: Duration) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, run)) = runs.iter().find(|(known, _)| *known == outcome) {
            run.record(time);
            return;
        }
        let topic = self.topic.clone();
        let run = histogram!(RUN_SECONDS, "topic" => topic, "outcome" => outcome);
        run.record(time);
        runs.push((outcome, run));
    }

    /// Sets how many handlers run, and how many deliveries are held.
    pub fn in_flight(&self, running: usize, held: usize) {
        self.running.set(running as f64);
        self.held.set(held as f64);
    }
}

impl fmt::Debug for TopicMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicMeter").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Shows that this consumer may pause the topic on errors, and has not yet.
pub fn may_pause_on_errors(topic: &str) {
    gauge!(PAUSED, "topic" => topic.to_owned()).set(0.0);
    counter!(PAUSES, "topic" => topic.to_owned()).increment(0);
}

/// Sets whether this consumer has paused the topic on errors.
pub fn paused_on_errors(topic: &str, now: bool) {
    gauge!(PAUSED, "topic" => topic.to_owned()).set(f64::from(u8::from(now)));
    counter!(PAUSES, "topic" => topic.to_owned()).increment(u64::from(now));
}

/// Counts a worker that was declared dead.
pub fn declared_dead(reason: &'static str) {
    counter!(DECLARED_DEAD, "reason" => reason).increment(1);
}

/// Counts messages that were taken back from a dead worker.
pub fn rescued(freed: usize, dead_lettered: usize) {
    counter!(RESCUED).increment(freed as u64);
    counter!(CRASH_LETTERS).increment(dead_lettered as u64);
}

/// Counts due messages that became ready, and how late.
pub fn promoted(lateness: impl ExactSizeIterator<Item = Duration>) {
    counter!(PROMOTED).increment(lateness.len() as u64);
    let histogram = histogram!(LATENESS_SECONDS);
    lateness.for_each(|late| histogram.record(late));
}

/// Counts messages of schedules that were enqueued.
pub fn ticked(messages: usize) {
    counter!(TICKS).increment(messages as u64);
}

/// Counts rows that were removed at the end of their time.
pub fn pruned(table: &'static str, rows: usize) {
    counter!(PRUNED, "table" => table).increment(rows as u64);
}

/// Counts a run of a duty.
pub fn duty_ran(duty: &'static str, ok: bool, time: Duration) {
    let outcome = if ok { "ok" } else { "error" };
    counter!(DUTY_RUNS, "duty" => duty, "outcome" => outcome).increment(1);
    histogram!(DUTY_SECONDS, "duty" => duty).record(time);
}

/// Sets whether this process is the one that sweeps.
pub fn sweeping(now: bool) {
    gauge!(SWEEPING).set(f64::from(u8::from(now)));
}
