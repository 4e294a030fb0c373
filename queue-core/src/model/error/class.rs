//! What is to be done about an error.

use super::refusals::common_fault;
use super::{Error, Fault};
use crate::model::WhenFull;

impl Error {
    /// The class of the failure, for deciding what to do about it.
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

    /// Whether the same call may succeed later without anybody changing the input.
    ///
    /// A full topic will have room again, but where its owner has it refuse, nobody is to wait.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TopicFull { when_full, .. } => *when_full == WhenFull::Block,
            _ => self.fault().is_transient(),
        }
    }

    /// Why there is no writer, from what each host said.
    pub(crate) fn no_writer(mut refusals: Vec<Self>) -> Self {
        match refusals.pop() {
            Some(only) if refusals.is_empty() => only,
            last => {
                refusals.extend(last);
                Self::NoWriter { refusals }
            }
        }
    }

    /// Names the operation that `source` failed in.
    pub(crate) fn database(operation: &'static str, source: &diesel::result::Error) -> Self {
        let message = source.to_string();
        Self::Database { operation, fault: Fault::of(source), message }
    }
}
