//! What the topic loops of one worker share: the worker, the settler, and the gate that lets a
//! suspect run alone.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use rowmq_core::checkpoint::Keeper;
use rowmq_core::model::TopicId;
use rowmq_core::worker::{Claimed, Worker};
use rowmq_core::{Delivery, Topic};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::members::Members;
use crate::permit::GatePermit;
use crate::settler::Settler;

/// How long a suspect waits for the worker's other messages before it lets them go on.
const ALONE_WAIT: Duration = Duration::from_secs(1);

/// The pause between suspects, so that other messages have their turn.
pub(crate) const SUSPECT_PAUSE: Duration = Duration::from_millis(200);

/// The pause after a suspect could not have the worker to itself.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// Shared by the topic loops of one worker.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) worker: Worker,
    pub(crate) settler: Settler,
    pub(crate) ledger: Ledger,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) members: Members,
    /// Every claim holds it for reading until the claim is settled; a suspect holds it for writing.
    /// The suspect is then the only message that its worker holds, and a crash incriminates it
    /// alone.
    pub(crate) gate: Arc<RwLock<()>>,
    pub(crate) interruption: Interruption,
}

impl Services {
    /// Claims a suspect while the worker holds nothing else; returns `None` if the worker's other
    /// deliveries were not settled in time. Safe to drop half-way.
    pub(crate) async fn claim_alone(
        &self,
        topic: &Topic,
    ) -> rowmq_core::Result<Option<(Claimed, GatePermit)>> {
        // Other claims wait behind this one, so it must not wait for long.
        let gate = Arc::clone(&self.gate).write_owned();
        let Ok(alone) = tokio::time::timeout(ALONE_WAIT, gate).await else { return Ok(None) };
        let claimed = self.worker.claim_suspect_of(topic).await?;
        Ok(Some((claimed, GatePermit::Alone(alone))))
    }

    /// Records how long a delivery waited for its claim; the topic may be a group.
    pub(crate) fn picked_up(&self, topic: TopicId, delivery: &Delivery) {
        if let Some(after) = delivery.pickup() {
            self.worker.counter().picked_up(topic, after);
        }
    }
}

/// Interrupts the handlers that run now, not those started later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interruption(Arc<Mutex<CancellationToken>>);

impl Interruption {
    /// Returns the token for runs that start now.
    pub(crate) fn token(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn interrupt(&self) {
        let mut token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }
}
