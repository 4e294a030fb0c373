//! Reading the log, one message after the other, out of rows that hold one or many.

use chrono::{DateTime, Utc};

use super::{Reading, Stretch};
use crate::connection::{Connection, Statement, row};
use crate::model::page::{Damage, PageEntry, read_page};
use crate::model::{
    Delivery, Error, Headers, Moment, MsgId, NewerPage, Offset, PartitionNo, Position, Priority,
    Result, RowId, TopicId,
};
use crate::store::load_surely;
use crate::store::row_set::{LIST_LIMIT, placeholders};
use crate::store::stream::page::PAGE;

/// What is read of the bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::stream) enum Bodies {
    /// All of them.
    Read,
    /// Their lengths, for which the server reads a body that is not in a page.
    Measure,
    /// Nothing: the length of a body that is not in a page is then 0.
    Leave,
}

/// A row of the log.
pub(super) struct LogRow {
    pub(super) last: Offset,
    messages: u64,
    pub(super) entries: Option<Vec<u8>>,
    pub(super) message: Message,
}

/// A message of the log, or what the columns of its page's row say.
#[derive(Debug)]
pub(in crate::store::stream) struct Message {
    pub(in crate::store::stream) msg_id: MsgId,
    pub(in crate::store::stream) enqueued_at: DateTime<Utc>,
    pub(in crate::store::stream) sequenced_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    read_at: DateTime<Utc>,
    pub(in crate::store::stream) key: Option<Vec<u8>>,
    pub(in crate::store::stream) biz_id: Option<Vec<u8>>,
    pub(in crate::store::stream) headers: Headers,
    pub(in crate::store::stream) body_bytes: u64,
    pub(in crate::store::stream) body: Vec<u8>,
}

/// A message at its offset.
pub(in crate::store::stream) struct Placed {
    pub(in crate::store::stream) at: Offset,
    pub(in crate::store::stream) message: Message,
    /// If it is what is left of a damaged page: the offset of the page's first message. The headers
    /// do not tell, because a sender can write anything into them.
    pub(in crate::store::stream) damaged_from: Option<Offset>,
}

/// The messages of a stretch, for a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// The messages, in order; a damaged page is one.
    pub deliveries: Vec<Delivery>,
    /// The offsets of the stretch that have no delivery of their own, because a damaged page is
    /// delivered for them, in order.
    pub hidden: Vec<Offset>,
}

/// What a look at the headers finds at an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A message with these headers.
    Headers(Headers),
    /// A damaged page whose first message has this offset.
    DamagedFrom(Offset),
}

row! { LogRow { last, messages, entries, message } }
row! {
    Message {
        msg_id, enqueued_at, sequenced_at, expires_at, read_at, key, biz_id, headers, body_bytes,
        body,
    }
}

/// The columns of a [`LogRow`] but the length of the body and the body.
const COLUMNS: &str = "offset_no, messages, entries, msg_id, enqueued_at, sequenced_at, \
     expires_at, UTC_TIMESTAMP(6), ordering_key, biz_id, headers";

const IN_ORDER: &str = " ORDER BY topic_id, partition_no, offset_no";

impl LogRow {
    pub(super) fn first(&self) -> Offset {
        Offset((self.last.0 + 1).saturating_sub(self.messages))
    }

    /// Returns its messages. A damaged page is one message, at the offset
    /// `damaged`: all its bytes are the body, and a header says why. Its other offsets have no
    /// message. Each reader chooses the newest offset that it reads, so that it notices the page.
    ///
    /// # Errors
    /// [`NewerPage`].
    fn into_messages(self, bodies: Bodies, damaged: Position) -> Result<Vec<Placed>> {
        let placed = |(at, message)| Placed { at, message, damaged_from: None };
        let Some(entries) = &self.entries else {
            return Ok(vec![placed((self.last, self.message))]);
        };
        let stored = Some(self.message.body.as_slice()).filter(|_| bodies == Bodies::Read);
        Ok(match read_page(entries, stored) {
            Err(Damage::Version(version)) => return Err(NewerPage { at: damaged, version }.into()),
            Ok(page) if page.len() as u64 == self.messages => {
                let messages = page.iter().map(|entry| self.message.entry(entry));
                (self.first().0..).map(Offset).zip(messages).map(placed).collect()
            }
            read => {
                let damage = read.err().unwrap_or(Damage::Length);
                let damaged_from = Some(self.first());
                let mut message = self.message;
                message.headers = Headers::of_damaged_page(damage);
                message.body = [entries.as_slice(), &message.body].concat();
                vec![Placed { at: damaged.offset, message, damaged_from }]
            }
        })
    }
}

