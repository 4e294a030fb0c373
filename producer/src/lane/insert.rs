//! The statements of one batch.

use std::borrow::Cow;

use queue_core::connection::{Link, again_on_conflict, transaction};
use queue_core::store::enqueue::insert_in_lane;
use queue_core::store::lookup::{self, Placed};
use queue_core::{NewMessage, Part, Result, Topic, statements};

use super::Position;
use crate::batch::Batch;
use crate::resend::Tries;

/// How far a batch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing of it has been sent.
    Before,
    /// Its transaction may hold locks, and its COMMIT has not been sent.
    Working,
    /// What commits it may have been sent.
    Committing,
}

/// Stores a batch and advances the lane: in one statement that commits by itself, or, if it is too
/// large for one or its topic is searchable, in a transaction whose last INSERT of messages
/// advances the lane.
pub(super) async fn store_batch(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    Position { id, seq }: Position,
    tries: &mut Tries<'_>,
    stage: &mut Stage,
) -> Result<()> {
    const OPERATION: &str = "send the batch";
    let sorted = sorted(&batch.messages);
    let parts = statements(conn, topic, &sorted).await?;
    // The lane's row can only be advanced beside messages that are ready, or alone.
    let (first, last) = match parts.split_last() {
        Some((Part::Ready(last), first)) => (first, *last),
        Some((Part::Later(_), _)) => (&parts[..], &[][..]),
        None => return Ok(()),
    };
    tries.hand_over();
    let searchable = topic.settings.searchable.is_some() && !last.is_empty();
    if first.is_empty() && !searchable {
        *stage = Stage::Committing;
        let insert =
            async |conn: &mut Link| insert_in_lane(conn, topic.id, last, id, seq + 1).await;
        return again_on_conflict(conn, OPERATION, insert).await;
    }
    transaction(conn, OPERATION, async |conn| {
        *stage = Stage::Working;
        for part in first {
            part.insert(conn, topic).await?;
        }
        insert_in_lane(conn, topic.id, last, id, seq + 1).await?;
        if searchable {
            lookup::insert(conn, topic.id, last, Placed::Ready).await?;
        }
        *stage = Stage::Committing;
        Ok(())
    })
    .await
}

/// The delayed messages first: in any other order they would be a statement each. Order is promised
/// to those that are ready, and they keep it.
fn sorted(messages: &[NewMessage]) -> Cow<'_, [NewMessage]> {
    let is_ready = |message: &NewMessage| message.deliver.is_none();
    if messages.is_sorted_by_key(is_ready) {
        return Cow::Borrowed(messages);
    }
    let mut sorted = messages.to_vec();
    sorted.sort_by_key(is_ready);
    Cow::Owned(sorted)
}
