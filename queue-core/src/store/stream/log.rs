//! The log: every message of a stream under its partition and offset. A row holds one message, or a
//! page of them, under the offset of its last message.

mod read;

#[cfg(feature = "simulation")]
pub use self::read::ids;
pub(super) use self::read::{Bodies, Message, Placed, all, places, some};
pub use self::read::{Messages, Seen, headers, msg_ids, read, read_some};

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::prelude::*;

use self::read::{LogRow, select};
use crate::connection::{Connection, Statement};
use crate::model::page::{Damage, ENTRY, HEAD, Page, PageEntry, PageWriter, read_page};
use crate::model::{
    ClaimNo, DeliveryNo, Moment, MsgId, NewMessage, Offset, PartitionNo, Position, Result, TopicId,
};
use crate::schema::queue_log::dsl;
use crate::store::enqueue::{Shape, is_kept};
use crate::store::moment::{MOMENT, micros};
use crate::store::{execute, execute_surely, load_surely, write_surely};

/// Offsets of one partition of a stream, from `lo` up to but not including `hi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The stream.
    pub stream: TopicId,
    /// The partition.
    pub partition: PartitionNo,
    /// The first.
    pub lo: Offset,
    /// The one after the last.
    pub hi: Offset,
}

/// The group and claim under which the messages of a stretch are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The group, as the topic of the deliveries.
    pub group: TopicId,
    /// The claim that holds the stretch; 0 if there is none.
    pub claim_no: ClaimNo,
    /// Which delivery of the stretch this is.
    pub delivery_no: DeliveryNo,
}

/// PRIMARY: appends messages, each at its position, as one statement. None of them may have a due
/// time or a unique key: the log has no column for either.
///
/// # Errors
/// Headers that cannot be stored.
pub async fn append(
    conn: &mut impl Connection,
    stream: TopicId,
    messages: &[NewMessage],
    places: &[Position],
) -> Result<()> {
    let shape = Shape::of(messages);
    let kept = is_kept(messages.len()) && shape.is_one_text(messages);
    let mut text = format!(
        "INSERT INTO queue_log (topic_id, partition_no, offset_no, msg_id, enqueued_at, \
         sequenced_at, {}body) VALUES ",
        shape.columns()
    );
    text.reserve(80 * messages.len());
    for (nth, message) in messages.iter().enumerate() {
        text.push_str(if nth == 0 { "" } else { ", " });
        text.push_str("(?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ");
        shape.row(&mut text, message);
    }
    let mut statement = Statement::new(text).once(!kept);
    for (message, place) in messages.iter().zip(places) {
        statement = statement
            .number(stream.0)
            .number(place.partition.0)
            .number(place.offset.0)
            .bytes(message.msg_id.as_bytes());
        statement = shape.bind(statement, message)?;
    }
    execute(conn, "append to the log", statement).await?;
    Ok(())
}

/// A page at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacedPage {
    /// The partition.
    pub(crate) partition: PartitionNo,
    /// The offset of its last message.
    pub(crate) last: Offset,
    /// The id of its first message.
    pub(crate) msg_id: MsgId,
    /// When its earliest message was enqueued; `None`: now.
    pub(crate) enqueued_at: Option<DateTime<Utc>>,
    /// The page.
    pub(crate) page: Page,
}

/// About as many bytes of pages go into one statement: servers limit a packet to 16 MiB or more.
const STATEMENT: usize = 1024 * 1024;

/// PRIMARY: appends pages, about a megabyte in one statement.
pub(crate) async fn append_pages(
    conn: &mut impl Connection,
    stream: TopicId,
    mut pages: &[PlacedPage],
) -> Result<()> {
    while !pages.is_empty() {
        let mut bytes = 0;
        let fit = pages.iter().take_while(|placed| {
            bytes += placed.page.bytes();
            bytes <= STATEMENT
        });
        let (now, later) = pages.split_at(fit.count().max(1));
        let statement = insert_pages(stream, now);
        execute(conn, "append pages to the log", statement).await?;
        pages = later;
    }
    Ok(())
}

