//! Creating, moving and removing groups.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use crate::connection::Connection;
use crate::model::{
    Error, Group, Offset, OffsetSpec, Priority, Result, RetryPolicy, RowId, Topic, TopicId,
    TopicKind, TopicName, TopicSettings, WorkerId,
};
use crate::store;
use crate::store::stream::partition::Partition;
use crate::store::stream::{cursor, log, member, partition, passed, range};
use crate::store::{cancel, floor};

/// The most partitions of a stream: each is a row that the sequencer locks.
pub const MOST_PARTITIONS: u32 = 256;

/// Returns the default settings of a group: seed 001's backoff, from 10 s to an hour, and dead
/// letters after 16 attempts.
#[must_use]
pub fn group_settings() -> TopicSettings {
    const LADDER: [u64; 16] =
        [10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600];
    let retry = RetryPolicy::Ladder(LADDER.map(std::time::Duration::from_secs).into());
    TopicSettings { retry, ..TopicSettings::default() }
}

/// Creates a stream. Runs within the caller's transaction.
///
/// # Errors
/// As [`store::topic::create`]; [`Error::Setting`] unless there are 1 to 256 partitions; a database
/// failure.
pub async fn create_stream(
    conn: &mut impl Connection,
    name: &TopicName,
    partitions: u32,
    settings: &TopicSettings,
) -> Result<()> {
    if !(1..=MOST_PARTITIONS).contains(&partitions) {
        return Err(Error::Setting {
            name: "partitions",
            value: partitions.to_string(),
            fix: "a stream has 1 to 256",
        });
    }
    store::topic::create_kind(conn, name, TopicKind::Stream { partitions }, settings).await?;
    let topic = store::topic::existing(conn, name).await?;
    partition::create(conn, topic.id, 0, partitions).await
}

/// Creates a group of a stream, which begins at `start`. Runs within the caller's transaction.
///
/// # Errors
/// [`Error::UnknownTopic`]; [`Error::NoStream`]; [`Error::TopicExists`]; [`Error::Setting`] for a
/// trace other than the stream's; a database failure.
pub async fn create_group(
    conn: &mut impl Connection,
    name: &TopicName,
    ordered: bool,
    start: OffsetSpec,
    settings: &TopicSettings,
) -> Result<()> {
    let (stream, _) =
        name.as_group().ok_or_else(|| Error::InvalidName { name: name.as_str().to_owned() })?;
    let stream = TopicName::new(stream)?;
    // A retention under way does not know the group yet: it ends before the partitions are read.
    store::topic::lock(conn, &stream).await?;
    let stream = store::topic::existing(conn, &stream).await?;
    if !matches!(stream.kind, TopicKind::Stream { .. }) {
        return Err(Error::NoStream { topic: stream.name });
    }
    let kind = TopicKind::Group { stream: stream.id, ordered };
    let settings = with_trace_of(&stream, name, settings)?;
    store::topic::create_kind(conn, name, kind, &settings).await?;
    let group = store::topic::existing(conn, name).await?;
    for partition in partition::all(conn, stream.id).await? {
        let start = offset(conn, stream.id, &partition, start).await?;
        cursor::create(conn, group.id, partition.no, start).await?;
    }
    Ok(())
}

/// Returns the settings of a new group: it leaves a trace of the same messages as its stream.
pub(super) fn with_trace_of(
    stream: &Topic,
    group: &TopicName,
    settings: &TopicSettings,
) -> Result<TopicSettings> {
    if !settings.trace.is_off() {
        store::topic::check_trace(group, settings.trace, stream.settings.trace)?;
    }
    Ok(TopicSettings { trace: stream.settings.trace, ..settings.clone() })
}

