use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Access, Backlog, Broadcast, ClosedBy, Error, Group, HeaderFilter, Limits, OffsetSpec, Result,
    RetryPolicy, Sampling, TopicId, TopicName, WhenFull,
};

/// What happens to a message's row once it is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnDone {
    /// The row is deleted.
    Delete,
    /// The row moves to the archive and is pruned after this time.
    Keep(
        #[serde(with = "humantime_serde")]
        #[cfg_attr(feature = "json-schema", schemars(with = "String"))]
        Duration,
    ),
}

/// The settings of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct TopicSettings {
    /// The largest body, in bytes. Default 4 MiB.
    pub body_limit: u32,
    /// Failures after which a message is dead-lettered. Default 16.
    pub max_attempts: u32,
    /// Crashes of workers that held the message alone, after which it is dead-lettered. Default 3.
    pub max_crashes: u32,
    /// How long a failed message waits. Default 1 s, doubling, at most 1 h.
    pub retry: RetryPolicy,
    /// The longest run of a handler. Default none: a claim lives as long as its worker.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub max_run_time: Option<Duration>,
    /// What happens to handled messages. Default: they are deleted.
    pub on_done: OnDone,
    /// How long dead letters are kept. Default none: until they are purged or redriven.
    #[serde(default, with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub keep_dead: Option<Duration>,
    /// The topic in which this one's dead letters are enqueued. Default none: they stay where
    /// `rowmq dead` finds them.
    pub dead_letter_topic: Option<TopicName>,
    /// How long the biz id of a handled message is remembered: another message with it is acked
    /// without being handled. Default none: biz ids are stored but not compared.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub ledger_window: Option<Duration>,
    /// The topic is full at this many messages, ready and claimed. Default none.
    pub max_depth: Option<NonZeroU64>,
    /// The topic is full at this many bytes of bodies and headers, ready and claimed. Default none.
    pub max_bytes: Option<NonZeroU64>,
    /// What producers do while the topic is full. Default: they wait.
    pub when_full: WhenFull,
    /// The limits on its claims, over all consumers. Default: none.
    #[serde(flatten)]
    pub limits: Limits,
    /// How long after the enqueue a message can be looked up by its ids, its key and its time;
    /// longer while it still exists. Default none: a search reads a bounded number of rows.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub searchable: Option<Duration>,
    /// How long a message id that its sender chose is remembered: another message with it is not
    /// stored. Default none: two messages may have the same id.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub dedupe_window: Option<Duration>,
    /// How long a stream keeps its messages. Default: for ever.
    #[serde(flatten)]
    pub retention: Retention,
    /// Which messages leave a trace. For a group, the stream's setting applies. Default: none.
    pub trace: Sampling,
    /// Which messages of its stream a group wants. Default: all.
    pub filter: HeaderFilter,
}

impl TopicSettings {
    /// What differs from `before`, for people: `max_attempts 5, retry fixed 30s`. Empty if nothing
    /// does.
    #[must_use]
    pub fn unlike(&self, before: &Self) -> String {
        let fields = |settings: &Self| match serde_json::to_value(settings) {
            Ok(Value::Object(fields)) => fields,
            // Names and values, which JSON can always represent.
            _ => serde_json::Map::new(),
        };
        let before = fields(before);
        let now = fields(self).into_iter().filter(|(name, value)| before.get(name) != Some(value));
        let words = now.map(|(name, value)| match value {
            Value::Null => format!("{name} none"),
            Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// What a stream removes from its log, oldest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Retention {
    /// Messages that got their offset longer ago than this. Default: none.
    #[serde(rename = "retention", with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub time: Option<Duration>,
    /// Messages beyond this many bytes of bodies and headers, estimated from the newest messages.
    /// Default: none.
    #[serde(rename = "retention_bytes")]
    pub bytes: Option<u64>,
    /// Whether messages that a group has not handled yet are removed too, and counted as lost.
    /// Default: they are kept.
    #[serde(rename = "retention_hard")]
    pub hard: bool,
    /// Whether messages are removed as soon as every group has handled them. Default: they are kept
    /// as long as the rest.
    #[serde(rename = "prune_handled")]
    pub handled: bool,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            body_limit: 4 * 1024 * 1024,
            max_attempts: 16,
            max_crashes: 3,
            retry: RetryPolicy::default(),
            max_run_time: None,
            on_done: OnDone::Delete,
            keep_dead: None,
            dead_letter_topic: None,
            ledger_window: None,
            max_depth: None,
            max_bytes: None,
            when_full: WhenFull::default(),
            limits: Limits::default(),
            searchable: None,
            dedupe_window: None,
            retention: Retention::default(),
            trace: Sampling::OFF,
            filter: HeaderFilter::default(),
        }
    }
}

/// How long a producer's lane relies on its last read of a topic, which saves a send a round trip:
/// a rule, a lower limit or a deletion takes effect within this time.
pub const TOPIC_KNOWN_FOR: Duration = Duration::from_secs(1);

/// The same for a topic that has a limit: what is sent until the next read may exceed it.
pub const LIMITED_TOPIC_KNOWN_FOR: Duration = Duration::from_millis(250);
/// What a topic does with its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TopicKind {
    /// Each message is handled by one consumer; its row lives until it is settled.
    Queue,
    /// Messages stay in a log, which groups read.
    Stream {
        /// How many partitions the log has.
        partitions: u32,
    },
    /// It is a group of a stream: messages that it could not handle are in this topic.
    Group {
        /// The stream that it reads.
        stream: TopicId,
        /// Whether each partition is handled one message after the other.
        ordered: bool,
    },
    /// It is a group of a stream, every member of which gets every message: messages that a member
    /// could not handle are dead letters in this topic.
    Broadcast {
        /// The stream that it reads.
        stream: TopicId,
        /// Where a new member begins.
        start: OffsetSpec,
    },
}

