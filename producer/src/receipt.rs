use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use rowmq_core::{Enqueued, MsgId};
use tokio::sync::oneshot;

use crate::error::SendError;
use crate::spill::Spilled;

/// The outcome of one message: where it is, or why it is not known to be stored.
pub type Outcome = Result<Sent, SendError>;

/// A message that cannot be lost any more.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Its id; for a duplicate, the id of the existing message.
    pub msg_id: MsgId,
    /// Where it is.
    pub destination: Destination,
}

/// Where a message is.
#[derive(Debug, Clone)]
pub enum Destination {
    /// The server has it, by this send or another one.
    Enqueued(Enqueued),
    /// It is on this machine's disk, and goes to the server when that accepts messages again. Only
    /// with [`ProducerOptions::spill`](crate::ProducerOptions).
    Spilled(Spilled),
}

impl Destination {
    /// Whether the server has it already.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        matches!(self, Self::Enqueued(_))
    }
}

impl Sent {
    /// The result of a message that was stored as a new one.
    pub(crate) fn stored(id: MsgId) -> Self {
        Self::from(Enqueued::Stored(id))
    }

    /// The outcome on the server; `None` while it is in the spill journal.
    #[must_use]
    pub fn enqueued(&self) -> Option<Enqueued> {
        match self.destination {
            Destination::Enqueued(enqueued) => Some(enqueued),
            Destination::Spilled(_) => None,
        }
    }
}

impl From<Enqueued> for Sent {
    fn from(enqueued: Enqueued) -> Self {
        Self { msg_id: enqueued.msg_id(), destination: Destination::Enqueued(enqueued) }
    }
}

/// When awaited, it returns once the message is stored or spilled, or once its send has failed or
/// its outcome cannot be found out.
///
/// Dropping it does not cancel the send: the message is sent all the same, and its outcome is
/// discarded.
#[derive(Debug)]
#[must_use = "only the receipt says whether the message is stored"]
pub struct Receipt {
    id: MsgId,
    answer: oneshot::Receiver<Outcome>,
}

impl Receipt {
    /// Returns a receipt, and the sender that resolves it.
    pub(crate) fn new(id: MsgId) -> (Self, Tell) {
        let (tell, answer) = oneshot::channel();
        (Self { id, answer }, Tell::Receipt(tell))
    }

    /// The id of the message, stored or not.
    #[must_use]
    pub fn msg_id(&self) -> MsgId {
        self.id
    }
}

impl Future for Receipt {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        answer.map(|answer| answer.unwrap_or(Err(SendError::Closed)))
    }
}

/// Where the outcome of a message goes.
pub(crate) enum Tell {
    Receipt(oneshot::Sender<Outcome>),
    Callback(Box<dyn FnOnce(Outcome) + Send>),
}

impl Tell {
    /// Delivers the outcome. A panic in a callback ends nothing else.
    pub(crate) fn outcome(self, id: MsgId, outcome: Outcome) {
        match self {
            // The receipt may have been dropped.
            Self::Receipt(answer) => drop(answer.send(outcome)),
            Self::Callback(callback) => {
                if catch_unwind(AssertUnwindSafe(|| callback(outcome))).is_err() {
                    tracing::error!(
                        message.id = %id,
                        "The callback of a message panicked; what became of the message stands."
                    );
                }
            }
        }
    }
}

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}
