use std::sync::Arc;

use queue_core::connection::ServerUrl;
use queue_core::{Enqueued, MsgId, NewMessage, Result, TopicName};
use tokio::time::Instant;

use crate::accumulator::{self, Accumulator};
use crate::batch::Batch;
use crate::error::SendError;
use crate::lanes::Lanes;
use crate::options::ProducerOptions;
use crate::receipt::{Outcome, Receipt, Tell};

/// Sends messages in transactions of its own. Cheap to clone; all clones share the lanes.
///
/// A `send` that returned `Ok` is committed. One that is dropped before it returns may still be
/// stored, once, or not at all; nothing else is disturbed. Messages of one caller who waits for
/// each `send` are stored in that order; several sends at once have no order among them.
#[derive(Debug, Clone)]
pub struct Producer {
    lanes: Lanes,
    accumulator: Arc<Accumulator>,
}

impl Producer {
    /// Connects to the server. The lanes run on a thread of their own, whatever the runtime.
    ///
    /// # Errors
    /// [`Connect`](queue_core::Error::Connect) when the server cannot be reached: only later
    /// failures are tried again. A database failure when the queue's tables are missing.
    pub async fn connect(url: ServerUrl, options: ProducerOptions) -> Result<Self> {
        let batching = options.batching.clone();
        let (accumulator, incoming) = Accumulator::new(&batching);
        let collect = |lanes| accumulator::run(incoming, lanes, batching);
        let lanes = Lanes::start(url, options, collect).await?;
        Ok(Self { lanes, accumulator: Arc::new(accumulator) })
    }

    /// Sends one message and waits until it is stored; its id. If it is not stored because it is a
    /// duplicate, the id of the message that is there: [`Producer::send_async`] tells which of the
    /// two.
    ///
    /// # Errors
    /// [`SendError::Refused`] at once, when another try would end the same way: an unknown or
    /// paused topic, a body beyond the topic's limit, a missing grant. The others after the
    /// [`ResendPolicy`](crate::ResendPolicy)'s time.
    pub async fn send(&self, topic: &TopicName, message: NewMessage) -> Result<MsgId, SendError> {
        let id = message.msg_id;
        let enqueued = self.send_all(topic, vec![message]).await?;
        Ok(enqueued.first().map_or(id, |enqueued| enqueued.msg_id()))
    }

    /// Sends messages, in order, and waits until all of them are stored. They are one transaction:
    /// whatever happens, all of them are stored or none. One transaction must be through within
    /// the [`lease`](ProducerOptions::lease), so send some hundreds or thousands at a time.
    /// Tells what became of each: whichever of them are duplicates, the others are stored.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_all(
        &self,
        topic: &TopicName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>, SendError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch { topic: topic.clone(), messages, since: Instant::now() };
        self.lanes.send(batch).await.outcome
    }

    /// Accepts a message, to be stored together with others, and returns as soon as there is room
    /// for it; the [`Receipt`] tells when it is stored. Messages of one topic are stored in the
    /// order in which they were accepted; those of one batch share a transaction, as
    /// [`ProducerOptions::batching`](crate::ProducerOptions) says. What is accepted lives in this
    /// process until then.
    ///
    /// # Errors
    /// [`SendError::Closed`]. The receipt's are those of [`Producer::send`]: what is wrong with one
    /// message is told to its receipt only, and the time of the
    /// [`ResendPolicy`](crate::ResendPolicy) counts from here.
    pub async fn send_async(
        &self,
        topic: &TopicName,
        message: NewMessage,
    ) -> Result<Receipt, SendError> {
        let (receipt, tell) = Receipt::new(message.msg_id);
        self.accumulator.accept(topic, message, tell).await?;
        Ok(receipt)
    }

    /// As [`Producer::send_async`], with a function that is called with the outcome. It runs on the
    /// lanes' thread and should return at once; a panic in it is logged and ends nothing else.
    ///
    /// # Errors
    /// [`SendError::Closed`]; the function is not called then.
    pub async fn send_then(
        &self,
        topic: &TopicName,
        message: NewMessage,
        then: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), SendError> {
        self.accumulator.accept(topic, message, Tell::Callback(Box::new(then))).await
    }

    /// Waits for everything accepted and under way, then closes the lanes and their connections.
    /// Later sends,
    /// also of clones, end with [`SendError::Closed`].
    ///
    /// A producer that is merely dropped closes its lanes in the background; what it leaves in the
    /// database, because the process ends first, is pruned by the janitor.
    pub async fn close(&self) {
        self.accumulator.close().await;
        self.lanes.close().await;
    }
}