/// A topic as stored in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Topic {
    /// Its number.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// What it does with its messages.
    #[serde(flatten)]
    pub kind: TopicKind,
    /// Its owner's settings.
    #[serde(flatten)]
    pub settings: TopicSettings,
    /// Its own rule.
    pub access: Access,
    /// The rule in effect: its own combined with the switch for all topics. For claims of a group,
    /// whose messages come from a stream, the stream's rule applies too.
    pub effective_access: Access,
    /// The last measurement, if it has a limit and a sweeper measures it.
    pub backlog: Option<Backlog>,
}

impl Topic {
    /// How long a producer's lane relies on its last read of the topic.
    #[must_use]
    pub fn known_for(&self) -> Duration {
        let limited = self.settings.max_depth.or(self.settings.max_bytes).is_some();
        if limited { LIMITED_TOPIC_KNOWN_FOR } else { TOPIC_KNOWN_FOR }
    }
}

impl Topic {
    /// Whether its messages stay in a log.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(self.kind, TopicKind::Stream { .. })
    }

    /// The rule that refuses producers, if one does. The switch is named only if the topic's own
    /// rule does not refuse them.
    #[must_use]
    pub fn closed_by(&self) -> Option<ClosedBy> {
        match (self.access.may_enqueue(), self.effective_access.may_enqueue()) {
            (false, _) => Some(ClosedBy::Topic),
            (true, false) => Some(ClosedBy::Switch),
            (true, true) => None,
        }
    }

    /// # Errors
    /// [`Error::TopicPaused`] if it refuses producers.
    pub(crate) fn refuse_closed(&self) -> Result<()> {
        match self.closed_by() {
            Some(by) => Err(Error::TopicPaused { topic: self.name.clone(), by }),
            None => Ok(()),
        }
    }

    /// The group, if it is one whose members share the messages.
    #[must_use]
    pub fn group(&self) -> Option<Group> {
        match self.kind {
            TopicKind::Group { stream, ordered } => Some(Group { id: self.id, stream, ordered }),
            TopicKind::Queue | TopicKind::Stream { .. } | TopicKind::Broadcast { .. } => None,
        }
    }

    /// The broadcast group, if it is one.
    #[must_use]
    pub fn broadcast(&self) -> Option<Broadcast> {
        match self.kind {
            TopicKind::Broadcast { stream, start } => {
                Some(Broadcast { id: self.id, stream, start })
            }
            TopicKind::Queue | TopicKind::Stream { .. } | TopicKind::Group { .. } => None,
        }
    }

    /// The stream, if the topic is a group of any kind.
    #[must_use]
    pub fn of_stream(&self) -> Option<TopicId> {
        match self.kind {
            TopicKind::Group { stream, .. } | TopicKind::Broadcast { stream, .. } => Some(stream),
            TopicKind::Queue | TopicKind::Stream { .. } => None,
        }
    }
}
