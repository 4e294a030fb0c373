//! The work that workers complete.

use std::time::Duration;

use crate::model::Settlement;

/// Totals of a topic, since it was created or since a worker registered. They only grow, and serve
/// people as an indication: a worker that is killed loses its last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Throughput {
    /// Deliveries after which the message was done.
    pub done: u64,
    /// Deliveries that failed: to be retried, or dead.
    pub failed: u64,
    /// Deliveries whose wait for the claim is known.
    pub picked_up: u64,
    /// The sum of their waits since they became ready.
    #[serde(rename = "waited_us", serialize_with = "micros")]
    pub waited: Duration,
}

fn micros<S: serde::Serializer>(time: &Duration, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Throughput {
    /// Counts a delivery with this settlement.
    pub(crate) fn count(&mut self, settlement: &Settlement) {
        match settlement {
            Settlement::Ack | Settlement::Repeated | Settlement::Discard { .. } => self.done += 1,
            Settlement::Retry { .. }
            | Settlement::RetryAt { .. }
            | Settlement::DeadLetter { .. } => self.failed += 1,
            Settlement::Release | Settlement::Snooze { .. } => {}
        }
    }
}
