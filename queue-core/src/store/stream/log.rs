//! The log: every message of a stream under its partition and offset.

use chrono::{DateTime, NaiveDateTime};
use diesel::prelude::*;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{
    ClaimNo, Delivery, DeliveryNo, Headers, MsgId, NewMessage, Offset, PartitionNo, Position,
    Result, TopicId,
};
use crate::schema::queue_log::dsl;
use crate::store::claim::MessageRow;
use crate::store::enqueue::{Shape, is_kept};
use crate::store::row_set::{LIST_LIMIT, placeholders};
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

const MESSAGES: &str = "SELECT CAST(5 AS UNSIGNED), offset_no, msg_id, CAST(? AS UNSIGNED), \
     CAST(0 AS UNSIGNED), CAST(0 AS UNSIGNED), enqueued_at, expires_at, UTC_TIMESTAMP(6), \
     ordering_key, biz_id, NULL, headers, body FROM queue_log FORCE INDEX (PRIMARY) \
     WHERE topic_id = ? AND partition_no = ? AND ";

const IN_ORDER: &str = " ORDER BY topic_id, partition_no, offset_no";

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

/// PRIMARY, forced, plain: reads the messages of a stretch, in order. Missing offsets have been
/// pruned.
pub async fn read(
    conn: &mut impl Connection,
    stretch: Stretch,
    reading: Reading,
) -> Result<Vec<Delivery>> {
    let statement = Statement::new(MESSAGES)
        .sql("offset_no >= ? AND offset_no < ?")
        .sql(IN_ORDER)
        .number(reading.delivery_no.0)
        .number(stretch.stream.0)
        .number(stretch.partition.0)
        .number(stretch.lo.0)
        .number(stretch.hi.0);
    read_by(conn, stretch, reading, statement).await
}

/// PRIMARY, forced, plain: reads these messages of a stretch, in order, as [`read()`].
pub async fn read_some(
    conn: &mut impl Connection,
    stretch: Stretch,
    reading: Reading,
    offsets: &[Offset],
) -> Result<Vec<Delivery>> {
    let mut deliveries = Vec::with_capacity(offsets.len());
    for some in offsets.chunks(LIST_LIMIT) {
        // Padded, so that there are few statement texts and they stay prepared.
        let n = some.len().next_power_of_two();
        let last = some.last().into_iter().cycle();
        let statement = Statement::new(MESSAGES)
            .sql(&format!("offset_no IN ({})", placeholders(n)))
            .sql(IN_ORDER)
            .number(reading.delivery_no.0)
            .number(stretch.stream.0)
            .number(stretch.partition.0)
            .numbers(some.iter().chain(last).take(n).map(|offset| offset.0));
        deliveries.extend(read_by(conn, stretch, reading, statement).await?);
    }
    Ok(deliveries)
}

async fn read_by(
    conn: &mut impl Connection,
    stretch: Stretch,
    reading: Reading,
    statement: Statement<'static>,
) -> Result<Vec<Delivery>> {
    let rows: Vec<MessageRow> = load_surely(conn, "read the log", statement).await?;
    let delivery = |row: MessageRow| {
        let mut delivery = row.into_delivery(reading.group, reading.claim_no, 0);
        let offset = Offset(delivery.row.0);
        delivery.position = Some(Position { partition: stretch.partition, offset });
        delivery
    };
    Ok(rows.into_iter().map(delivery).collect())
}

/// Limits a SELECT to a stretch, in order.
fn within(select: Statement<'_>, stretch: Stretch) -> Statement<'_> {
    select
        .sql(
            " FROM queue_log FORCE INDEX (PRIMARY) WHERE topic_id = ? AND partition_no = ? \
             AND offset_no >= ? AND offset_no < ?",
        )
        .sql(IN_ORDER)
        .number(stretch.stream.0)
        .number(stretch.partition.0)
        .number(stretch.lo.0)
        .number(stretch.hi.0)
}

/// PRIMARY, forced, plain: reads the message ids of a stretch, in order.
pub async fn msg_ids(conn: &mut impl Connection, stretch: Stretch) -> Result<Vec<(Offset, MsgId)>> {
    let statement = within(Statement::new("SELECT offset_no, msg_id"), stretch);
    load_surely(conn, "read message ids of the log", statement).await
}

/// PRIMARY, forced, plain: reads the headers of a stretch's messages, in order, without their
/// bodies.
pub async fn headers(
    conn: &mut impl Connection,
    stretch: Stretch,
) -> Result<Vec<(Offset, Headers)>> {
    let statement = within(Statement::new("SELECT offset_no, headers"), stretch);
    load_surely(conn, "read the headers of the log", statement).await
}

/// PRIMARY, forced, plain, one dive: finds the first offset from `from` on that the log has, and
/// when it was sequenced.
pub async fn at_or_after(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    from: Offset,
) -> Result<Option<(Offset, NaiveDateTime)>> {
    let statement = Statement::new(
        "SELECT offset_no, sequenced_at FROM queue_log FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? \
         ORDER BY topic_id, partition_no, offset_no LIMIT 1",
    )
    .number(stream.0)
    .number(partition.0)
    .number(from.0);
    let rows: Vec<(Offset, NaiveDateTime)> =
        load_surely(conn, "look into the log", statement).await?;
    Ok(rows.first().copied())
}

/// PRIMARY, forced: removes a stretch; returns how many messages it had.
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
/// it. Returns whether it did; `false` also for a message that was erased before.
pub async fn erase(
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

/// PRIMARY, forced, plain: computes the mean bytes of body and headers in a stretch; 0 if it is
/// empty.
pub async fn mean_bytes(conn: &mut impl Connection, stretch: Stretch) -> Result<u64> {
    let statement = Statement::new(
        "SELECT CAST(COALESCE(AVG(LENGTH(body) + COALESCE(LENGTH(headers), 0)), 0) AS SIGNED) \
         AS bytes FROM queue_log FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND partition_no = ? AND offset_no >= ? AND offset_no < ?",
    )
    .number(stretch.stream.0)
    .number(stretch.partition.0)
    .number(stretch.lo.0)
    .number(stretch.hi.0);
    let rows: Vec<u64> = load_surely(conn, "read the mean size", statement).await?;
    Ok(rows.first().copied().unwrap_or(0))
}
