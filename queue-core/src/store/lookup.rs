//! The lookup: what was enqueued in searchable topics, by what users search for. It does not record
//! a message's state, only where to look; [`super::find`] looks there.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::prelude::*;

use super::enqueue::is_kept;
use super::moment::{LATEST, MOMENT, micros};
use super::row_set::{LIST_LIMIT, placeholders};
use super::scheduled::Due;
use super::{Statement, execute, execute_surely, load, select, write_surely};
use crate::connection::{Connection, row};
use crate::model::{Moment, MsgId, NewMessage, Result, RowId, TopicId};
use crate::schema::{queue_lookup, queue_topic};

/// Where the preceding statement put the messages of a lookup's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// In the hot table, by one INSERT of this many rows in this order: their ids are consecutive,
    /// on both servers and in every `innodb_autoinc_lock_mode` (*run*).
    Ready,
    /// Elsewhere.
    Later,
}

/// PRIMARY: enters messages that were just enqueued. If several have one id, the last counts.
pub async fn insert(
    conn: &mut impl Connection,
    topic: TopicId,
    messages: &[NewMessage],
    placed: Placed,
) -> Result<()> {
    tracing::trace!(step = "insert");
    let row = match placed {
        Placed::Ready => {
            "(?, ?, LAST_INSERT_ID() + ? * @@auto_increment_increment, UTC_TIMESTAMP(6), ?, ?), "
        }
        Placed::Later => "(?, ?, NULL, UTC_TIMESTAMP(6), ?, ?), ",
    };
    let mut text = "INSERT INTO queue_lookup (topic_id, msg_id, row_id, enqueued_at, biz_id, \
         ordering_key) VALUES "
        .to_owned();
    text.push_str(&row.repeat(messages.len()));
    text.truncate(text.len() - 2);
    text.push_str(
        " ON DUPLICATE KEY UPDATE row_id = VALUES(row_id), enqueued_at = VALUES(enqueued_at)",
    );
    let mut statement = Statement::new(text).once(!is_kept(messages.len()));
    for (message, at) in messages.iter().zip(0_u64..) {
        statement = statement.number(topic.0).bytes(message.msg_id.as_bytes());
        if placed == Placed::Ready {
            statement = statement.number(at);
        }
        statement =
            statement.maybe_bytes(message.biz_id.as_deref()).maybe_bytes(message.key.as_deref());
    }
    execute(conn, "enqueue: enter into the lookup", statement).await?;
    Ok(())
}

/// PRIMARY: records that a message was replaced by another, with the other's business id and key.
pub async fn replace(
    conn: &mut impl Connection,
    topic: TopicId,
    replaced: MsgId,
    by: &NewMessage,
) -> Result<()> {
    let statement = diesel::update(queue_lookup::table.find((topic, replaced))).set((
        queue_lookup::biz_id.eq(by.biz_id.as_deref()),
        queue_lookup::ordering_key.eq(by.key.as_deref()),
    ));
    write_surely(conn, "enqueue: replace in the lookup", statement).await?;
    Ok(())
}

/// KEY (id) of the messages, forced, from `first` on: records in the lookup of `topic` the rows of
/// messages that were just moved to `now_in`; `first` is the lowest of these rows. Messages that
/// were not in the lookup are entered. A move gives ids in order, but ids of other sessions may lie
/// between them: the read ends with the last of these messages.
pub async fn follow(
    conn: &mut impl Connection,
    topic: TopicId,
    now_in: TopicId,
    first: RowId,
    moved: &[MsgId],
) -> Result<()> {
    for some in moved.chunks(LIST_LIMIT) {
        let n = some.len().next_power_of_two();
        let mut statement = Statement::new(format!(
            "INSERT INTO queue_lookup (topic_id, msg_id, row_id, enqueued_at, biz_id, \
             ordering_key) SELECT ?, msg_id, id, enqueued_at, biz_id, ordering_key \
             FROM queue_message FORCE INDEX (queue_message_id) WHERE id >= ? AND topic_id = ? \
             AND msg_id IN ({}) ORDER BY id LIMIT ? \
             ON DUPLICATE KEY UPDATE row_id = VALUES(row_id)",
            placeholders(n)
        ))
        .number(topic.0)
        .number(first.0)
        .number(now_in.0);
        for id in padded(some, n) {
            statement = statement.bytes(id.as_bytes().to_vec());
        }
        let statement = statement.number(some.len() as u64);
        execute_surely(conn, "follow moved messages in the lookup", statement).await?;
    }
    Ok(())
}

