//! Erasing a message of a stream: its body and headers are overwritten in the log. It keeps its
//! offset, its id and its keys, and counts as expired, so that groups that have not read it pass
//! over it. The copies that groups have made of it are named, for a person to remove.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::{Link, Session};
use crate::find::{Answer, PageToken, Query, Searched, find};
use crate::model::found::{Filter, Found, State, StateWord};
use crate::model::{Change, Error, MsgId, Position, Result, RowId, Topic, TopicName};
use crate::store::find::{Bodies, TablePosition, by_ids};
use crate::store::inspect::MessageTable;
use crate::store::stream::log::{self, Erased};
use crate::store::stream::partition::{self, Partition};
use crate::store::topic as topics;

/// Why a message cannot be erased.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ErasureError {
    /// The topic is a queue.
    #[error("'{0}' is a queue: remove it by `rowmq cancel {0} {1}` or `rowmq dead purge {0} {1}`.")]
    OfQueue(TopicName, MsgId),
    /// The first is a group of the second, a stream.
    #[error("'{0}' is a group: erase the message in its stream, by `rowmq erase {1} {2}`.")]
    OfGroup(TopicName, TopicName, MsgId),
    /// The message is in the stream's inbox.
    #[error("The message {1} of '{0}' has no offset yet: repeat the command in a second.")]
    NoOffset(TopicName, MsgId),
    /// The message is a delayed one of the stream.
    #[error("The message {1} of '{0}' waits for its time: `rowmq cancel {0} {1}` removes it.")]
    Waits(TopicName, MsgId),
    /// Neither the log of the stream nor a group has the message.
    #[error("The log of '{0}' has no message {1}, and there is no copy of it: check the id.")]
    Unknown(TopicName, MsgId),
    /// The database failed, or the account may not write the audit.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The result of an erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Erasure {
    /// The stream.
    pub topic: TopicName,
    /// The message.
    pub msg_id: MsgId,
    /// Where the log has it; several if it was enqueued more than once, none if retention has
    /// removed it.
    pub positions: Vec<Position>,
    /// In how many positions it was erased now; in the others it was erased before.
    pub erased: usize,
    /// An offset of each damaged page of the log that may hold it, or does. Nothing in these pages
    /// can be erased.
    pub damaged: Vec<Position>,
    /// What else there is of it.
    pub copies: Vec<CopyLeft>,
}

/// Where one or several copies of an erased message are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct CopyLeft {
    /// The topic: a group, or one that takes a group's dead letters.
    pub topic: String,
    /// Its state; [`StateWord::Logged`] also for the inbox of a stream.
    pub state: StateWord,
    /// Until when it is kept, if it was handled or discarded.
    pub keep_until: Option<DateTime<Utc>>,
}

impl CopyLeft {
    /// Describes what a search found in a topic, a stream or not; `None` for a message without
    /// content.
    fn of(found: Found, in_stream: bool) -> Option<Self> {
        let row = found.trace.as_ref()?;
        if row.body_bytes == 0 && row.headers.is_empty() {
            return None;
        }
        let keep_until = match found.state {
            State::Done { keep_until, .. }
            | State::Repeated { keep_until, .. }
            | State::Discarded { keep_until, .. } => Some(keep_until),
            _ => None,
        };
        let word = found.state.word();
        let state = if in_stream && word == StateWord::Ready { StateWord::Logged } else { word };
        Some(Self { topic: found.topic, state, keep_until })
    }
}

/// Checks that the topic has a log to erase the message from.
///
/// # Errors
/// [`ErasureError::OfQueue`], [`ErasureError::OfGroup`].
pub fn check(topic: &Topic, id: MsgId) -> Result<(), ErasureError> {
    let name = topic.name.clone();
    match name.stream() {
        Some(stream) => Err(ErasureError::OfGroup(name, stream, id)),
        None if topic.is_stream() => Ok(()),
        None => Err(ErasureError::OfQueue(name, id)),
    }
}

/// Erases the message from the stream's log, and finds its copies. Erasing it again changes
/// nothing, and finds the copies that are left. The audit records `by` if anything was erased.
///
/// # Errors
/// An [`ErasureError`]. Nothing is erased then, unless the database fails after the erasure.
pub async fn erase(
    session: &mut Session,
    stream: &Topic,
    id: MsgId,
    by: &Change,
) -> Result<Erasure, ErasureError> {
    check(stream, id)?;
    let mut inbox = within(session, stream, id).await?;
    inbox.retain(|found| found.state.word() != StateWord::Logged);
    // The log is read after the inbox, so that a message that gets its offset in between is not
    // missed.
    let Logged { mut positions, mut damaged } = logged(session, stream, id).await?;
    let topic = stream.name.clone();
    match inbox.first().filter(|_| positions.is_empty()).map(|found| found.state.word()) {
        Some(StateWord::Ready) => return Err(ErasureError::NoOffset(topic, id)),
        Some(StateWord::Scheduled) => return Err(ErasureError::Waits(topic, id)),
        _ => {}
    }
    let mut unreadable = HashSet::new();
    let overwrite = async |conn: &mut Link| {
        let mut erased = 0;
        for at in &positions {
            match log::erase(conn, stream.id, *at, id).await? {
                Erased::Now => erased += 1,
                Erased::Before => {}
                Erased::Damaged => {
                    unreadable.insert(*at);
                }
            }
        }
        Ok(erased)
    };
    let erased = by.make_counted(session, "erase the message", overwrite).await?;
    positions.retain(|at| !unreadable.contains(at));
    damaged.extend(unreadable);
    let copies = copies(session, stream, id, inbox).await?;
    if positions.is_empty() && damaged.is_empty() && copies.is_empty() {
        return Err(ErasureError::Unknown(topic, id));
    }
    Ok(Erasure { topic, msg_id: id, positions, erased, damaged, copies })
}

