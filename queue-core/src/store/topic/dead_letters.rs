//! Where a topic's dead letters go.

use diesel::prelude::*;

use super::find;
use super::row::other;
use crate::connection::Connection;
use crate::model::{Error, Result, TopicId, TopicName, TopicSettings};
use crate::schema::queue_topic;
use crate::store::select;

/// The longest chain of dead-letter topics: a longer one is taken for a circle.
const DEAD_LETTER_CHAIN: usize = 16;

/// UNIQUE (name), once for each topic of the chain: finds the number of the topic that the settings
/// name for dead letters. Refuses one whose chain leads back to `name`: the letters would circle
/// for ever.
pub(super) async fn dead_letter_topic_id(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Option<TopicId>> {
    let Some(first) = &settings.dead_letter_topic else { return Ok(None) };
    let (mut id, mut next) = (None, Some(first.clone()));
    for _ in 0..DEAD_LETTER_CHAIN {
        let Some(topic) = next.take_if(|topic| topic != name) else { break };
        let found = find(conn, &topic).await?.ok_or(Error::UnknownTopic { topic })?;
        id = id.or(Some(found.id));
        next = found.settings.dead_letter_topic;
    }
    match next {
        None => Ok(id),
        Some(_) => Err(Error::Setting {
            name: "dead_letter_topic",
            value: format!("'{first}' for '{name}'"),
            fix: "it must be another topic whose own dead letters do not come back, within 16 steps",
        }),
    }
}

/// Where a topic's dead letters go, if it does not keep them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTopic {
    /// The topic they are enqueued in.
    pub id: TopicId,
    /// The name of the topic they come from.
    pub from: TopicName,
    /// Which of the two topics are searchable.
    pub searchable: Vec<TopicId>,
    /// Whether it is a stream, in which every message has the same priority.
    pub is_stream: bool,
}

/// PRIMARY: reads where the topic's dead letters go. The transaction that moves them reads it: a
/// process may have cached a topic that is gone.
pub async fn dead_letter_topic(
    conn: &mut impl Connection,
    topic: TopicId,
) -> Result<Option<DeadLetterTopic>> {
    let target = other.field(queue_topic::id);
    let query = queue_topic::table
        .find(topic)
        .inner_join(other.on(target.nullable().eq(queue_topic::dead_letter_topic_id)))
        .select((
            target,
            queue_topic::name,
            queue_topic::searchable_ms,
            other.field(queue_topic::searchable_ms),
            other.field(queue_topic::kind).eq(&b"stream"[..]),
        ));
    type Row = (TopicId, TopicName, Option<u64>, Option<u64>, bool);
    let rows: Vec<Row> = select(conn, "read where dead letters go", query).await?;
    let found = |(id, from, here_ms, there_ms, is_stream): Row| {
        let (here, there) = (here_ms.map(|_| topic), there_ms.map(|_| id));
        DeadLetterTopic { id, from, searchable: here.into_iter().chain(there).collect(), is_stream }
    };
    Ok(rows.into_iter().next().map(found))
}
