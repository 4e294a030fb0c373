use queue_core::{NewMessage, TopicName};

/// Messages of one topic that are stored together or not at all.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) topic: TopicName,
    pub(crate) messages: Vec<NewMessage>,
}