impl Message {
    /// Returns a message of the page whose row this is.
    fn entry(&self, entry: &PageEntry<'_>) -> Self {
        Self {
            msg_id: entry.msg_id,
            enqueued_at: self.enqueued_at + entry.enqueued_after,
            sequenced_at: self.sequenced_at,
            expires_at: entry.expires.map(|expires| match expires {
                Moment::After(time) => self.enqueued_at + time,
                Moment::At(at) => at,
            }),
            read_at: self.read_at,
            key: entry.key.map(<[u8]>::to_vec),
            biz_id: entry.biz_id.map(<[u8]>::to_vec),
            headers: Headers::from_stored(entry.headers),
            body_bytes: entry.body_bytes as u64,
            body: entry.body.to_vec(),
        }
    }

    fn into_delivery(self, stretch: Stretch, reading: Reading, offset: Offset) -> Delivery {
        Delivery {
            topic_id: reading.group,
            msg_id: self.msg_id,
            delivery_no: reading.delivery_no,
            failures: 0,
            crashes: 0,
            enqueued_at: self.enqueued_at,
            expires_at: self.expires_at,
            claimed_at: self.read_at,
            key: self.key,
            biz_id: self.biz_id,
            unique_key: None,
            headers: self.headers,
            body: self.body,
            priority: Priority::default(),
            row: RowId(offset.0),
            claim_no: reading.claim_no,
            position: Some(Position { partition: stretch.partition, offset }),
            traced: false,
        }
    }
}

/// Returns the ids of a page's messages; none if the page is damaged.
#[cfg(feature = "simulation")]
#[must_use]
pub fn ids(entries: &[u8]) -> Vec<MsgId> {
    let page = read_page(entries, None).unwrap_or_default();
    page.iter().map(|entry| entry.msg_id).collect()
}

/// PRIMARY, forced, plain: reads the messages of a stretch, in order. Missing offsets have been
/// pruned.
pub async fn read(
    conn: &mut impl Connection,
    stretch: Stretch,
    reading: Reading,
) -> Result<Messages> {
    Ok(deliver(all(conn, stretch, Bodies::Read).await?, stretch, reading))
}

/// PRIMARY, forced, plain: reads these messages of a stretch, in order, as [`read()`].
pub async fn read_some(
    conn: &mut impl Connection,
    stretch: Stretch,
    reading: Reading,
    offsets: &[Offset],
) -> Result<Messages> {
    Ok(deliver(some(conn, stretch, offsets, Bodies::Read).await?, stretch, reading))
}

fn deliver(found: Vec<Placed>, stretch: Stretch, reading: Reading) -> Messages {
    let mut messages = Messages::default();
    for Placed { at, message, damaged_from } in found {
        let hidden = damaged_from.map_or(at, |first| first.max(stretch.lo)).0..at.0;
        messages.hidden.extend(hidden.map(Offset));
        messages.deliveries.push(message.into_delivery(stretch, reading, at));
    }
    messages
}

/// PRIMARY, forced, plain: reads the message ids of a stretch, in order; none if it has a page of a
/// newer release.
pub async fn msg_ids(conn: &mut impl Connection, stretch: Stretch) -> Result<Vec<(Offset, MsgId)>> {
    let found = match all(conn, stretch, Bodies::Leave).await {
        // Only traces want the ids: a rescue must not fail.
        Err(Error::NewerPage(_)) => Vec::new(),
        found => found?,
    };
    Ok(found.into_iter().map(|one| (one.at, one.message.msg_id)).collect())
}

/// PRIMARY, forced, plain: reads the headers of a stretch's messages, in order, without their
/// bodies.
pub async fn headers(conn: &mut impl Connection, stretch: Stretch) -> Result<Vec<(Offset, Seen)>> {
    let found = all(conn, stretch, Bodies::Leave).await?.into_iter();
    let seen = |one: Placed| match one.damaged_from {
        Some(first) => (one.at, Seen::DamagedFrom(first)),
        None => (one.at, Seen::Headers(one.message.headers)),
    };
    Ok(found.map(seen).collect())
}

/// PRIMARY, forced, plain: reads the messages of a stretch, in order.
pub(in crate::store::stream) async fn all(
    conn: &mut impl Connection,
    stretch: Stretch,
    bodies: Bodies,
) -> Result<Vec<Placed>> {
    let statement = Statement::new(select(bodies));
    let rows: Vec<LogRow> = load_surely(conn, "read the log", within(statement, stretch)).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let offset = row.last.min(Offset(stretch.hi.0.saturating_sub(1)));
        found.extend(row.into_messages(bodies, Position { partition: stretch.partition, offset })?);
    }
    found.retain(|one| (stretch.lo..stretch.hi).contains(&one.at));
    Ok(found)
}

