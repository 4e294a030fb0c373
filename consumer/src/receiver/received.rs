//! A delivery in the hands of the caller's code.

use std::ops::Deref;
use std::sync::Arc;

use rowmq_core::handler::{HandlerError, RunOutcome, settlement_for};
use rowmq_core::model::Settlement;
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{Delivery, Topic};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::permit::Holding;
use crate::settler::{Finished, OwnRun, Settler};

/// A delivery in the caller's hands. Dropped without a word it is released, never acked.
pub struct Received {
    pub(super) delivery: Arc<Delivery>,
    pub(super) topic: Arc<Topic>,
    pub(super) settler: Settler,
    pub(super) worker: Worker,
    pub(super) holding: Option<Holding>,
}

impl Deref for Received {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

impl Received {
    /// Whether somebody wants it [cancelled](rowmq_core::cancellation): stop then, and
    /// [discard](HandlerError::Discard) it. Heard of within some 200 ms; what was not handed out
    /// yet is discarded without you.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.delivery.position.is_none() && self.worker.is_cancelled(self.delivery.row)
    }

    /// Whether it is handed out alone: it was in two crashes that nothing else explains, and the
    /// next crash is to tell on it only. [`Receiver::receive`](super::Receiver::receive) waits
    /// until it is settled, so settle it before you ask for the next.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.holding.as_ref().is_some_and(Holding::is_alone)
    }

    /// Handled: returns once the server has it. Of a group's stream it may return before: such acks
    /// are told in stretches, within about 100 ms, and a crash before that has the message handled
    /// again.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn ack(self) -> Result<(), Error> {
        self.settle(RunOutcome::Returned(Ok(()))).await
    }

    /// Not handled, for this reason, which decides what becomes of it as in a handler.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn fail(self, error: HandlerError) -> Result<(), Error> {
        self.settle(RunOutcome::Returned(Err(error))).await
    }

    /// Given back untouched; nothing is charged.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn release(self) -> Result<(), Error> {
        self.settle(RunOutcome::Interrupted).await
    }

    async fn settle(mut self, outcome: RunOutcome) -> Result<(), Error> {
        let (told, answer) = oneshot::channel();
        self.hand_over(self.settlement(outcome), Some(told));
        match answer.await {
            Ok(Ok(SettleOutcome::Settled | SettleOutcome::Unknown | SettleOutcome::Deferred)) => {
                Ok(())
            }
            Ok(Ok(SettleOutcome::Fenced) | Err(_)) | Err(_) => Err(Error::Fenced),
        }
    }

    pub(super) fn settlement(&self, outcome: RunOutcome) -> Settlement {
        settlement_for(outcome, &self.delivery, &self.topic.settings)
    }

    pub(super) fn hand_over(
        &mut self,
        settlement: Settlement,
        told: Option<oneshot::Sender<Result<SettleOutcome, rowmq_core::Error>>>,
    ) {
        let Some(holding) = self.holding.take() else { return };
        self.settler.settle(Finished {
            topic: self.topic.name.clone(),
            topic_id: self.topic.id,
            msg_id: self.delivery.msg_id,
            delivery_no: self.delivery.delivery_no,
            settled: Settled::in_topic(&self.delivery, settlement, &self.topic.settings),
            run: OwnRun::Nothing,
            holding,
            told,
        });
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.hand_over(Settlement::Release, None);
    }
}
