//! What workers get done.

use std::time::Duration;

use crate::model::Settlement;

/// Totals of a topic, since it exists or since a worker was registered. They only grow, and are for
/// people to look at: a worker that is killed takes its last seconds with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Throughput {
    /// Deliveries after which the message was done.
    pub done: u64,
    /// Those that failed: to be tried again, or dead.
    pub failed: u64,
    /// Deliveries that waited to be claimed, where it is known for how long.
    pub picked_up: u64,
    /// How long they waited, all together: from when they were ready.
    #[serde(rename = "waited_us", serialize_with = "micros")]
    pub waited: Duration,
}

fn micros<S: serde::Serializer>(time: &Duration, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Throughput {
    /// Counts a delivery that was settled so.
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
