//! Turns of a producer's lanes at the log of a stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rowmq_core::model::{TopicId, TopicKind};
use rowmq_core::{NewMessage, Topic, is_plain, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::insert::goes_direct;

/// How long a lane waits for its turn: the time of many batches. After that it goes on without one;
/// if it then finds the partitions locked, the inbox takes its batch.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whose turn it is to append to the log of a stream: one lane for each partition, or one with
/// keys. Without turns, the lanes that found the log locked filled the inbox, which the next lane
/// had to empty first: four lanes made 0.16 of the raw INSERT, and one alone 0.42.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<TopicId, Arc<Semaphore>>>>);

impl Turns {
    /// Waits for the turn of a batch, which lasts until the permit is dropped; `None` if it took
    /// too long, or the batch does not go into a log.
    pub(super) async fn take(
        &self,
        topic: &Topic,
        messages: &[NewMessage],
    ) -> Option<OwnedSemaphorePermit> {
        let TopicKind::Stream { partitions } = topic.kind else { return None };
        if !goes_direct(topic, messages) || !is_plain(topic, messages) {
            return None;
        }
        let needed = if stream::fits_any_partition(messages) { 1 } else { partitions };
        let turns = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let all = || Arc::new(Semaphore::new(partitions as usize));
            Arc::clone(turns.entry(topic.id).or_insert_with(all))
        };
        let turn = turns.acquire_many_owned(needed);
        tokio::time::timeout(PATIENCE, turn).await.ok()?.ok()
    }
}
