//! The row of a topic: its settings, which are read and written, and columns that are only read.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use diesel::dsl::{AsSelect, auto_type, exists, sql};
use diesel::expression::SqlLiteral;
use diesel::mysql::Mysql;
use diesel::prelude::*;
use diesel::sql_types::{Bool, Nullable};

use crate::model::column::Text;
use crate::model::{
    Access, Backlog, HeaderFilter, Limits, OffsetSpec, OnDone, Rate, Result, Retention,
    RetryPolicy, Sampling, Topic, TopicId, TopicKind, TopicName, TopicSettings, WhenFull,
};
use crate::schema::{queue_switch, queue_topic};

diesel::alias! {
    pub(super) const other: Alias<Other> = queue_topic as other;
}

/// Selects topics as [`TopicRow`]s.
///
/// The last measurement holds for 30 s, as in the procedure `queue_enqueue`: a sweeper renews it
/// every few seconds, and without a sweeper the topic must not stay closed for ever.
#[auto_type]
pub(super) fn topics() -> _ {
    let columns: AsSelect<Columns, Mysql> = Columns::as_select();
    let backlog_holds: SqlLiteral<Nullable<Bool>> =
        sql("backlog_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND");
    let stream = other.filter(other.field(queue_topic::id).nullable().eq(queue_topic::stream_id));
    let dead_letter_topic =
        other.filter(other.field(queue_topic::id).nullable().eq(queue_topic::dead_letter_topic_id));
    queue_topic::table.select((
        columns,
        exists(queue_switch::table.filter(queue_switch::enqueue_paused)),
        exists(queue_switch::table.filter(queue_switch::claim_paused))
            .or(exists(stream.filter(other.field(queue_topic::claim_paused)))),
        backlog_holds,
        dead_letter_topic.select(other.field(queue_topic::name)).single_value(),
    ))
}

/// A topic as it is read.
#[derive(Queryable)]
pub(super) struct TopicRow {
    topic: Columns,
    enqueue_stopped: bool,
    claim_stopped: bool,
    backlog_holds: Option<bool>,
    dead_letter_topic: Option<TopicName>,
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = queue_topic)]
pub(super) struct Columns {
    id: TopicId,
    name: TopicName,
    kind: Text,
    partitions: u32,
    stream_id: Option<TopicId>,
    is_ordered: bool,
    start_at: Option<Text>,
    enqueue_paused: bool,
    claim_paused: bool,
    backlog_depth: Option<u64>,
    backlog_bytes: Option<u64>,
    backlog_full: bool,
    #[diesel(embed)]
    settings: SettingsRow,
}

/// The settings of a topic, as they are stored.
#[derive(Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = queue_topic, treat_none_as_null = true, treat_none_as_default_value = false)]
pub(super) struct SettingsRow {
    body_limit: u32,
    max_attempts: u32,
    max_crashes: u32,
    retry: Text,
    max_run_time_ms: Option<u64>,
    keep_done_ms: Option<u64>,
    keep_dead_ms: Option<u64>,
    dead_letter_topic_id: Option<TopicId>,
    ledger_window_ms: Option<u64>,
    max_depth: Option<u64>,
    max_bytes: Option<u64>,
    when_full: Text,
    max_running: Option<u32>,
    max_running_per_key: Option<u32>,
    rate_messages: Option<u32>,
    rate_period_ms: Option<u64>,
    searchable_ms: Option<u64>,
    dedupe_window_ms: Option<u64>,
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    retention_hard: bool,
    prune_handled: bool,
    trace_ppm: u32,
    header_filter: Option<Vec<u8>>,
}

