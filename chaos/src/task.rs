//! What a message of a run asks its handler to do.

use rand::Rng;
use serde::{Deserialize, Serialize};

/// The body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// How long the handler works, in milliseconds.
    pub(crate) work_ms: u64,
    /// How it ends.
    pub(crate) ending: Ending,
}

/// How the handler ends. Every ending but [`Ending::Poison`] succeeds at the second try at the
/// latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ending {
    /// It succeeds.
    Ack,
    /// It fails the first time.
    RetryOnce,
    /// It puts the message off the first time.
    SnoozeOnce,
    /// It gives the message back the first time.
    ReleaseOnce,
    /// It panics the first time.
    PanicOnce,
    /// It crashes its process the first time, between its effect and the ack (F2).
    AbortOnce,
    /// It succeeds, and blocks its runtime's thread until then (F23).
    Hang,
    /// It crashes its process every time (F20).
    Poison,
}

impl Task {
    /// Draws a task that succeeds, now and then at the second try. `quiet`: at the first.
    pub(crate) fn random(rng: &mut impl Rng, longest_ms: u64, quiet: bool) -> Self {
        let ending = match rng.random_range(0..1000) {
            _ if quiet => Ending::Ack,
            0..20 => Ending::RetryOnce,
            20..30 => Ending::ReleaseOnce,
            30..33 => Ending::PanicOnce,
            33..40 => Ending::SnoozeOnce,
            _ => Ending::Ack,
        };
        Self { work_ms: rng.random_range(0..=longest_ms), ending }
    }
}
