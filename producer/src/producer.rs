use std::sync::Arc;

use queue_core::connection::ServerUrl;
use queue_core::{MsgId, NewMessage, Result, TopicName};

use crate::batch::Batch;
use crate::error::SendError;
use crate::lanes::Lanes;
use crate::options::ProducerOptions;

/// Sends messages in transactions of its own. Cheap to clone; all clones share the lanes.
///
/// A `send` that returned `Ok` is committed. One that is dropped before it returns may still be
/// stored, once, or not at all; nothing else is disturbed. Messages of one caller who waits for
/// each `send` are stored in that order; several sends at once have no order among them.
#[derive(Debug, Clone)]
pub struct Producer {
    lanes: Arc<Lanes>,
}

impl Producer {
    /// Connects to the server. The lanes run on a thread of their own, whatever the runtime.
    ///
    /// # Errors
    /// [`Connect`](queue_core::Error::Connect) when the server cannot be reached: only later
    /// failures are tried again. A database failure when the queue's tables are missing.
    pub async fn connect(url: ServerUrl, options: ProducerOptions) -> Result<Self> {
        Ok(Self { lanes: Arc::new(Lanes::start(url, options).await?) })
    }

    /// Sends one message and waits until it is stored.
    ///
    /// # Errors
    /// [`SendError::Refused`] at once, when another try would end the same way: an unknown or
    /// paused topic, a body beyond the topic's limit, a missing grant. The others after the
    /// [`ResendPolicy`](crate::ResendPolicy)'s time.
    pub async fn send(&self, topic: &TopicName, message: NewMessage) -> Result<MsgId, SendError> {
        let id = message.msg_id;
        self.send_all(topic, vec![message]).await?;
        Ok(id)
    }

    /// Sends messages, in order, and waits until all of them are stored. They are one transaction:
    /// whatever happens, all of them are stored or none. One transaction must be through within
    /// the [`lease`](ProducerOptions::lease), so send some hundreds or thousands at a time.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_all(
        &self,
        topic: &TopicName,
        messages: Vec<NewMessage>,
    ) -> Result<(), SendError> {
        if messages.is_empty() {
            return Ok(());
        }
        self.lanes.send(Batch { topic: topic.clone(), messages }).await
    }

    /// Waits for the sends under way, then closes the lanes and their connections. Later sends,
    /// also of clones, end with [`SendError::Closed`].
    ///
    /// A producer that is merely dropped closes its lanes in the background; what it leaves in the
    /// database, because the process ends first, is pruned by the janitor.
    pub async fn close(&self) {
        self.lanes.close().await;
    }
}
