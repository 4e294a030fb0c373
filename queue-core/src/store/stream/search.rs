//! Finding messages of a log.

use super::log::{self, Bodies, Message, Placed, Stretch};
use crate::connection::{Connection, Statement};
use crate::model::found::{Filter, Found, State, Trace};
use crate::model::{
    ConnId, Group, GroupPart, MsgId, Offset, PartitionNo, Position, Priority, Result, RowId, Topic,
    WorkerId,
};
use crate::store::{find, load};

/// The result of a search in a stretch of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// The messages that are wanted, newest first.
    pub wanted: Vec<Offset>,
    /// An offset of each damaged page that may hold a message that is wanted.
    pub damaged: Vec<Offset>,
    /// How many messages were read.
    pub seen: usize,
    /// The oldest of them; `None` at the beginning of the stretch.
    pub oldest: Option<Offset>,
}

/// PRIMARY, forced, plain: reads the messages of the newest `limit` offsets of a stretch, and
/// selects those that are wanted: messages that have one of the ids, if any are given, and meet the
/// rest of the filter, as far as a log records it.
pub async fn newest(
    conn: &mut impl Connection,
    stretch: Stretch,
    ids: &[MsgId],
    filter: &Filter,
    limit: u32,
) -> Result<Looked> {
    let mut lo = Offset(stretch.hi.0.saturating_sub(limit.into())).max(stretch.lo);
    let newest = Stretch { lo, ..stretch };
    let messages = log::all(conn, newest, Bodies::Leave).await?;
    if let Some(first) = messages.first().and_then(|oldest| oldest.damaged_from) {
        // The next stretch begins before this page, so that it is met once.
        lo = lo.min(first).max(stretch.lo);
    }
    let wants = |it: &Message| {
        (ids.is_empty() || ids.contains(&it.msg_id))
            && filter.biz_id.as_ref().is_none_or(|wanted| it.biz_id.as_ref() == Some(wanted))
            && filter.key.as_ref().is_none_or(|wanted| it.key.as_ref() == Some(wanted))
            && filter.since.is_none_or(|since| it.enqueued_at >= since)
            && filter.before.is_none_or(|before| it.enqueued_at < before)
            && filter
                .header
                .as_ref()
                .is_none_or(|(name, value)| it.headers.get(name) == Some(value))
    };
    let seen = messages.len();
    let (wanted, others): (Vec<_>, Vec<_>) =
        messages.into_iter().rev().partition(|one| wants(&one.message));
    let damaged = others.into_iter().filter(|one| one.damaged_from.is_some());
    Ok(Looked {
        wanted: wanted.into_iter().map(|one| one.at).collect(),
        damaged: damaged.map(|one| one.at).collect(),
        seen,
        oldest: Some(lo).filter(|lo| *lo > stretch.lo),
    })
}

/// PRIMARY, forced, plain: reads these messages of a partition, newest first.
pub async fn at(
    conn: &mut impl Connection,
    stream: &Topic,
    partition: PartitionNo,
    offsets: &[Offset],
    bodies: find::Bodies,
) -> Result<Vec<Found>> {
    let mut offsets = offsets.to_vec();
    offsets.sort_unstable();
    let (Some(lo), Some(last)) = (offsets.first(), offsets.last()) else { return Ok(Vec::new()) };
    let stretch =
        Stretch { stream: stream.id, partition, lo: *lo, hi: Offset(last.0.saturating_add(1)) };
    let read = if bodies == find::Bodies::Read { Bodies::Read } else { Bodies::Measure };
    let messages = log::some(conn, stretch, &offsets, read).await?;
    let found = |Placed { at: offset, message, .. }| {
        found(stream, Position { partition, offset }, message, read)
    };
    Ok(messages.into_iter().rev().map(found).collect())
}

fn found(stream: &Topic, position: Position, message: Message, bodies: Bodies) -> Found {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let trace = Trace {
        row: RowId(position.offset.0),
        priority: Priority::default(),
        delivery_no: 0,
        failures: 0,
        crashes: 0,
        error: None,
        headers: message.headers,
        history: Vec::new(),
        progress: None,
        body_bytes: message.body_bytes,
        body: Some(message.body).filter(|_| bodies == Bodies::Read),
    };
    Found {
        topic: stream.name.to_string(),
        msg_id: message.msg_id,
        state: State::Logged { position, sequenced_at: message.sequenced_at },
        enqueued_at: message.enqueued_at,
        key: message.key.map(text),
        biz_id: message.biz_id.map(text),
        trace: Some(trace),
    }
}

/// PRIMARY of the cursor, KEY (`group_id`, `partition_no`) of the ranges, plain: reads what a group
/// has done with a message of its stream; `None` if the group has no cursor there.
pub async fn part_of(
    conn: &mut impl Connection,
    group: Group,
    at: Position,
) -> Result<Option<GroupPart>> {
    let statement = Statement::new(
        "SELECT c.next_offset, r.worker_id, r.conn_id, w.client_id, p.offset_no AS passed \
         FROM queue_cursor c LEFT JOIN queue_range r ON r.group_id = c.group_id \
         AND r.partition_no = c.partition_no AND r.mark <= ? AND r.hi > ? \
         LEFT JOIN queue_worker w ON w.id = r.worker_id \
         LEFT JOIN queue_passed p ON p.range_id = r.id AND p.offset_no = ? \
         WHERE c.group_id = ? AND c.partition_no = ? ORDER BY r.id LIMIT 1",
    )
    .numbers([at.offset.0; 3])
    .number(group.id.0)
    .number(at.partition.0);
    type Row = (Offset, Option<WorkerId>, Option<ConnId>, Option<String>, Option<Offset>);
    let rows: Vec<Row> = load(conn, "read what a group has made of it", statement).await?;
    let part = |(next, worker, conn, client_id, passed): Row| match (worker, passed) {
        (_, Some(_)) => GroupPart::Passed,
        (Some(WorkerId(0)), None) => GroupPart::Waiting,
        (Some(worker), None) => GroupPart::Claimed {
            worker,
            client_id: client_id.unwrap_or_default(),
            conn_id: conn.unwrap_or(ConnId(0)),
        },
        (None, None) if at.offset < next => GroupPart::Passed,
        (None, None) => GroupPart::Ahead,
    };
    Ok(rows.into_iter().next().map(part))
}