fn insert_pages(stream: TopicId, pages: &[PlacedPage]) -> Statement<'_> {
    let row = |page: &PlacedPage| {
        let enqueued_at = page.enqueued_at.map_or("UTC_TIMESTAMP(6)", |_| MOMENT);
        format!("(?, ?, ?, ?, ?, {enqueued_at}, UTC_TIMESTAMP(6), ?, ?)")
    };
    let rows: Vec<_> = pages.iter().map(row).collect();
    let mut statement = Statement::new(format!(
        "INSERT INTO queue_log (topic_id, partition_no, offset_no, messages, msg_id, enqueued_at, \
         sequenced_at, entries, body) VALUES {}",
        rows.join(", ")
    ))
    .once(!is_kept(pages.len()));
    for placed in pages {
        statement = statement
            .number(stream.0)
            .number(placed.partition.0)
            .number(placed.last.0)
            .number(placed.page.messages)
            .bytes(placed.msg_id.as_bytes())
            .numbers(placed.enqueued_at.map(micros))
            .bytes(placed.page.entries.as_slice())
            .bytes(placed.page.bodies.as_slice());
    }
    statement
}

/// PRIMARY, forced, plain, one dive: finds the first offset from `from` on that the log has, and
/// when it was sequenced.
pub async fn at_or_after(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    from: Offset,
) -> Result<Option<(Offset, NaiveDateTime)>> {
    let row = next_row(conn, stream, partition, from).await?;
    Ok(row.map(|(begin, at)| (begin.max(from), at)))
}

/// PRIMARY, forced, plain, one dive: returns the first offset of the row that has an offset; the
/// offset itself behind the end of the log.
pub async fn begin_of(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    offset: Offset,
) -> Result<Offset> {
    let row = next_row(conn, stream, partition, offset).await?;
    Ok(row.map_or(offset, |(begin, _)| begin.min(offset)))
}

/// Returns the first offset of the row that ends at an offset or behind it, and when the row was
/// sequenced.
async fn next_row(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    offset: Offset,
) -> Result<Option<(Offset, NaiveDateTime)>> {
    let statement = Statement::new(
        "SELECT offset_no, messages, sequenced_at FROM queue_log FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? \
         ORDER BY topic_id, partition_no, offset_no LIMIT 1",
    )
    .number(stream.0)
    .number(partition.0)
    .number(offset.0);
    let rows: Vec<(Offset, u64, NaiveDateTime)> =
        load_surely(conn, "look into the log", statement).await?;
    let begin = |(last, messages, at): &(Offset, u64, NaiveDateTime)| {
        (Offset((last.0 + 1).saturating_sub(*messages)), *at)
    };
    Ok(rows.first().map(begin))
}

/// PRIMARY, forced, plain: returns the offsets of the first rows that end in a stretch, at most
/// `limit`.
pub async fn ends(conn: &mut impl Connection, stretch: Stretch, limit: u32) -> Result<Vec<Offset>> {
    let statement = Statement::new(
        "SELECT offset_no FROM queue_log FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? AND offset_no < ? \
         ORDER BY topic_id, partition_no, offset_no LIMIT ?",
    )
    .number(stretch.stream.0)
    .number(stretch.partition.0)
    .number(stretch.lo.0)
    .number(stretch.hi.0)
    .number(limit);
    load_surely(conn, "find old rows of the log", statement).await
}

/// PRIMARY, forced: removes the rows that end in a stretch; returns how many.
pub async fn remove(conn: &mut impl Connection, stretch: Stretch) -> Result<usize> {
    let statement = Statement::new(
        "DELETE l FROM queue_log l FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? AND offset_no < ?",
    )
    .number(stretch.stream.0)
    .number(stretch.partition.0)
    .number(stretch.lo.0)
    .number(stretch.hi.0);
    execute_surely(conn, "prune the log", statement).await
}

