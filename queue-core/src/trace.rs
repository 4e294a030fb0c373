//! The trace of a message: who enqueued it, who claimed it, and what came of each delivery.
//!
//! A topic's [`Sampling`](crate::model::Sampling) says which messages leave one. Each event is a
//! row that the transaction writes which makes it happen, so that the trace tells neither more nor
//! less than what was committed; only that a range of a stream was claimed is written right after.

mod story;

pub use self::story::{Part, Story, tell};

use std::time::Duration;

/// How long a trace is kept. Long enough for what people ask about, and a bound for a topic all of
/// whose messages leave one.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
