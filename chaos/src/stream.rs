//! The stream of a run, and its readers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use rowmq_core::model::{
    HeaderFilter, OffsetSpec, Retention, RetryPolicy, Sampling, TopicSettings,
};
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{AsyncMysqlConnection, TopicName};

use crate::tag::Tag;

/// Its name.
pub(crate) const STREAM: &str = "stream";

/// More than a member may claim from at once, and fewer than there are keys.
pub(crate) const PARTITIONS: u32 = 3;

/// The number of keys, which messages take in turn; after each turn one message has none.
const KEYS: u64 = 16;

/// How long messages are kept. Older ones that every group has handled are deleted, some of them
/// within a run of a minute.
const KEPT: Duration = Duration::from_secs(30);

/// The wait before a retry: a failed message in an ordered group holds up others.
const RETRY: Duration = Duration::from_millis(100);

/// The broadcast group, each of whose members reads everything.
pub(crate) const BROADCAST: &str = "stream@cache";

/// The header that a group filters by.
pub(crate) const KIND: &str = "kind";

/// The values of that header, which messages take in turn; after each turn one message has none.
const KINDS: [&str; 3] = ["a", "b", "c"];

/// A group of the stream, or a member of its broadcast group. Each gets every message, except the
/// filtered group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Without an order.
    Plain,
    /// One message of a partition after the other.
    Ordered,
    /// Handled in transactions that write an effect for each message. It is never reset.
    Booked,
    /// Wants some of the messages, by a header.
    Filtered,
    /// A member, of this name, of the broadcast group.
    Member(Name),
}

/// The names of the members of the broadcast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Name {
    First,
    Second,
    Third,
}

impl Group {
    /// The groups that claim.
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Ordered, Self::Booked, Self::Filtered];

    /// The members that each read everything; a run with few consumers has fewer.
    pub(crate) const MEMBERS: [Self; 3] =
        [Self::Member(Name::First), Self::Member(Name::Second), Self::Member(Name::Third)];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ordered => "ordered",
            Self::Booked => "booked",
            Self::Filtered => "filtered",
            Self::Member(Name::First) => "member-1",
            Self::Member(Name::Second) => "member-2",
            Self::Member(Name::Third) => "member-3",
        }
    }

    /// Returns the name under which it is consumed.
    pub(crate) fn topic(self) -> String {
        if self.is_member() { BROADCAST.to_owned() } else { format!("{STREAM}@{}", self.word()) }
    }

    /// Returns the group that is consumed under this name; for the broadcast group, the first
    /// member.
    pub(crate) fn of_topic(name: &str) -> Option<Self> {
        Self::all().find(|group| group.topic() == name)
    }

    fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::MEMBERS)
    }

    /// Returns whether it is a member of the broadcast group.
    pub(crate) fn is_member(self) -> bool {
        matches!(self, Self::Member(_))
    }

    /// Returns whether it is to get the message.
    pub(crate) fn wants(self, tag: Tag) -> bool {
        self != Self::Filtered || matches!(kind_of(tag), Some("a" | "b"))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Group {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let found = Self::all().find(|group| group.word() == text);
        found.with_context(|| format!("{text:?} is no group"))
    }
}

/// A message as one of its readers has it: the consumers of a queue, or one group of a stream. Each
/// reader handles it separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) tag: Tag,
    pub(crate) group: Option<Group>,
}

impl Share {
    /// Returns the share of a message that was delivered under this name.
    pub(crate) fn of(tag: Tag, topic: &str) -> Self {
        Self { tag, group: Group::of_topic(topic) }
    }

    /// Returns the same share for a consumer that is this member of the broadcast group.
    pub(crate) fn with(self, member: Option<Group>) -> Self {
        let group = self.group.map(|group| member.filter(|_| group.is_member()).unwrap_or(group));
        Self { group, ..self }
    }
}

impl From<Tag> for Share {
    fn from(tag: Tag) -> Self {
        Self { tag, group: None }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            Some(group) => write!(f, "{}@{group}", self.tag),
            None => self.tag.fmt(f),
        }
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.split_once('@') {
            Some((tag, group)) => Ok(Self { tag: tag.parse()?, group: Some(group.parse()?) }),
            None => Ok(text.parse::<Tag>()?.into()),
        }
    }
}

/// Returns the key of a message of the stream.
pub(crate) fn key_of(tag: Tag) -> Option<String> {
    let nth = tag.seq % (KEYS + 1);
    (nth < KEYS).then(|| format!("key {nth}"))
}

/// Returns the header [`KIND`] of a message of the stream, if it has one.
pub(crate) fn kind_of(tag: Tag) -> Option<&'static str> {
    let nth = tag.seq % (KINDS.len() as u64 + 1);
    KINDS.get(usize::try_from(nth).ok()?).copied()
}

/// Creates the stream and its groups.
pub(crate) async fn create(conn: &mut AsyncMysqlConnection) -> anyhow::Result<()> {
    let stream = TopicName::new(STREAM)?;
    let retention = Retention { time: Some(KEPT), ..Retention::default() };
    let settings = TopicSettings { retention, trace: Sampling::ALL, ..TopicSettings::default() };
    let retry = RetryPolicy::Fixed(RETRY);
    let of_group = TopicSettings { retry, ..TopicSettings::default() };
    create_stream(conn, &stream, PARTITIONS, &settings).await?;
    for group in Group::ALL {
        let name = TopicName::new(group.topic())?;
        let ordered = group == Group::Ordered;
        let mut settings = of_group.clone();
        if group == Group::Filtered {
            settings.filter = HeaderFilter::from(vec![format!("{KIND}=a,b").parse()?]);
        }
        create_group(conn, &name, ordered, OffsetSpec::Earliest, &settings).await?;
    }
    // Whenever a member joins, it gets the earlier messages too.
    create_broadcast(conn, &TopicName::new(BROADCAST)?, OffsetSpec::Earliest, &of_group).await?;
    Ok(())
}