/// PRIMARY: empties body and headers of the message at a position, if it is still there. From then
/// on it counts as expired, by the clock of any server: a consumer that has not read it discards
/// it.
pub async fn erase(
    conn: &mut impl Connection,
    stream: TopicId,
    at: Position,
    id: MsgId,
) -> Result<Erased> {
    let statement = Statement::new(select(Bodies::Read))
        .sql(
            " FROM queue_log FORCE INDEX (PRIMARY) WHERE topic_id = ? AND partition_no = ? \
             AND offset_no >= ? ORDER BY topic_id, partition_no, offset_no LIMIT 1 FOR UPDATE",
        )
        .number(stream.0)
        .number(at.partition.0)
        .number(at.offset.0);
    let rows: Vec<LogRow> = load_surely(conn, "find what to erase", statement).await?;
    let Some(row) = rows.into_iter().next().filter(|row| row.first() <= at.offset) else {
        return Ok(Erased::Before);
    };
    let erased = |changed| if changed { Erased::Now } else { Erased::Before };
    let Some(entries) = &row.entries else {
        return Ok(erased(erase_row(conn, stream, at, id).await?));
    };
    let nth = at.offset.0 - row.first().0;
    let page = match without(entries, &row.message.body, nth, id) {
        Ok(Some(page)) => page,
        Ok(None) => return Ok(Erased::Before),
        Err(_) => return Ok(Erased::Damaged),
    };
    let message = dsl::queue_log.find((stream, at.partition, row.last));
    let statement =
        diesel::update(message).set((dsl::entries.eq(page.entries), dsl::body.eq(page.bodies)));
    Ok(erased(write_surely(conn, "erase the message in its page", statement).await? > 0))
}

/// What became of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erased {
    /// The message is erased.
    Now,
    /// It was erased before, or is not there any more.
    Before,
    /// Its page is damaged: nothing in it can be changed.
    Damaged,
}

/// Returns the page without headers and body of its `nth` message; `None` if that is another
/// message, or has been erased already.
fn without(entries: &[u8], bodies: &[u8], nth: u64, id: MsgId) -> Result<Option<Page>, Damage> {
    let mut messages = read_page(entries, Some(bodies))?;
    let nth = usize::try_from(nth).unwrap_or(usize::MAX);
    let Some(message) = messages.get_mut(nth) else { return Ok(None) };
    let erased = PageEntry {
        expires: Some(Moment::At(DateTime::UNIX_EPOCH)),
        headers: None,
        body_bytes: 0,
        body: &[],
        ..*message
    };
    if message.msg_id != id || *message == erased {
        return Ok(None);
    }
    *message = erased;
    let mut writer = PageWriter::default();
    messages.iter().for_each(|message| writer.push(message));
    Ok(Some(writer.finish()))
}

async fn erase_row(
    conn: &mut impl Connection,
    stream: TopicId,
    at: Position,
    id: MsgId,
) -> Result<bool> {
    let has_content = dsl::body.ne(&b""[..]).or(dsl::headers.is_not_null());
    let long_ago = DateTime::UNIX_EPOCH.naive_utc();
    let lives_on = dsl::expires_at.is_null().or(dsl::expires_at.ne(long_ago));
    let message = dsl::queue_log
        .find((stream, at.partition, at.offset))
        .filter(dsl::msg_id.eq(id).and(has_content.or(lives_on)));
    let statement = diesel::update(message).set((
        dsl::body.eq(&b""[..]),
        dsl::headers.eq(None::<&[u8]>),
        dsl::expires_at.eq(long_ago),
    ));
    Ok(write_surely(conn, "erase the message", statement).await? > 0)
}

/// PRIMARY, forced, plain: computes the mean bytes of a message in a stretch, with headers; 0 if it
/// is empty.
pub async fn mean_bytes(conn: &mut impl Connection, stretch: Stretch) -> Result<u64> {
    // The entries of a page hold keys and headers behind a table.
    let statement = Statement::new(format!(
        "SELECT CAST(COALESCE(SUM(LENGTH(body) + COALESCE(LENGTH(headers), 0) \
         + COALESCE(CAST(LENGTH(entries) AS SIGNED) - {HEAD} - {ENTRY} * CAST(messages AS SIGNED), 0)) \
         DIV SUM(messages), 0) AS SIGNED) AS bytes FROM queue_log FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? AND offset_no < ?"
    ))
    .number(stretch.stream.0)
    .number(stretch.partition.0)
    .number(stretch.lo.0)
    .number(stretch.hi.0);
    let rows: Vec<u64> = load_surely(conn, "read the mean size", statement).await?;
    Ok(rows.first().copied().unwrap_or(0))
}
