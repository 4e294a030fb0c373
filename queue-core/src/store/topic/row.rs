//! Reading a topic's row.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use crate::connection::row;
use crate::model::{
    Access, Backlog, HeaderFilter, Limits, OnDone, Place, Rate, Retention, RetryPolicy, Sampling,
    Topic, TopicId, TopicKind, TopicName, TopicSettings, WhenFull,
};

/// The last measurement holds for 30 s, as in the procedure `queue_enqueue_at`: a sweeper renews it
/// every few seconds, and without a sweeper the topic must not stay closed for ever.
pub(super) const SELECT: &str = "SELECT id, name, kind, partitions, stream_id, is_ordered, start_at, \
     enqueue_paused, claim_paused, \
     CASE WHEN EXISTS (SELECT 1 FROM queue_switch x WHERE x.enqueue_paused = 1) THEN 1 ELSE 0 END \
     AS enqueue_stopped, \
     CASE WHEN EXISTS (SELECT 1 FROM queue_switch x WHERE x.claim_paused = 1) \
     OR EXISTS (SELECT 1 FROM queue_topic o WHERE o.id = queue_topic.stream_id \
     AND o.claim_paused = 1) THEN 1 ELSE 0 END AS claim_stopped, \
     body_limit, max_attempts, \
     max_crashes, retry, max_run_time_ms, keep_done_ms, keep_dead_ms, ledger_window_ms, \
     max_depth, max_bytes, when_full, max_running, max_running_per_key, rate_messages, \
     rate_period_ms, backlog_depth, backlog_bytes, backlog_full, \
     CASE WHEN backlog_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND THEN 1 ELSE 0 END \
     AS backlog_holds, searchable_ms, dedupe_window_ms, \
     retention_ms, retention_bytes, retention_hard, prune_handled, trace_ppm, header_filter, \
     (SELECT o.name FROM queue_topic o WHERE o.id = queue_topic.dead_letter_topic_id) \
     AS dead_letter_topic FROM queue_topic ";

pub(super) struct TopicRow {
    id: TopicId,
    name: TopicName,
    kind: String,
    partitions: u32,
    stream_id: Option<TopicId>,
    is_ordered: bool,
    start_at: Option<String>,
    enqueue_paused: bool,
    claim_paused: bool,
    enqueue_stopped: bool,
    claim_stopped: bool,
    body_limit: u32,
    max_attempts: u32,
    max_crashes: u32,
    retry: String,
    max_run_time_ms: Option<u64>,
    keep_done_ms: Option<u64>,
    keep_dead_ms: Option<u64>,
    ledger_window_ms: Option<u64>,
    max_depth: Option<u64>,
    max_bytes: Option<u64>,
    when_full: Vec<u8>,
    max_running: Option<u32>,
    max_running_per_key: Option<u32>,
    rate_messages: Option<u32>,
    rate_period_ms: Option<u64>,
    backlog_depth: Option<u64>,
    backlog_bytes: Option<u64>,
    backlog_full: bool,
    backlog_holds: bool,
    searchable_ms: Option<u64>,
    dedupe_window_ms: Option<u64>,
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    retention_hard: bool,
    prune_handled: bool,
    trace_ppm: u32,
    header_filter: Option<Vec<u8>>,
    dead_letter_topic: Option<TopicName>,
}

row! {
    TopicRow {
        id, name, kind, partitions, stream_id, is_ordered, start_at, enqueue_paused, claim_paused,
        enqueue_stopped, claim_stopped, body_limit, max_attempts, max_crashes, retry,
        max_run_time_ms, keep_done_ms, keep_dead_ms, ledger_window_ms, max_depth, max_bytes,
        when_full, max_running, max_running_per_key, rate_messages, rate_period_ms, backlog_depth,
        backlog_bytes, backlog_full, backlog_holds, searchable_ms, dedupe_window_ms, retention_ms,
        retention_bytes, retention_hard, prune_handled, trace_ppm, header_filter,
        dead_letter_topic,
    }
}

