//! Messages that somebody cancels while this consumer has them.

use std::rc::Rc;

use rowmq_core::Delivery;
use rowmq_core::handler::{RunOutcome, settlement_for};
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::worker::Worker;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::Crew;

impl Crew {
    /// Discards what is cancelled of a run that has been ended for it; the rest comes again.
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

    /// Whether a handler does what it is asked to, and stops.
    pub(super) fn heeds(&self) -> bool {
        self.stage.settings.cancellers > 0 && self.stage.below(4) > 0
    }

    /// Stops a run as soon as somebody cancels one of its messages, if its handler heeds that.
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

/// Whether somebody wants the message cancelled. One of a log has no row that could be named.
pub(super) fn is_cancelled(worker: &Worker, delivery: &Delivery) -> bool {
    delivery.position.is_none() && worker.is_cancelled(delivery.row)
}
