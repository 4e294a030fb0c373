use rowmq_core::{NewMessage, TopicName};
use tokio::time::Instant;

/// Messages of one topic that are stored together or not at all.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) topic: TopicName,
    pub(crate) messages: Vec<NewMessage>,
    /// When the first of them was accepted; the time to give up counts from here.
    pub(crate) since: Instant,
}