/// Finds the copies of a message; `inbox` is what was found in the stream itself, outside its log.
async fn copies(
    session: &mut Session,
    stream: &Topic,
    id: MsgId,
    inbox: Vec<Found>,
) -> Result<Vec<CopyLeft>> {
    // These are read before and after the ready copies, so that a copy that moves in between is not
    // missed.
    let mut copies = settled_or_scheduled(session, stream, id).await?;
    copies.extend(inbox.into_iter().filter_map(|found| CopyLeft::of(found, true)));
    for topic in receivers(session, stream).await? {
        let found = within(session, &topic, id).await?.into_iter();
        copies.extend(found.filter_map(|found| CopyLeft::of(found, topic.is_stream())));
    }
    copies.extend(settled_or_scheduled(session, stream, id).await?);
    let mut known = HashSet::new();
    copies.retain(|copy| known.insert(copy.clone()));
    Ok(copies)
}

/// Finds the scheduled, dead and archived copies, in whatever topic they are.
async fn settled_or_scheduled(
    session: &mut Session,
    stream: &Topic,
    id: MsgId,
) -> Result<Vec<CopyLeft>> {
    let read = async |conn: &mut Link| by_ids(conn, stream.id, &[id], Bodies::Leave).await;
    let found = session.call("find messages by their ids", read).await?;
    Ok(found.into_iter().filter_map(|(_, found)| CopyLeft::of(found, false)).collect())
}

/// Lists the topics that get copies of the stream's messages: its groups, the topics that take
/// their dead letters, and so on from these topics.
async fn receivers(session: &mut Session, stream: &Topic) -> Result<Vec<Topic>> {
    let list = async |conn: &mut Link| topics::groups_of(conn, stream.id).await;
    let mut receivers = session.call("list the groups", list).await?;
    let mut at = 0;
    while let Some(topic) = receivers.get(at) {
        at += 1;
        let next = topic.settings.dead_letter_topic.clone();
        if topic.is_stream() {
            let id = topic.id;
            let list = async |conn: &mut Link| topics::groups_of(conn, id).await;
            receivers.extend(session.call("list the groups", list).await?);
        }
        let Some(next) = next else { continue };
        if !receivers.iter().chain([stream]).any(|known| known.name == next) {
            let read = async |conn: &mut Link| topics::find(conn, &next).await;
            receivers.extend(session.call("read the topic", read).await?);
        }
    }
    Ok(receivers)
}

/// Where the log may have a message.
struct Logged {
    positions: Vec<Position>,
    /// An offset of each damaged page.
    damaged: Vec<Position>,
}

/// Finds every position of the message in the stream's log. It reads the whole log: a sender may
/// have stored the message again at any time.
async fn logged(session: &mut Session, stream: &Topic, id: MsgId) -> Result<Logged> {
    let read = async |conn: &mut Link| partition::all(conn, stream.id).await;
    let partitions = session.call("read the partitions", read).await?;
    let end = |partition: &Partition| Position { partition: partition.no, offset: partition.next };
    let after = Some(PageToken::Log(partitions.iter().map(end).collect()));
    let filter = Filter { msg_id: Some(id), ..Filter::default() };
    let mut query = Query { filter, after, limit: 100, bodies: Bodies::Leave };
    let (mut positions, mut damaged) = (Vec::new(), Vec::new());
    while query.after.is_some() {
        let Answer { found, searched, next } = find(session, stream, &query).await?;
        positions.extend(found.into_iter().filter_map(|found| match found.state {
            State::Logged { position, .. } => Some(position),
            _ => None,
        }));
        damaged.extend(searched.into_iter().filter_map(|searched| match searched {
            Searched::DamagedPage { position } => Some(position),
            _ => None,
        }));
        query.after = next;
    }
    Ok(Logged { positions, damaged })
}

/// Finds the ready and claimed messages with this id in a topic; in a stream also those that wait,
/// and those in its log.
async fn within(session: &mut Session, topic: &Topic, id: MsgId) -> Result<Vec<Found>> {
    let start = TablePosition { table: MessageTable::Ready, at: 0, row: RowId(0) };
    // A searchable topic is also read row by row: its lookup has only one message for each id.
    let after = (!topic.is_stream()).then(|| PageToken::Tables(vec![start]));
    let filter = Filter { msg_id: Some(id), ..Filter::default() };
    let mut query = Query { filter, after, limit: 100, bodies: Bodies::Leave };
    let mut found = Vec::new();
    loop {
        let answer = find(session, topic, &query).await?;
        found.extend(answer.found.into_iter().filter(|one| one.topic == topic.name.as_str()));
        match answer.next {
            Some(next) => query.after = Some(next),
            None => return Ok(found),
        }
    }
}
