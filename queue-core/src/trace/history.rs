//! Everything that is known of one message.

use serde::Serialize;

use crate::connection::{Link, Session};
use crate::find::{Query, Searched, find};
use crate::model::found::{Filter, Found, State};
use crate::model::trace::Record;
use crate::model::{GroupPart, MsgId, Position, Result, Sampling, Topic, TopicId, TopicName};
use crate::store::find::{Bodies, by_ids};
use crate::store::stream::search::part_of;
use crate::store::{topic as topics, trace as stored};

/// How many places of one message are searched for.
const PLACES: usize = 100;

/// Everything that is known of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct MessageHistory {
    /// The message.
    pub msg_id: MsgId,
    /// The topic that it was enqueued in, if that is known.
    pub topic: Option<TopicName>,
    /// Which of that topic's messages leave a trace now.
    pub sampling: Sampling,
    /// Whether this message does.
    pub sampled: bool,
    /// Its events, in order of time.
    pub events: Vec<Record>,
    /// Its places: in its topic, in the topics of a stream's groups, and in the stream's log.
    pub found: Vec<Found>,
    /// The state of each group of a stream for it.
    pub groups: Vec<Part>,
    /// What was searched in its topic to find it.
    pub searched: Vec<Searched>,
}

/// A group's state for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// The group.
    pub group: TopicName,
    /// The state.
    #[serde(flatten)]
    pub part: GroupPart,
}

impl MessageHistory {
    /// Its position in its stream.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.found.iter().find_map(|found| match found.state {
            State::Logged { position, .. } => Some(position),
            _ => None,
        })
    }
}

/// Collects everything that is known of the message. Without a topic, searches where message ids
/// alone find it: in its trace, and among the scheduled, the dead and the kept messages. Reads a
/// bounded number of rows, and locks none.
pub async fn tell(
    session: &mut Session,
    topic: Option<Topic>,
    id: MsgId,
) -> Result<MessageHistory> {
    let read = async |conn: &mut Link| stored::of_message(conn, id).await;
    let events = session.call("read the trace", read).await?;
    let topic = match topic {
        Some(topic) => Some(topic),
        None => topic_of(session, &events, id).await?,
    };
    let mut message = MessageHistory {
        msg_id: id,
        topic: None,
        sampling: Sampling::OFF,
        sampled: false,
        events,
        found: Vec::new(),
        groups: Vec::new(),
        searched: Vec::new(),
    };
    let Some(topic) = topic else { return Ok(message) };
    let topic = stream_of(session, topic).await?;
    message.sampling = topic.settings.trace;
    message.sampled = topic.settings.trace.takes(id);
    let answer = find(session, &topic, &query(id)).await?;
    (message.found, message.searched) = (answer.found, answer.searched);
    if topic.is_stream() {
        add_groups(session, &topic, &mut message).await?;
    }
    message.topic = Some(topic.name);
    Ok(message)
}

fn query(id: MsgId) -> Query {
    let filter = Filter { msg_id: Some(id), ..Filter::default() };
    Query { filter, after: None, limit: PLACES, bodies: Bodies::Leave }
}

/// Finds the topic of a message by its id alone.
async fn topic_of(session: &mut Session, events: &[Record], id: MsgId) -> Result<Option<Topic>> {
    let known = match events.first() {
        Some(event) => Some(event.topic_id),
        None => {
            let ids = [id];
            let read = async |conn: &mut Link| by_ids(conn, TopicId(0), &ids, Bodies::Leave).await;
            let found = session.call("find messages by their ids", read).await?;
            found.first().map(|(topic, _)| *topic)
        }
    };
    let Some(known) = known else { return Ok(None) };
    session.call("read the topic", async |conn| topics::by_id(conn, known).await).await
}

/// Returns the stream that a group reads; any other topic itself.
async fn stream_of(session: &mut Session, topic: Topic) -> Result<Topic> {
    let Some(group) = topic.group() else { return Ok(topic) };
    let read = async |conn: &mut Link| topics::by_id(conn, group.stream).await;
    Ok(session.call("read the topic", read).await?.unwrap_or(topic))
}

/// Adds the state of each of the stream's groups for the message, and its places in their own
/// topics.
async fn add_groups(
    session: &mut Session,
    stream: &Topic,
    message: &mut MessageHistory,
) -> Result<()> {
    let position = message.position();
    let list = async |conn: &mut Link| topics::groups_of(conn, stream.id).await;
    for topic in session.call("list the groups", list).await? {
        let Some(group) = topic.group() else { continue };
        if let Some(at) = position {
            let read = async |conn: &mut Link| part_of(conn, group, at).await;
            let part = session.call("read what a group has made of it", read).await?;
            let group = topic.name.clone();
            message.groups.extend(part.map(|part| Part { group, part }));
        }
        let is_here = |found: &Found| found.topic == topic.name.as_str();
        message.found.retain(|found| !is_here(found));
        let found = find(session, &topic, &query(message.msg_id)).await?.found;
        message.found.extend(found.into_iter().filter(is_here));
    }
    Ok(())
}