/// Moves a group to another offset of its stream. The ranges that its members hold are fenced;
/// retries and dead letters stay. Runs within the caller's transaction, in a few statements for
/// each partition, whatever the distance.
///
/// # Errors
/// [`Error::NoGroup`]; [`Error::Setting`] for an offset beyond a partition's end; a database
/// failure.
pub async fn reset_group(conn: &mut impl Connection, group: &Topic, to: OffsetSpec) -> Result<()> {
    let group = group_of(group)?;
    let mut owners = BTreeSet::new();
    // Before the partitions are read: retention would remove the messages that they begin with.
    cursor::lock_all(conn, group.id).await?;
    for partition in partition::all(conn, group.stream).await? {
        let to = offset(conn, group.stream, &partition, to).await?;
        range::lock_all(conn, group.id, partition.no).await?;
        let ranges = range::of_partition(conn, group.id, partition.no).await?;
        owners.extend(ranges.iter().map(|range| range.fence.worker));
        passed::forget_of_group(conn, group.id, partition.no).await?;
        range::forget(conn, group.id, partition.no).await?;
        cursor::reset(conn, group.id, partition.no, to).await?;
    }
    // The handlers still run, and a message from before the reset may still kill its worker.
    for owner in owners.into_iter().filter(|owner| *owner != WorkerId(0)) {
        cancel::taken_away(conn, owner).await?;
    }
    tell_members(conn, group).await
}

/// Makes a group handle a stretch of the stream once more, without moving its cursor. Runs within
/// the caller's transaction; returns how many messages it is.
///
/// # Errors
/// [`Error::NoGroup`]; a database failure.
pub async fn replay(
    conn: &mut impl Connection,
    group: &Topic,
    from: OffsetSpec,
    to: OffsetSpec,
) -> Result<u64> {
    let group = group_of(group)?;
    let mut messages = 0;
    // Before the partitions are read: retention would remove the messages that they begin with.
    let cursors = cursor::lock_all(conn, group.id).await?;
    for partition in partition::all(conn, group.stream).await? {
        let Some((_, next)) = cursors.iter().find(|(no, _)| *no == partition.no) else { continue };
        let lo = offset(conn, group.stream, &partition, from).await?;
        let hi = offset(conn, group.stream, &partition, to).await?;
        // The group reaches what lies beyond the cursor anyway.
        let hi = hi.min(*next);
        if lo < hi {
            let none = crate::model::DeliveryNo(0);
            range::insert_free(conn, group.id, partition.no, (lo, hi), none, 0).await?;
            messages += hi.0 - lo.0;
        }
    }
    tell_members(conn, group).await?;
    Ok(messages)
}

/// Wakes the members: no message is enqueued that would ring their doorbell.
async fn tell_members(conn: &mut impl Connection, group: Group) -> Result<()> {
    floor::publish(conn, group.id, Priority::default(), RowId(0)).await
}

/// Removes a group's cursors and ranges, or its named members; its own topic stays. Runs within the
/// caller's transaction.
///
/// # Errors
/// [`Error::NoGroup`]; a database failure.
pub async fn leave(conn: &mut impl Connection, group: &Topic) -> Result<()> {
    if let Some(broadcast) = group.broadcast() {
        return member::delete_all(conn, broadcast.id).await.map(|_| ());
    }
    let group = group_of(group)?;
    for (partition, _) in cursor::lock_all(conn, group.id).await? {
        range::lock_all(conn, group.id, partition).await?;
        passed::forget_of_group(conn, group.id, partition).await?;
        range::forget(conn, group.id, partition).await?;
    }
    cursor::delete(conn, group.id).await.map(|_| ())
}

fn group_of(topic: &Topic) -> Result<Group> {
    topic.group().ok_or_else(|| Error::NoGroup { topic: topic.name.clone() })
}

/// Resolves it to an offset of a partition.
pub(super) async fn offset(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: &Partition,
    spec: OffsetSpec,
) -> Result<Offset> {
    match spec {
        OffsetSpec::Earliest => Ok(partition.first),
        OffsetSpec::Latest => Ok(partition.next),
        OffsetSpec::Offset(offset) if offset > partition.next => Err(Error::Setting {
            name: "offset",
            value: offset.to_string(),
            fix: "it lies beyond the end of a partition; `latest` is the end",
        }),
        OffsetSpec::Offset(offset) => Ok(offset.max(partition.first)),
        OffsetSpec::Time(time) => at_time(conn, stream, partition, time).await,
    }
}

/// Finds the first offset that was given at `time` or later, by bisection: a dive a step.
pub(crate) async fn at_time(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: &Partition,
    time: DateTime<Utc>,
) -> Result<Offset> {
    let (mut lo, mut hi) = (partition.first.0, partition.next.0);
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        match log::at_or_after(conn, stream, partition.no, Offset(middle)).await? {
            Some((offset, at)) if at.and_utc() < time => lo = offset.0 + 1,
            _ => hi = middle,
        }
    }
    Ok(Offset(lo))
}
