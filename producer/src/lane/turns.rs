//! Turns of a producer's lanes at the log of a stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rowmq_core::model::TopicId;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// How long a lane waits for its turn: the time of many batches. After that it goes through the
/// inbox, which needs no turn.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whose turn it is to append to the log of a stream. Only one lane can append at a time. Without
/// turns, the lanes that found the log locked filled the inbox, which the next lane had to empty
/// first: four lanes made 0.16 of the raw INSERT, and one alone 0.42.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<TopicId, Arc<Turn<()>>>>>);

impl Turns {
    /// Waits for the turn, which lasts until the guard is dropped; `None` if it took too long.
    pub(super) async fn take(&self, stream: TopicId) -> Option<OwnedMutexGuard<()>> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(stream).or_default())
        };
        tokio::time::timeout(PATIENCE, turn.lock_owned()).await.ok()
    }
}
