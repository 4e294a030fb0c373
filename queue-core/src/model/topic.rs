use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Access, Backlog, Broadcast, ClosedBy, Error, Group, HeaderFilter, Limits, Place, Result,
    RetryPolicy, Sampling, TopicName, WhenFull,
};

/// A topic's number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct TopicId(pub u32);

/// What becomes of a message's row once it is handled.
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

/// What a topic's owner can set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct TopicSettings {
    /// The largest body, in bytes. Default 4 MiB.
    pub body_limit: u32,
    /// Failures after which a message is dead-lettered. Default 16.
    pub max_attempts: u32,
    /// Crashes of a worker that held the message alone after which it is dead-lettered. Default 3.
    pub max_crashes: u32,
    /// How long a failed message waits. Default 1 s, doubling, at most 1 h.
    pub retry: RetryPolicy,
    /// The longest run of a handler. Default none: a claim lives as long as its owner.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub max_run_time: Option<Duration>,
    /// What becomes of handled messages. Default: deleted.
    pub on_done: OnDone,
    /// How long dead letters are kept. Default none: until somebody purges or redrives them.
    #[serde(default, with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub keep_dead: Option<Duration>,
    /// The topic that this one's dead letters are enqueued in. Default none: they stay where
    /// `rowmq dead` finds them.
    pub dead_letter_topic: Option<TopicName>,
    /// For how long the biz id of a handled message is remembered: another message with it is
    /// acked without being handled. Default none: biz ids are carried and not looked at.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub ledger_window: Option<Duration>,
    /// So many messages, ready and claimed, make the topic full. Default none.
    pub max_depth: Option<NonZeroU64>,
    /// So many bytes of bodies and headers, ready and claimed, make the topic full. Default none.
    pub max_bytes: Option<NonZeroU64>,
    /// What producers do while the topic is full. Default: they wait.
    pub when_full: WhenFull,
    /// What bounds its claims over all consumers. Default: nothing.
    #[serde(flatten)]
    pub limits: Limits,
    /// For how long after it was enqueued a message can be looked up by its ids, its key and its
    /// time; longer where it still exists. Default none: a search reads a bounded number of rows.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub searchable: Option<Duration>,
    /// For how long a message id that its sender gave is remembered: another message with it is
    /// not stored. Default none: two messages may have one id.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub dedupe_window: Option<Duration>,
    /// How long a stream keeps its messages. Default: for ever.
    #[serde(flatten)]
    pub retention: Retention,
    /// Which messages leave a trace. Of a group: what its stream says. Default: none.
    pub trace: Sampling,
    /// Which messages of its stream a group wants. Default: all.
    pub filter: HeaderFilter,
}

impl TopicSettings {
    /// What is other than in `before`, for people: `max_attempts 5, retry fixed 30s`. Empty where
    /// nothing is.
    #[must_use]
    pub fn unlike(&self, before: &Self) -> String {
        let fields = |settings: &Self| match serde_json::to_value(settings) {
            Ok(Value::Object(fields)) => fields,
            // Names and values, which JSON can always hold.
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

/// What a stream removes of its log, oldest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Retention {
    /// Messages that got their offset longer ago. Default: none.
    #[serde(rename = "retention", with = "humantime_serde")]
    #[cfg_attr(feature = "json-schema", schemars(with = "Option<String>"))]
    pub time: Option<Duration>,
    /// What exceeds so many bytes of bodies and headers, as the newest messages let one expect.
    /// Default: nothing.
    #[serde(rename = "retention_bytes")]
    pub bytes: Option<u64>,
    /// Also what a group has not handled yet, which is counted as lost. Default: that waits.
    #[serde(rename = "retention_hard")]
    pub hard: bool,
    /// At once what every group has handled. Default: that is kept as long as the rest.
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

/// For how long a producer's lane takes a topic for what it was when it was last read, which saves
/// a send a round trip: a rule, a lower limit or a deletion holds within this time.
pub const TOPIC_KNOWN_FOR: Duration = Duration::from_secs(1);

/// The same for a topic that has a limit: what is sent meanwhile may go beyond it.
pub const LIMITED_TOPIC_KNOWN_FOR: Duration = Duration::from_millis(250);
/// What a topic does with its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TopicKind {
    /// Each is handled by one consumer; its row lives until it is settled.
    Queue,
    /// They stay in a log, which groups read.
    Stream {
        /// How many partitions the log has.
        partitions: u32,
    },
    /// It is a group of a stream: what it could not handle lies here.
    Group {
        /// The stream that it reads.
        stream: TopicId,
        /// Whether each partition is handled one message after the other.
        ordered: bool,
    },
    /// It is a group of a stream, every member of which gets every message: what a member could not
    /// handle lies dead here.
    Broadcast {
        /// The stream that it reads.
        stream: TopicId,
        /// Where a new member begins.
        start: Place,
    },
}

/// A topic as the database has it.
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
    /// What its owner set.
    #[serde(flatten)]
    pub settings: TopicSettings,
    /// Its own rule.
    pub access: Access,
    /// What holds now: its own rule and that of the switch for all topics, and of a group, whose
    /// messages come from a stream, that of the stream for its claims.
    pub effective_access: Access,
    /// What was measured of it last, if it has a limit and somebody measures.
    pub backlog: Option<Backlog>,
}

impl Topic {
    /// For how long a producer's lane takes it for what it was when it was read.
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

    /// Whose rule refuses producers, if one does. That of the switch is named only where the
    /// topic's own does not refuse them.
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

    /// The group that it is, if it is one whose members share the messages.
    #[must_use]
    pub fn group(&self) -> Option<Group> {
        match self.kind {
            TopicKind::Group { stream, ordered } => Some(Group { id: self.id, stream, ordered }),
            TopicKind::Queue | TopicKind::Stream { .. } | TopicKind::Broadcast { .. } => None,
        }
    }

    /// The broadcast group that it is, if it is one.
    #[must_use]
    pub fn broadcast(&self) -> Option<Broadcast> {
        match self.kind {
            TopicKind::Broadcast { stream, start } => {
                Some(Broadcast { id: self.id, stream, start })
            }
            TopicKind::Queue | TopicKind::Stream { .. } | TopicKind::Group { .. } => None,
        }
    }

    /// The stream that it is a group of, if it is a group of any kind.
    #[must_use]
    pub fn of_stream(&self) -> Option<TopicId> {
        match self.kind {
            TopicKind::Group { stream, .. } | TopicKind::Broadcast { stream, .. } => Some(stream),
            TopicKind::Queue | TopicKind::Stream { .. } => None,
        }
    }
}
