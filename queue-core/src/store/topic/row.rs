//! A topic's row, as it is read.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, Unsigned};

use crate::model::{
    Access, Backlog, HeaderFilter, Limits, OnDone, Place, Rate, Result, Retention, RetryPolicy,
    Sampling, Topic, TopicId, TopicKind, TopicName, TopicSettings, WhenFull,
};

/// What was measured of it last holds for 30 s, as in the procedure `queue_enqueue_at`: a sweeper
/// renews it every few seconds, and without one the topic must not stay closed for ever.
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

#[derive(QueryableByName)]
pub(super) struct TopicRow {
    #[diesel(sql_type = Unsigned<Integer>)]
    id: u32,
    #[diesel(sql_type = Binary)]
    name: Vec<u8>,
    #[diesel(sql_type = Bool)]
    enqueue_paused: bool,
    #[diesel(sql_type = Bool)]
    claim_paused: bool,
    #[diesel(sql_type = BigInt)]
    enqueue_stopped: i64,
    #[diesel(sql_type = BigInt)]
    claim_stopped: i64,
    #[diesel(sql_type = Binary)]
    kind: Vec<u8>,
    #[diesel(sql_type = Unsigned<Integer>)]
    partitions: u32,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    stream_id: Option<u32>,
    #[diesel(sql_type = Bool)]
    is_ordered: bool,
    #[diesel(sql_type = Nullable<Binary>)]
    start_at: Option<Vec<u8>>,
    #[diesel(sql_type = Unsigned<Integer>)]
    body_limit: u32,
    #[diesel(sql_type = Unsigned<Integer>)]
    max_attempts: u32,
    #[diesel(sql_type = Unsigned<Integer>)]
    max_crashes: u32,
    #[diesel(sql_type = Binary)]
    retry: Vec<u8>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_run_time_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    keep_done_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    keep_dead_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Binary>)]
    dead_letter_topic: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    ledger_window_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_depth: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_bytes: Option<u64>,
    #[diesel(sql_type = Binary)]
    when_full: Vec<u8>,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    max_running: Option<u32>,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    max_running_per_key: Option<u32>,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    rate_messages: Option<u32>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    rate_period_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    backlog_depth: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    backlog_bytes: Option<u64>,
    #[diesel(sql_type = Bool)]
    backlog_full: bool,
    #[diesel(sql_type = BigInt)]
    backlog_holds: i64,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    searchable_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    dedupe_window_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    retention_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    retention_bytes: Option<u64>,
    #[diesel(sql_type = Bool)]
    retention_hard: bool,
    #[diesel(sql_type = Bool)]
    prune_handled: bool,
    #[diesel(sql_type = Unsigned<Integer>)]
    trace_ppm: u32,
    #[diesel(sql_type = Nullable<Binary>)]
    header_filter: Option<Vec<u8>>,
}

/// A policy that somebody wrote into the table past this library: what cannot be read is as good as
/// none, and the topic must go on.
fn retry(topic: &TopicName, stored: &[u8]) -> RetryPolicy {
    String::from_utf8_lossy(stored).parse().unwrap_or_else(|error| {
        tracing::warn!(topic.name = %topic, %error, "Topic has no readable retry policy.");
        RetryPolicy::default()
    })
}

/// As above: a group that gets what it does not want is better off than one that misses what it
/// does.
fn filter(topic: &TopicName, stored: Option<&[u8]>) -> HeaderFilter {
    HeaderFilter::from_stored(stored).unwrap_or_else(|| {
        tracing::warn!(topic.name = %topic, "Group has no readable filter; it gets everything.");
        HeaderFilter::default()
    })
}

impl TopicRow {
    /// What was measured of late, of a topic that has a limit.
    fn backlog(&self) -> Option<Backlog> {
        self.max_depth.or(self.max_bytes)?;
        let (depth, bytes) = (self.backlog_depth?, self.backlog_bytes);
        (self.backlog_holds != 0).then_some(Backlog { depth, bytes, full: self.backlog_full })
    }

    /// A rate that somebody wrote past this library, and that is none, bounds nothing.
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
        match (self.kind.as_slice(), self.stream_id) {
            (b"group", Some(stream)) => {
                TopicKind::Group { stream: TopicId(stream), ordered: self.is_ordered }
            }
            (b"broadcast", Some(stream)) => {
                let start = self.start_at.as_deref().map(String::from_utf8_lossy);
                // As for a retry policy: the group must go on, and the default is the harmless end.
                let start = start.and_then(|text| text.parse().ok()).unwrap_or(Place::Latest);
                TopicKind::Broadcast { stream: TopicId(stream), start }
            }
            (b"stream", _) => TopicKind::Stream { partitions: self.partitions },
            _ => TopicKind::Queue,
        }
    }

    pub(super) fn into_topic(self) -> Result<Topic> {
        let name = TopicName::new(String::from_utf8_lossy(&self.name))?;
        let (backlog, limits) = (self.backlog(), self.limits());
        let access = Access::new(!self.enqueue_paused, !self.claim_paused);
        let beside = Access::new(self.enqueue_stopped == 0, self.claim_stopped == 0);
        Ok(Topic {
            id: TopicId(self.id),
            backlog,
            kind: self.kind(),
            settings: TopicSettings {
                body_limit: self.body_limit,
                max_attempts: self.max_attempts,
                max_crashes: self.max_crashes,
                retry: retry(&name, &self.retry),
                max_run_time: self.max_run_time_ms.map(Duration::from_millis),
                on_done: self
                    .keep_done_ms
                    .map_or(OnDone::Delete, |ms| OnDone::Keep(Duration::from_millis(ms))),
                keep_dead: self.keep_dead_ms.map(Duration::from_millis),
                dead_letter_topic: self
                    .dead_letter_topic
                    .map(|name| TopicName::new(String::from_utf8_lossy(&name)))
                    .transpose()?,
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
                filter: filter(&name, self.header_filter.as_deref()),
            },
            access,
            effective_access: access.and(beside),
            name,
        })
    }
}