/// As [`follow`], for a promotion.
pub async fn follow_promoted(conn: &mut impl Connection, first: RowId, due: &[Due]) -> Result<()> {
    let mut moved: BTreeMap<TopicId, Vec<MsgId>> = BTreeMap::new();
    for (topic, id) in due.iter().filter_map(|due| Some((due.topic, due.searchable?))) {
        moved.entry(topic).or_default().push(id);
    }
    for (topic, ids) in moved {
        follow(conn, topic, topic, first, &ids).await?;
    }
    Ok(())
}

/// PRIMARY of the topics: returns whether the topic's messages are entered into the lookup.
pub async fn is_kept_for(conn: &mut impl Connection, topic: TopicId) -> Result<bool> {
    let query = queue_topic::table.find(topic).select(queue_topic::searchable_ms.is_not_null());
    let rows: Vec<bool> = select(conn, "read whether the topic is searchable", query).await?;
    Ok(rows.first() == Some(&true))
}

/// Pads a list of ids to `n` with its last one.
pub(super) fn padded(ids: &[MsgId], n: usize) -> impl Iterator<Item = &MsgId> {
    ids.iter().chain(ids.last().into_iter().cycle()).take(n)
}

/// What to look up: decides which index is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By<'q> {
    /// The message with this id.
    MsgId(MsgId),
    /// Those with this business id, in the order of their message ids.
    BizId(&'q [u8]),
    /// Those with this ordering key, in the order of their message ids.
    Key(&'q [u8]),
    /// Those that were enqueued from the first time on and before the second, in this order.
    Time(Option<DateTime<Utc>>, Option<DateTime<Utc>>),
}

/// A row of the lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The message.
    pub msg_id: MsgId,
    /// Server time at which it was enqueued.
    pub enqueued_at: NaiveDateTime,
    /// Its business id.
    pub biz_id: Option<Vec<u8>>,
    /// Its ordering key.
    pub key: Option<Vec<u8>>,
}

row! { Entry { msg_id, enqueued_at, biz_id, key } }

/// PRIMARY or a KEY of the lookup, forced: reads the next entries after `after`, at most `limit`.
pub async fn entries(
    conn: &mut impl Connection,
    topic: TopicId,
    by: By<'_>,
    after: Option<(DateTime<Utc>, MsgId)>,
    limit: u32,
) -> Result<Vec<Entry>> {
    let (index, condition, order) = match by {
        By::MsgId(_) => ("PRIMARY", "msg_id = ? AND msg_id > ?", "msg_id"),
        By::BizId(_) => ("queue_lookup_biz", "biz_id = ? AND msg_id > ?", "biz_id, msg_id"),
        By::Key(_) => {
            ("queue_lookup_key", "ordering_key = ? AND msg_id > ?", "ordering_key, msg_id")
        }
        By::Time(..) => ("queue_lookup_time", "", "enqueued_at, msg_id"),
    };
    let condition = if let By::Time(..) = by {
        format!(
            "enqueued_at >= {MOMENT} AND enqueued_at < {MOMENT} AND (enqueued_at > {MOMENT} OR msg_id > ?)"
        )
    } else {
        condition.to_owned()
    };
    let mut statement = Statement::new(format!(
        "SELECT msg_id, enqueued_at, biz_id, ordering_key FROM queue_lookup FORCE INDEX ({index}) \
         WHERE topic_id = ? AND {condition} ORDER BY topic_id, {order} LIMIT ?"
    ))
    .number(topic.0);
    statement = match by {
        By::MsgId(id) => statement.bytes(id.as_bytes().to_vec()),
        By::BizId(bytes) | By::Key(bytes) => statement.bytes(bytes),
        By::Time(since, before) => {
            let since = after.map(|(at, _)| micros(at)).or(since.map(micros)).unwrap_or(0);
            statement.number(since).number(before.map_or(LATEST, micros)).number(since)
        }
    };
    let after = after.map_or_else(Vec::new, |(_, id)| id.as_bytes().to_vec());
    let statement = statement.bytes(after).number(limit);
    load(conn, "look up messages", statement).await
}

/// A topic that has rows in the lookup, and how long it keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The topic.
    pub topic: TopicId,
    /// How long after enqueue; `None`: no longer at all.
    pub time: Option<Duration>,
}

