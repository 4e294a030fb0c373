//! The statements of one batch.

use std::borrow::Cow;

use rowmq_core::connection::{Link, again_on_conflict, transaction};
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lookup::{self, Placed};
use rowmq_core::store::trace;
use rowmq_core::{
    Enqueued, Error, NewMessage, Part, Result, Topic, enqueue_in_transaction, is_plain, statements,
    stream, telemetry,
};

use super::Position;
use crate::batch::Batch;
use crate::resend::Tries;

const OPERATION: &str = "send the batch";

/// Batches of a stream from this size on bypass its inbox. Until such a batch is committed, no
/// other message of its partitions gets an offset, which is too long for a few messages.
const DIRECT: usize = 100;

/// How far a batch has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing of it has been sent.
    Before,
    /// Its transaction may hold locks, but its COMMIT has not been sent.
    Working,
    /// The statement that commits it may have been sent.
    Committing,
}

/// How far a try has got.
pub(super) struct TryProgress {
    pub(super) stage: Stage,
    /// The outcome of each message if it is committed.
    pub(super) enqueued: Vec<Enqueued>,
}

/// Stores a batch and advances the lane. One autocommitted statement does both, unless the batch is
/// too large for one, its topic is searchable or it leaves a trace: then a transaction does, whose
/// last INSERT of messages advances the lane. A large batch of a stream bypasses the inbox if the
/// partitions that it needs are free.
pub(super) async fn store_batch(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    position: Position,
    tries: &mut Tries<'_>,
    progress: &mut TryProgress,
) -> Result<()> {
    tracing::trace!(step = "store_batch");
    let Position { id, seq } = position;
    if !is_plain(topic, &batch.messages) {
        return store_once(conn, topic, batch, position, tries, progress).await;
    }
    let stored = |message: &NewMessage| Enqueued::Stored(message.msg_id);
    progress.enqueued = batch.messages.iter().map(stored).collect();
    let sorted = sorted(&batch.messages);
    let parts = statements(conn, topic, &sorted).await?;
    // The lane's row can only be advanced together with ready messages, or alone.
    let (first, last) = match parts.split_last() {
        Some((Part::Ready(last), first)) => (first, *last),
        Some((Part::Later(_), _)) => (&parts[..], &[][..]),
        None => return Ok(()),
    };
    tries.hand_over();
    if goes_direct(topic, last) {
        match append(conn, topic, batch, (first, last), position, progress).await {
            // A message of the inbox was purged in between.
            Err(Error::Counts { .. }) => {}
            done => return done,
        }
    }
    let searchable = topic.settings.searchable.is_some() && !last.is_empty();
    let trace = topic.settings.trace;
    let traced = batch.messages.iter().any(|message| trace.takes(message.msg_id));
    if first.is_empty() && !searchable && !traced {
        progress.stage = Stage::Committing;
        let insert =
            async |conn: &mut Link| insert_in_lane(conn, topic.id, last, id, seq + 1).await;
        return again_on_conflict(conn, OPERATION, insert).await;
    }
    transaction(conn, OPERATION, async |conn| {
        progress.stage = Stage::Working;
        for part in first {
            part.insert(conn, topic).await?;
        }
        insert_in_lane(conn, topic.id, last, id, seq + 1).await?;
        if searchable {
            lookup::insert(conn, topic.id, last, Placed::Ready).await?;
        }
        trace::enqueued(conn, topic.id, trace, &batch.messages).await?;
        progress.stage = Stage::Committing;
        Ok(())
    })
    .await
}

/// Whether the messages may go straight into the log of a stream.
pub(super) fn goes_direct(topic: &Topic, messages: &[NewMessage]) -> bool {
    // Lookup entries name rows of the inbox.
    let named = topic.settings.searchable.is_some();
    topic.is_stream() && !named && messages.len() >= DIRECT
}

/// Stores a batch in the log and advances the lane. If other sessions have locked the partitions
/// that the batch needs, it goes into the inbox.
async fn append(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    (first, last): (&[Part<'_>], &[NewMessage]),
    Position { id, seq }: Position,
    progress: &mut TryProgress,
) -> Result<()> {
    let appended = transaction(conn, OPERATION, async |conn| {
        progress.stage = Stage::Working;
        for part in first {
            part.insert(conn, topic).await?;
        }
        insert_in_lane(conn, topic.id, &[], id, seq + 1).await?;
        trace::enqueued(conn, topic.id, topic.settings.trace, &batch.messages).await?;
        let appended = stream::append(conn, topic.id, last).await?;
        if !appended.in_log {
            Part::Ready(last).insert(conn, topic).await?;
        }
        progress.stage = Stage::Committing;
        Ok(appended)
    });
    telemetry::sequenced(appended.await?.sequenced);
    Ok(())
}

/// Stores a batch that may contain duplicates. Which messages are duplicates is known before the
/// commit, so that it is known even if the commit gets no answer.
async fn store_once(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    Position { id, seq }: Position,
    tries: &mut Tries<'_>,
    progress: &mut TryProgress,
) -> Result<()> {
    // Checks what the topic refuses before anything is sent.
    statements(conn, topic, &batch.messages).await?;
    tries.hand_over();
    transaction(conn, OPERATION, async |conn| {
        progress.stage = Stage::Working;
        progress.enqueued = enqueue_in_transaction(conn, topic, &batch.messages).await?;
        insert_in_lane(conn, topic.id, &[], id, seq + 1).await?;
        progress.stage = Stage::Committing;
        Ok(())
    })
    .await
}

/// Puts the delayed messages first: in any other order, each would need a statement of its own.
/// Order is promised to the ready messages only, and they keep it.
fn sorted(messages: &[NewMessage]) -> Cow<'_, [NewMessage]> {
    let is_ready = |message: &NewMessage| message.deliver.is_none();
    if messages.is_sorted_by_key(is_ready) {
        return Cow::Borrowed(messages);
    }
    let mut sorted = messages.to_vec();
    sorted.sort_by_key(is_ready);
    Cow::Owned(sorted)
}