impl SettingsRow {
    /// Converts settings. Fails if the filter is too long.
    pub(super) fn new(
        settings: &TopicSettings,
        dead_letter_topic_id: Option<TopicId>,
    ) -> Result<Self> {
        let limits = settings.limits;
        Ok(Self {
            body_limit: settings.body_limit,
            max_attempts: settings.max_attempts,
            max_crashes: settings.max_crashes,
            retry: Text(settings.retry.to_string()),
            max_run_time_ms: settings.max_run_time.map(millis),
            keep_done_ms: match settings.on_done {
                OnDone::Delete => None,
                OnDone::Keep(time) => Some(millis(time)),
            },
            keep_dead_ms: settings.keep_dead.map(millis),
            dead_letter_topic_id,
            ledger_window_ms: settings.ledger_window.map(millis),
            max_depth: settings.max_depth.map(NonZeroU64::get),
            max_bytes: settings.max_bytes.map(NonZeroU64::get),
            when_full: Text(settings.when_full.word().to_owned()),
            max_running: limits.max_running.map(NonZeroU32::get),
            max_running_per_key: limits.max_running_per_key.map(NonZeroU32::get),
            rate_messages: limits.rate.map(|rate| rate.messages().get()),
            rate_period_ms: limits.rate.map(|rate| millis(rate.period())),
            searchable_ms: settings.searchable.map(millis),
            dedupe_window_ms: settings.dedupe_window.map(millis),
            retention_ms: settings.retention.time.map(millis),
            retention_bytes: settings.retention.bytes,
            retention_hard: settings.retention.hard,
            prune_handled: settings.retention.handled,
            trace_ppm: settings.trace.millionths(),
            header_filter: settings.filter.to_stored()?,
        })
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

    fn into_settings(
        self,
        topic: &TopicName,
        dead_letter_topic: Option<TopicName>,
    ) -> TopicSettings {
        let limits = self.limits();
        TopicSettings {
            body_limit: self.body_limit,
            max_attempts: self.max_attempts,
            max_crashes: self.max_crashes,
            retry: retry(topic, &self.retry.0),
            max_run_time: self.max_run_time_ms.map(Duration::from_millis),
            on_done: self
                .keep_done_ms
                .map_or(OnDone::Delete, |ms| OnDone::Keep(Duration::from_millis(ms))),
            keep_dead: self.keep_dead_ms.map(Duration::from_millis),
            dead_letter_topic,
            ledger_window: self.ledger_window_ms.map(Duration::from_millis),
            max_depth: self.max_depth.and_then(NonZeroU64::new),
            max_bytes: self.max_bytes.and_then(NonZeroU64::new),
            when_full: WhenFull::from_stored(self.when_full.0.as_bytes()),
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
            filter: filter(topic, self.header_filter.as_deref()),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a retry policy. An unreadable one, which only direct SQL can have stored, counts as the
/// default, so that the topic still works.
fn retry(topic: &TopicName, stored: &str) -> RetryPolicy {
    stored.parse().unwrap_or_else(|error| {
        tracing::warn!(topic.name = %topic, %error, "Topic has no readable retry policy.");
        RetryPolicy::default()
    })
}

/// Parses a filter in the same way: extra messages do a group less harm than missing ones.
fn filter(topic: &TopicName, stored: Option<&[u8]>) -> HeaderFilter {
    HeaderFilter::from_stored(stored).unwrap_or_else(|| {
        tracing::warn!(topic.name = %topic, "Group has no readable filter; it gets everything.");
        HeaderFilter::default()
    })
}

impl Columns {
    fn kind(&self) -> TopicKind {
        match (self.kind.0.as_str(), self.stream_id) {
            ("group", Some(stream)) => TopicKind::Group { stream, ordered: self.is_ordered },
            ("broadcast", Some(stream)) => {
                // As for a retry policy: the group still works, and `latest` does the least harm.
                let start = self.start_at.as_ref().and_then(|text| text.0.parse().ok());
                let start = start.unwrap_or(OffsetSpec::Latest);
                TopicKind::Broadcast { stream, start }
            }
            ("stream", _) => TopicKind::Stream { partitions: self.partitions },
            _ => TopicKind::Queue,
        }
    }

    /// Returns the measurement, of a topic that has a limit.
    fn backlog(&self) -> Option<Backlog> {
        self.settings.max_depth.or(self.settings.max_bytes)?;
        let (depth, bytes) = (self.backlog_depth?, self.backlog_bytes);
        Some(Backlog { depth, bytes, full: self.backlog_full })
    }
}

impl TopicRow {
    pub(super) fn into_topic(self) -> Topic {
        let topic = self.topic;
        let access = Access::new(!topic.enqueue_paused, !topic.claim_paused);
        let beside = Access::new(!self.enqueue_stopped, !self.claim_stopped);
        Topic {
            id: topic.id,
            backlog: topic.backlog().filter(|_| self.backlog_holds == Some(true)),
            kind: topic.kind(),
            settings: topic.settings.into_settings(&topic.name, self.dead_letter_topic),
            access,
            effective_access: access.and(beside),
            name: topic.name,
        }
    }
}