/// Parses a retry policy. An unreadable one, which only direct SQL can have stored, counts as the
/// default: the topic must go on.
fn retry(topic: &TopicName, stored: &str) -> RetryPolicy {
    stored.parse().unwrap_or_else(|error| {
        tracing::warn!(topic.name = %topic, %error, "Topic has no readable retry policy.");
        RetryPolicy::default()
    })
}

/// Parses a filter, in the same way: too many messages do a group less harm than missing ones.
fn filter(topic: &TopicName, stored: Option<&[u8]>) -> HeaderFilter {
    HeaderFilter::from_stored(stored).unwrap_or_else(|| {
        tracing::warn!(topic.name = %topic, "Group has no readable filter; it gets everything.");
        HeaderFilter::default()
    })
}

impl TopicRow {
    /// Returns the recent measurement, of a topic that has a limit.
    fn backlog(&self) -> Option<Backlog> {
        self.max_depth.or(self.max_bytes)?;
        let (depth, bytes) = (self.backlog_depth?, self.backlog_bytes);
        self.backlog_holds.then_some(Backlog { depth, bytes, full: self.backlog_full })
    }

    /// Returns the limits. An invalid rate, which only direct SQL can have stored, limits nothing.
    fn limits(&self) -> Limits {
        let messages = self.rate_messages.and_then(NonZeroU32::new);
        let period = self.rate_period_ms.map(Duration::from_millis);
        let rate =
            messages.zip(period).and_then(|(messages, period)| Rate::new(messages, period).ok());
        Limits {
            max_running: self.max_running.and_then(NonZeroU32::new),
            max_running_per_key: self.max_running_per_key.and_then(NonZeroU32::new),
            rate,
        }
    }

    fn kind(&self) -> TopicKind {
        match (self.kind.as_str(), self.stream_id) {
            ("group", Some(stream)) => TopicKind::Group { stream, ordered: self.is_ordered },
            ("broadcast", Some(stream)) => {
                // As for a retry policy: the group must go on, and the default is the harmless end.
                let start = self.start_at.as_deref().and_then(|text| text.parse().ok());
                let start = start.unwrap_or(Place::Latest);
                TopicKind::Broadcast { stream, start }
            }
            ("stream", _) => TopicKind::Stream { partitions: self.partitions },
            _ => TopicKind::Queue,
        }
    }

    pub(super) fn into_topic(self) -> Topic {
        let (backlog, limits) = (self.backlog(), self.limits());
        let access = Access::new(!self.enqueue_paused, !self.claim_paused);
        let beside = Access::new(!self.enqueue_stopped, !self.claim_stopped);
        Topic {
            id: self.id,
            backlog,
            kind: self.kind(),
            settings: TopicSettings {
                body_limit: self.body_limit,
                max_attempts: self.max_attempts,
                max_crashes: self.max_crashes,
                retry: retry(&self.name, &self.retry),
                max_run_time: self.max_run_time_ms.map(Duration::from_millis),
                on_done: self
                    .keep_done_ms
                    .map_or(OnDone::Delete, |ms| OnDone::Keep(Duration::from_millis(ms))),
                keep_dead: self.keep_dead_ms.map(Duration::from_millis),
                dead_letter_topic: self.dead_letter_topic,
                ledger_window: self.ledger_window_ms.map(Duration::from_millis),
                max_depth: self.max_depth.and_then(NonZeroU64::new),
                max_bytes: self.max_bytes.and_then(NonZeroU64::new),
                when_full: WhenFull::from_stored(&self.when_full),
                limits,
                searchable: self.searchable_ms.map(Duration::from_millis),
                dedupe_window: self.dedupe_window_ms.map(Duration::from_millis),
                retention: Retention {
                    time: self.retention_ms.map(Duration::from_millis),
                    bytes: self.retention_bytes,
                    hard: self.retention_hard,
                    handled: self.prune_handled,
                },
                trace: Sampling::per_million(self.trace_ppm),
                filter: filter(&self.name, self.header_filter.as_deref()),
            },
            access,
            effective_access: access.and(beside),
            name: self.name,
        }
    }
}
