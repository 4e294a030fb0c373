//! The stream of a run, and those who read it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use queue_core::stream::group::{Place, create_group, create_stream};
use queue_core::topic::{Retention, RetryPolicy, TopicSettings};
use queue_core::{AsyncMysqlConnection, TopicName};

use crate::tag::Tag;

/// Its name.
pub(crate) const STREAM: &str = "stream";

/// More than a member may claim from at once, fewer than there are keys.
pub(crate) const PARTITIONS: u32 = 3;

/// Every message but each so many-th has one of as many keys.
const KEYS: u64 = 16;

/// What every group has handled, and is older, goes: some of it goes in a run of a minute.
const KEPT: Duration = Duration::from_secs(30);

/// The wait before a message is tried again: what fails in an ordered group holds up others.
const RETRY: Duration = Duration::from_millis(100);

/// A group of the stream. Each gets every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Without an order.
    Plain,
    /// One message of a partition after the other.
    Ordered,
    /// Handled in transactions that write an effect for each message. Nobody resets it.
    Booked,
}

impl Group {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Ordered, Self::Booked];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ordered => "ordered",
            Self::Booked => "booked",
        }
    }

    /// The name under which it is consumed.
    pub(crate) fn topic(self) -> String {
        format!("{STREAM}@{}", self.word())
    }

    /// The group that is consumed under this name.
    pub(crate) fn of_topic(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.topic() == name)
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
        let found = Self::ALL.into_iter().find(|group| group.word() == text);
        found.with_context(|| format!("{text:?} is no group"))
    }
}

/// The key of a message of the stream.
pub(crate) fn key_of(tag: Tag) -> Option<String> {
    let nth = tag.seq % (KEYS + 1);
    (nth < KEYS).then(|| format!("key {nth}"))
}

/// Makes the stream and its groups.
pub(crate) async fn create(conn: &mut AsyncMysqlConnection) -> anyhow::Result<()> {
    let stream = TopicName::new(STREAM)?;
    let retention = Retention { time: Some(KEPT), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    let retry = RetryPolicy::Fixed(RETRY);
    let of_group = TopicSettings { retry, ..TopicSettings::default() };
    create_stream(conn, &stream, PARTITIONS, &settings).await?;
    for group in Group::ALL {
        let name = TopicName::new(group.topic())?;
        let ordered = group == Group::Ordered;
        create_group(conn, &name, ordered, Place::Earliest, &of_group).await?;
    }
    Ok(())
}