/// PRIMARY, forced, plain: reads these messages of a stretch, given in order. It finds out first
/// which rows they are in, so that it reads the bodies of no other row.
pub(in crate::store::stream) async fn some(
    conn: &mut impl Connection,
    stretch: Stretch,
    offsets: &[Offset],
    bodies: Bodies,
) -> Result<Vec<Placed>> {
    let places = rows(conn, stretch).await?;
    let newest =
        |last: Offset| offsets[..offsets.partition_point(|at| *at <= last)].last().copied();
    let has_any = |(last, messages): &(Offset, u64)| {
        newest(*last).is_some_and(|offset| offset.0 + messages > last.0)
    };
    let wanted: Vec<_> = places.into_iter().filter(has_any).map(|(last, _)| last).collect();
    let mut found = Vec::with_capacity(offsets.len());
    for some in wanted.chunks(LIST_LIMIT) {
        // Padded, so that there are few statement texts and they stay prepared.
        let n = some.len().next_power_of_two();
        let last = some.last().into_iter().cycle();
        let statement = Statement::new(select(bodies))
            .sql(" FROM queue_log FORCE INDEX (PRIMARY) WHERE topic_id = ? AND partition_no = ?")
            .sql(&format!(" AND offset_no IN ({}){IN_ORDER}", placeholders(n)))
            .number(stretch.stream.0)
            .number(stretch.partition.0)
            .numbers(some.iter().chain(last).take(n).map(|offset| offset.0));
        let rows: Vec<LogRow> = load_surely(conn, "read the log", statement).await?;
        for row in rows {
            let (partition, offset) = (stretch.partition, newest(row.last).unwrap_or(row.last));
            found.extend(row.into_messages(bodies, Position { partition, offset })?);
        }
    }
    found.retain(|one| offsets.binary_search(&one.at).is_ok());
    Ok(found)
}

/// PRIMARY, forced, plain: finds the rows with these messages of a partition. Returns the offset of
/// each message that the log still has, and that under which its row is.
pub(in crate::store::stream) async fn places(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    offsets: &[Offset],
) -> Result<Vec<(Offset, Offset)>> {
    let (Some(lo), Some(last)) = (offsets.iter().min(), offsets.iter().max()) else {
        return Ok(Vec::new());
    };
    let stretch = Stretch { stream, partition, lo: *lo, hi: Offset(last.0.saturating_add(1)) };
    let rows = rows(conn, stretch).await?;
    let row_of = |at: &Offset| {
        let (row, messages) = rows.get(rows.partition_point(|(last, _)| last < at))?;
        (at.0 + messages > row.0).then_some((*at, *row))
    };
    Ok(offsets.iter().filter_map(row_of).collect())
}

/// Reads the offset of the last message of each row of a stretch, and how many it has.
async fn rows(conn: &mut impl Connection, stretch: Stretch) -> Result<Vec<(Offset, u64)>> {
    let statement = within(Statement::new("SELECT offset_no, messages"), stretch);
    load_surely(conn, "find rows of the log", statement).await
}

/// Selects the columns of a [`LogRow`].
pub(super) fn select(bodies: Bodies) -> String {
    let body = match bodies {
        Bodies::Read => "LENGTH(body), body",
        Bodies::Measure => "LENGTH(body), ''",
        Bodies::Leave => "0, ''",
    };
    format!("SELECT {COLUMNS}, {body}")
}

/// Limits a SELECT to the rows with messages of a stretch, in order. The last of them is the first
/// that ends at the stretch's last offset or behind it: from rows behind that, the server would
/// read the bodies before it finds that they are not wanted.
fn within(select: Statement<'_>, stretch: Stretch) -> Statement<'_> {
    let last = stretch.hi.0.saturating_sub(1);
    select
        .sql(
            " FROM queue_log FORCE INDEX (PRIMARY) WHERE topic_id = ? AND partition_no = ? \
             AND offset_no >= ? AND offset_no < ? AND offset_no + 1 < ? + messages \
             AND offset_no <= COALESCE((SELECT MIN(l.offset_no) FROM queue_log l \
             WHERE l.topic_id = ? AND l.partition_no = ? AND l.offset_no >= ?), ?)",
        )
        .sql(IN_ORDER)
        .sql(" LIMIT ?")
        .number(stretch.stream.0)
        .number(stretch.partition.0)
        .number(stretch.lo.0)
        .number(stretch.hi.0.saturating_add(PAGE - 1))
        .number(stretch.hi.0)
        .number(stretch.stream.0)
        .number(stretch.partition.0)
        .numbers([last, last])
        .number(stretch.hi.0.saturating_sub(stretch.lo.0))
}
