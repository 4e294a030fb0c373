//! Broadcast groups: every member gets every message of the stream, without claims.

use crate::connection::Connection;
use crate::model::{
    Broadcast, Error, MemberName, Offset, OffsetSpec, PartitionNo, Priority, Result, RetryPolicy,
    RowId, Topic, TopicKind, TopicName, TopicSettings, WorkerId,
};
use crate::store;
use crate::store::floor;
use crate::store::stream::member::{self, MemberPosition};
use crate::store::stream::partition;
use crate::stream::group::{offset, with_trace_of};

/// Returns the default settings of a broadcast group. A member keeps its retries in memory, and a
/// named member's position waits for them, so the backoff is short: 1 s to a minute, and a dead
/// letter after 6 attempts, within two minutes.
#[must_use]
pub fn broadcast_settings() -> TopicSettings {
    const LADDER: [u64; 5] = [1, 5, 10, 30, 60];
    let retry = RetryPolicy::Ladder(LADDER.map(std::time::Duration::from_secs).into());
    TopicSettings { retry, max_attempts: 6, ..TopicSettings::default() }
}

/// Creates a broadcast group of a stream, whose members begin at `start`. Runs within the caller's
/// transaction.
///
/// # Errors
/// [`Error::UnknownTopic`]; [`Error::NoStream`]; [`Error::TopicExists`]; [`Error::Setting`] for an
/// offset beyond a partition's end, for a ledger, and for a trace other than the stream's; a
/// database failure.
pub async fn create_broadcast(
    conn: &mut impl Connection,
    name: &TopicName,
    start: OffsetSpec,
    settings: &TopicSettings,
) -> Result<()> {
    let stream =
        name.stream().ok_or_else(|| Error::InvalidName { name: name.as_str().to_owned() })?;
    let stream = store::topic::existing(conn, &stream).await?;
    if !stream.is_stream() {
        return Err(Error::NoStream { topic: stream.name });
    }
    for partition in partition::all(conn, stream.id).await? {
        offset(conn, stream.id, &partition, start).await?;
    }
    let kind = TopicKind::Broadcast { stream: stream.id, start };
    let settings = with_trace_of(&stream, name, settings)?;
    store::topic::create_kind(conn, name, kind, &settings).await
}

/// The result of taking a named member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The worker is the member now; the rows as they were before.
    Own(Vec<MemberPosition>),
    /// This living worker is the member.
    InUse(WorkerId),
    /// The group no longer exists.
    Gone,
}

/// Makes the worker the named member, unless a living worker already is. An unknown member begins
/// where the group begins. Runs within the caller's transaction.
///
/// A worker that was declared dead stays dead, so this worker may take the member over from it.
/// Acknowledgements of the dead worker change nothing afterwards, because it no longer owns the
/// rows.
///
/// # Errors
/// A database failure; a [`Duplicate`](crate::Fault::Duplicate) one if another worker was quicker.
pub(crate) async fn take_member(
    conn: &mut impl Connection,
    group: Broadcast,
    name: &MemberName,
    worker: WorkerId,
) -> Result<Taken> {
    let mut rows = member::lock(conn, group.id, name).await?;
    for owner in rows.iter().map(|row| row.worker) {
        if owner != worker && member::is_alive(conn, owner).await? {
            return Ok(Taken::InUse(owner));
        }
    }
    if rows.is_empty() {
        // A retention under way does not know the member yet: it ends before the partitions are
        // read.
        store::topic::lock_by_id(conn, group.stream).await?;
    }
    let partitions = partition::of_group(conn, group.id).await?;
    if partitions.is_empty() {
        return Ok(Taken::Gone);
    }
    for partition in partitions {
        if rows.iter().all(|row| row.partition != partition.no) {
            let start = offset(conn, group.stream, &partition, group.start).await?;
            let row = MemberPosition::new(partition.no, start);
            member::create(conn, group.id, name, row).await?;
            rows.push(row);
        }
    }
    member::take(conn, group.id, name, worker).await?;
    Ok(Taken::Own(rows))
}

/// Returns where a member without a name begins; it keeps its positions itself. Returns none if the
/// group no longer exists.
pub(crate) async fn begin(
    conn: &mut impl Connection,
    group: Broadcast,
) -> Result<Vec<(PartitionNo, Offset)>> {
    let mut places = Vec::new();
    for partition in partition::of_group(conn, group.id).await? {
        let start = offset(conn, group.stream, &partition, group.start).await?;
        places.push((partition.no, start));
    }
    Ok(places)
}

/// Moves the named members of a broadcast group to another position; running members follow within
/// a second or so. Returns how many members there are. Runs within the caller's transaction.
///
/// # Errors
/// [`Error::OfBroadcast`] if no member has a name; [`Error::NoBroadcast`]; [`Error::Setting`] for
/// an offset beyond a partition's end; a database failure.
pub async fn reset_members(
    conn: &mut impl Connection,
    group: &Topic,
    to: OffsetSpec,
) -> Result<usize> {
    let broadcast = broadcast_of(group)?;
    let rows = member::lock_all(conn, broadcast.id).await?;
    if rows.is_empty() {
        return Err(Error::OfBroadcast {
            topic: group.name.clone(),
            reason: "the positions of its members are in memory and cannot be reset; restart \
                     them, and they begin where the group begins",
        });
    }
    let mut members = 0;
    for partition in partition::all(conn, broadcast.stream).await? {
        let to = offset(conn, broadcast.stream, &partition, to).await?;
        members = member::reset(conn, broadcast.id, partition.no, to).await?;
    }
    // Wakes the members: no message is enqueued that would ring their doorbell.
    floor::publish(conn, broadcast.id, Priority::default(), RowId(0)).await?;
    Ok(members)
}

/// Forgets a named member. Retention no longer waits for it, and a member that comes back with this
/// name begins where the group begins. A running member goes there at once.
///
/// # Errors
/// [`Error::UnknownMember`]; [`Error::NoBroadcast`]; a database failure.
pub async fn forget_member(
    conn: &mut impl Connection,
    group: &Topic,
    name: &MemberName,
) -> Result<()> {
    let broadcast = broadcast_of(group)?;
    if member::delete(conn, broadcast.id, name).await? == 0 {
        return Err(Error::UnknownMember { topic: group.name.clone(), member: name.clone() });
    }
    Ok(())
}

fn broadcast_of(topic: &Topic) -> Result<Broadcast> {
    topic.broadcast().ok_or_else(|| Error::NoBroadcast { topic: topic.name.clone() })
}
