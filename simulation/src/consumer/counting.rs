//! The worker's throughput, counted as the consumer's program does it.

use rowmq_core::Delivery;
use rowmq_core::model::Settlement;
use rowmq_core::worker::SettleOutcome;

use super::Crew;

impl Crew {
    /// Counts how long a delivery has waited.
    pub(super) fn picked_up(&self, delivery: &Delivery) {
        if let Some(after) = delivery.pickup() {
            let topic = delivery.topic_id;
            self.worker.counter().picked_up(topic, after);
            self.stage.recorder.borrow_mut().picked_up(self.worker.id(), topic, after);
        }
    }

    /// Counts a delivery that is settled, or may be.
    pub(super) fn count(
        &self,
        delivery: &Delivery,
        settlement: &Settlement,
        outcome: SettleOutcome,
    ) {
        if outcome != SettleOutcome::Fenced {
            let topic = delivery.topic_id;
            self.worker.counter().settled(topic, settlement);
            self.stage.recorder.borrow_mut().counted(self.worker.id(), topic, settlement);
        }
    }
}
