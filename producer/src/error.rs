use std::time::Duration;

use rowmq_core::{Error, Fault, TopicName};

/// Why messages were not sent, in one sentence: what, where, and what to do next.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The messages cannot be stored as they are, or not by this account: sending them again
    /// would end the same way. Nothing is stored.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The server could not be reached, or stored nothing, for as long as the
    /// [`ResendPolicy`](crate::ResendPolicy) allows. Nothing is stored.
    #[error(
        "Gave up sending {messages} message(s) to '{topic}' after {tries} tries in {} s; none of them is stored, send them again later",
        elapsed.as_secs()
    )]
    GaveUp {
        /// Where they were to go.
        topic: TopicName,
        /// How many there were.
        messages: usize,
        /// How often it was tried.
        tries: u32,
        /// For how long it was tried.
        elapsed: Duration,
        /// The last failure.
        source: Error,
    },
    /// The connection broke, and the outcome of the batch could not be found out: either all of the
    /// messages are stored, or none.
    #[error(
        "Whether {messages} message(s) to '{topic}' are stored is unknown ({reason}): look for their ids before you send them again"
    )]
    Unknown {
        /// Where they were to go.
        topic: TopicName,
        /// How many there were.
        messages: usize,
        /// Why it could not be found out.
        reason: String,
    },
    /// The server stored nothing, and the spill journal had no room, for as long as the
    /// [`ResendPolicy`](crate::ResendPolicy) allows. Nothing is stored.
    #[error(
        "{messages} message(s) to '{topic}' are not stored: the server takes nothing, and the spill journal has no room for them below its limit of {limit} bytes; send them again later, or allow it more"
    )]
    SpillFull {
        /// Where they were to go.
        topic: TopicName,
        /// How many there were.
        messages: usize,
        /// The limit of the journal, in bytes.
        limit: u64,
    },
    /// The server stored nothing, and the spill journal could not be written, for as long as the
    /// [`ResendPolicy`](crate::ResendPolicy) allows. Nothing is stored.
    #[error(
        "{messages} message(s) to '{topic}' are not stored: the server takes nothing, and the spill journal cannot be written ({reason}); send them again when one of the two is mended"
    )]
    SpillFailed {
        /// Where they were to go.
        topic: TopicName,
        /// How many there were.
        messages: usize,
        /// The file system's error.
        reason: String,
    },
    /// The producer has been closed, or its runtime has ended.
    #[error("The producer is closed: connect a new one to send.")]
    Closed,
}

impl SendError {
    /// Whether the error is about a message itself, so that the others of its batch could be stored
    /// without it.
    #[must_use]
    pub fn is_about_message(&self) -> bool {
        let Self::Refused(error) = self else { return false };
        is_about_message(error)
    }

    /// Whether a part of the batch could be stored, or spilled, where all of it is not.
    pub(crate) fn allows_a_part(&self) -> bool {
        self.is_about_message() || matches!(self, Self::SpillFull { .. })
    }

    /// The same error for one message of the batch.
    pub(crate) fn of_one(&self) -> Self {
        let mut error = self.clone();
        if let Self::GaveUp { messages, .. }
        | Self::Unknown { messages, .. }
        | Self::SpillFull { messages, .. }
        | Self::SpillFailed { messages, .. } = &mut error
        {
            *messages = 1;
        }
        error
    }
}

/// Whether the error is about a message, whatever its topic.
pub(crate) fn is_about_message(error: &Error) -> bool {
    use Error::{
        Codec, InvalidHeaders, InvalidRetry, InvalidTime, InvalidUnique, KeyTooLong, NoPriorities,
    };
    let wrong = matches!(
        error,
        KeyTooLong { .. }
            | Codec(_)
            | InvalidHeaders { .. }
            | InvalidRetry { .. }
            | InvalidTime { .. }
            | InvalidUnique { .. }
            | NoPriorities { .. }
    );
    wrong || error.fault() == Fault::TooLarge
}