/// PRIMARY, one dive a topic: lists the topics that have rows in the lookup.
pub async fn topics(conn: &mut impl Connection) -> Result<Vec<Kept>> {
    let statement = Statement::new(
        "SELECT t.id AS topic_id, t.searchable_ms FROM queue_topic t WHERE EXISTS \
         (SELECT 1 FROM queue_lookup l FORCE INDEX (PRIMARY) WHERE l.topic_id = t.id)",
    );
    let rows: Vec<(TopicId, Option<u64>)> =
        load(conn, "list the topics of the lookup", statement).await?;
    let kept =
        |(topic, ms): (TopicId, Option<u64>)| Kept { topic, time: ms.map(Duration::from_millis) };
    Ok(rows.into_iter().map(kept).collect())
}

/// A place in the lookup of one topic, in order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupPosition {
    enqueued_at: NaiveDateTime,
    msg_id: MsgId,
}

/// Consecutive entries of a topic whose time is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aged {
    /// Those whose message is in no table any more.
    pub ended: Vec<MsgId>,
    /// Where the next stretch begins; `None` at the end.
    pub next: Option<LookupPosition>,
}

/// KEY (`topic_id`, `enqueued_at`), forced, and for each entry a dive into each table: reads
/// entries that are older than `time`, at most `limit`. All in one snapshot, in which a message
/// that is being moved is in one place.
pub async fn aged(
    conn: &mut impl Connection,
    topic: TopicId,
    time: Duration,
    from: Option<LookupPosition>,
    limit: u32,
) -> Result<Aged> {
    let start = from.map_or(0, |place| micros(place.enqueued_at.and_utc()));
    let after = from.map_or_else(Vec::new, |place| place.msg_id.as_bytes().to_vec());
    let statement = Statement::new(format!(
        "SELECT l.msg_id, l.enqueued_at, NOT (EXISTS (SELECT 1 FROM queue_message m \
         FORCE INDEX (queue_message_id) WHERE m.id = l.row_id AND m.msg_id = l.msg_id) \
         OR EXISTS (SELECT 1 FROM queue_scheduled s FORCE INDEX (queue_scheduled_msg) \
         WHERE s.msg_id = l.msg_id) OR EXISTS (SELECT 1 FROM queue_dead d \
         FORCE INDEX (queue_dead_msg) WHERE d.msg_id = l.msg_id) OR EXISTS (SELECT 1 \
         FROM queue_archive a FORCE INDEX (queue_archive_msg) WHERE a.msg_id = l.msg_id)) AS ended \
         FROM queue_lookup l FORCE INDEX (queue_lookup_time) WHERE l.topic_id = ? \
         AND l.enqueued_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
         AND l.enqueued_at >= {MOMENT} AND (l.enqueued_at > {MOMENT} OR l.msg_id > ?) \
         ORDER BY l.topic_id, l.enqueued_at, l.msg_id LIMIT ?"
    ))
    .number(topic.0)
    .number(Moment::After(time).micros())
    .number(start)
    .number(start)
    .bytes(after)
    .number(limit);
    let rows: Vec<(LookupPosition, bool)> = load(conn, "prune the lookup: look", statement).await?;
    let full = rows.len() >= limit as usize;
    let ended = rows.iter().filter(|(_, ended)| *ended);
    Ok(Aged {
        next: rows.last().filter(|_| full).map(|(place, _)| *place),
        ended: ended.map(|(place, _)| place.msg_id).collect(),
    })
}

row! { LookupPosition { msg_id, enqueued_at } }

/// PRIMARY, forced, each key by itself: removes entries that are older than `time`; an entry stays
/// if its id was enqueued again in the meantime.
pub async fn prune(
    conn: &mut impl Connection,
    topic: TopicId,
    time: Duration,
    ended: &[MsgId],
) -> Result<usize> {
    let ids: Vec<_> = ended.iter().map(|id| format!("\"{}\"", id.0.simple())).collect();
    let statement = Statement::new(
        "DELETE l FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS (id CHAR(32) PATH '$')) k \
         STRAIGHT_JOIN queue_lookup l FORCE INDEX (PRIMARY) ON l.topic_id = ? \
         AND l.msg_id = UNHEX(k.id) \
         WHERE l.enqueued_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND",
    )
    .bytes(format!("[{}]", ids.join(",")).into_bytes())
    .number(topic.0)
    .number(Moment::After(time).micros());
    execute(conn, "prune the lookup", statement).await
}

/// PRIMARY: removes up to `limit` entries of a topic that no longer needs them.
pub async fn drop_some(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_lookup WHERE topic_id = ? LIMIT ?");
    execute_surely(conn, "drop the lookup", statement.number(topic.0).number(limit)).await
}
