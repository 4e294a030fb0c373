//! How to react to an error.

use super::refusals::common_fault;
use super::{Error, Fault};
use crate::model::WhenFull;

impl Error {
    /// The class of the failure, for deciding how to react.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Database { fault, .. } | Self::Connect { fault, .. } => *fault,
            Self::Deadline { .. } | Self::UnknownOutcome { .. } => Fault::Gone,
            Self::ReadOnly { .. } => Fault::ReadOnly,
            Self::NoWriter { refusals } => common_fault(refusals),
            Self::PacketTooLarge { .. } | Self::BodyTooLarge { .. } => Fault::TooLarge,
            Self::Schema { .. } => Fault::Schema,
            Self::TopicFull { .. } => Fault::Full,
            Self::AuditDenied(_) => Fault::Denied,
            _ => Fault::Other,
        }
    }

    /// Whether the same call may succeed later without a change of its input.
    ///
    /// A full topic will have room again, but if its owner chose refusal, producers must not wait.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TopicFull { when_full, .. } => *when_full == WhenFull::Block,
            _ => self.fault().is_transient(),
        }
    }

    /// The error that there is no writer, from each host's refusal.
    pub(crate) fn no_writer(mut refusals: Vec<Self>) -> Self {
        match refusals.pop() {
            Some(only) if refusals.is_empty() => only,
            last => {
                refusals.extend(last);
                Self::NoWriter { refusals }
            }
        }
    }

    /// The error of `operation`, which failed with `source`.
    pub(crate) fn database(operation: &'static str, source: &diesel::result::Error) -> Self {
        let message = source.to_string();
        Self::Database { operation, fault: Fault::of(source), message }
    }
}
