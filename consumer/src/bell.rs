//! The consumer's use of the doorbell, if it has one.

use rowmq_core::Topic;
use rowmq_core::connection::ServerUrl;
use rowmq_core::doorbell::{Doorbell, Idleness};
use tokio::sync::watch;

use crate::options::{ConsumerOptions, DoorbellMode};

/// The doorbell, and whether it is active; without one it never is.
#[derive(Debug, Clone)]
pub(crate) struct Bell {
    doorbell: Option<Doorbell>,
    ringing: Option<watch::Receiver<bool>>,
}

impl Bell {
    pub(crate) fn new(url: &ServerUrl, options: &ConsumerOptions) -> Self {
        let doorbell = match options.doorbell {
            DoorbellMode::Off => None,
            DoorbellMode::Auto => Some(Doorbell::new(url, options.safety_poll)),
        };
        Self { ringing: doorbell.as_ref().map(Doorbell::ringing), doorbell }
    }

    /// Returns the doorbell that the worker is started with.
    pub(crate) fn doorbell(&self) -> Option<Doorbell> {
        self.doorbell.clone()
    }

    /// Makes the doorbell ring for `topic` from now on.
    pub(crate) fn listen(&self, topic: &Topic) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.listen(topic);
        }
    }

    /// Returns a topic's share in the decision whether the doorbell is waited for.
    pub(crate) fn idleness(&self) -> Option<Idleness> {
        self.doorbell.as_ref().map(Doorbell::idleness)
    }

    pub(crate) fn is_ringing(&self) -> bool {
        self.ringing.as_ref().is_some_and(|ringing| *ringing.borrow())
    }

    /// Waits until the doorbell becomes active or inactive; without a doorbell, for ever.
    pub(crate) async fn turned(&mut self) {
        let ended = match &mut self.ringing {
            Some(ringing) => ringing.changed().await.is_err(),
            None => true,
        };
        if ended {
            std::future::pending::<()>().await;
        }
    }
}
