use rowmq_core::TopicName;

/// What can go wrong when a consumer is set up, or a delivery is settled by hand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two handlers for one topic.
    #[error("The topic '{topic}' has two handlers: register one of them only.")]
    TwoHandlers {
        /// The topic.
        topic: TopicName,
    },
    /// Two handlers for one kind of a topic's messages.
    #[error("The kind '{kind}' of the topic '{topic}' has two handlers: give one of them another.")]
    TwoHandlersOfKind {
        /// The topic.
        topic: TopicName,
        /// The kind.
        kind: String,
    },
    /// No handler at all.
    #[error("No handler is registered: there is nothing to consume.")]
    NoHandler,
    /// A setting that cannot work.
    #[error("{name} is {value}: {fix}.")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        fix: &'static str,
    },
    /// The delivery's claim had been taken back; nothing was changed.
    #[error("This delivery is no longer ours to settle: its claim was taken back.")]
    Fenced,
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] rowmq_core::Error),
}

impl Error {
    /// Whether the same call may succeed later without a change of its input.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Queue(error) if error.is_transient())
    }
}
