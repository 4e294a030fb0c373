//! Messages that are cancelled while this consumer has them.

use std::rc::Rc;

use rowmq_core::Delivery;
use rowmq_core::handler::{RunOutcome, settlement_for};
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::worker::Worker;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::Crew;

impl Crew {
    /// Discards the cancelled messages of a run that was ended for them, and gives back the others.
    pub(super) async fn give_up(&self, deliveries: Vec<Delivery>) {
        let settlement = |delivery: &Delivery| match is_cancelled(&self.worker, delivery) {
            true => self.cancelled(delivery),
            false => Settlement::Release,
        };
        let settlements = deliveries.iter().map(settlement).collect();
        self.settle_as(deliveries, settlements, None).await;
    }

    pub(super) fn cancelled(&self, delivery: &Delivery) -> Settlement {
        settlement_for(RunOutcome::Cancelled, delivery, &TopicSettings::default())
    }

    /// Returns whether a handler stops when it is asked to.
    pub(super) fn heeds(&self) -> bool {
        self.stage.settings.cancellers > 0 && self.stage.below(4) > 0
    }

    /// Stops a run as soon as one of its messages is cancelled, if its handler heeds that.
    pub(super) fn stop_if_cancelled(
        &self,
        deliveries: &[Delivery],
        stop: &CancellationToken,
    ) -> AbortHandle {
        let (worker, turn) = (self.worker.clone(), Rc::clone(&self.turn));
        let (stop, mut deliveries) = (stop.clone(), deliveries.to_vec());
        if !self.heeds() {
            deliveries.clear();
        }
        let watch = tokio::task::spawn_local(async move {
            loop {
                let turn = turn.notified();
                if deliveries.iter().any(|delivery| is_cancelled(&worker, delivery)) {
                    return stop.cancel();
                }
                turn.await;
            }
        });
        watch.abort_handle()
    }
}

/// Returns whether the message's cancellation was requested. A message of a log has no row to name.
pub(super) fn is_cancelled(worker: &Worker, delivery: &Delivery) -> bool {
    delivery.position.is_none() && worker.is_cancelled(delivery.row)
}
