//! A delivery that the caller's code holds.

use std::ops::Deref;
use std::sync::Arc;

use rowmq_core::handler::{HandlerError, RunOutcome, settlement_for};
use rowmq_core::model::Settlement;
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{Delivery, Topic};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::permit::Permit;
use crate::settler::{Finished, OwnRun, Settler};

/// A delivery that the caller holds. Dropped without being settled, it is released, never acked.
pub struct Received {
    pub(super) delivery: Arc<Delivery>,
    pub(super) topic: Arc<Topic>,
    pub(super) settler: Settler,
    pub(super) worker: Worker,
    pub(super) permit: Option<Permit>,
}

impl Deref for Received {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

impl Received {
    /// Returns whether the message is to be [cancelled](rowmq_core::cancellation): stop then, and
    /// [discard](HandlerError::Discard) it. A cancellation arrives within some 200 ms; a message
    /// that was not handed out yet is discarded without you.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.delivery.position.is_none() && self.worker.is_cancelled(self.delivery.row)
    }

    /// Returns whether it is handed out alone: it was in two crashes that nothing else explains,
    /// and the next crash must incriminate this message only.
    /// [`Receiver::receive`](super::Receiver::receive) waits until it is settled, so settle it
    /// before you ask for the next.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_alone)
    }

    /// Acks the message: returns once the server has stored the ack. For a group of a stream it may
    /// return earlier: such acks are written in batches, within about 100 ms, and after a crash
    /// before that the message is handled again.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn ack(self) -> Result<(), Error> {
        self.settle(RunOutcome::Returned(Ok(()))).await
    }

    /// Fails the message; `error` decides what becomes of it, as in a handler.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn fail(self, error: HandlerError) -> Result<(), Error> {
        self.settle(RunOutcome::Returned(Err(error))).await
    }

    /// Gives the message back unhandled; nothing is charged.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim had been taken back.
    pub async fn release(self) -> Result<(), Error> {
        self.settle(RunOutcome::Interrupted).await
    }

    async fn settle(mut self, outcome: RunOutcome) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.hand_over(self.settlement(outcome), Some(reply));
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
        reply: Option<oneshot::Sender<Result<SettleOutcome, rowmq_core::Error>>>,
    ) {
        let Some(permit) = self.permit.take() else { return };
        self.settler.settle(Finished {
            topic: self.topic.name.clone(),
            topic_id: self.topic.id,
            msg_id: self.delivery.msg_id,
            delivery_no: self.delivery.delivery_no,
            settled: Settled::in_topic(&self.delivery, settlement, &self.topic.settings),
            run: OwnRun::Nothing,
            permit,
            reply,
        });
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.hand_over(Settlement::Release, None);
    }
}
