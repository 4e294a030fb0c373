//! The trace of a message: its enqueue, its claims, and the outcome of each delivery.
//!
//! A topic's [`Sampling`](crate::model::Sampling) decides which messages leave a trace. Each event
//! is a row written by the transaction that causes the event, so the trace shows exactly what was
//! committed. Only the event for the claim of a stream's range is written right after the claim.

mod history;

pub use self::history::{MessageHistory, Part, tell};

use std::time::Duration;

/// How long a trace is kept: long enough for people's questions, and a bound for a topic whose
/// messages all leave one.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
