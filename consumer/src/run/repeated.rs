//! Messages that are not handled because another message with their biz id was handled.

use std::time::Duration;

use rowmq_core::Topic;
use rowmq_core::handler::RunOutcome;
use tokio_util::sync::CancellationToken;

use super::{Runner, Waiting};
use crate::ledger::Ledger;

/// How long deliveries are held before they are given back because the ledger cannot be read: once
/// given back, they are claimed again at once.
const PAUSE: Duration = Duration::from_secs(1);

impl Runner {
    /// Filters out messages if another message with their biz id has been handled. If the ledger
    /// cannot be read, gives back the messages with a biz id and returns false. A transactional run
    /// checks the ledger itself.
    pub(super) async fn sift(
        &self,
        topic: &Topic,
        batch: Vec<Waiting>,
        stop: &CancellationToken,
    ) -> (Vec<Waiting>, bool) {
        let keys: Vec<&[u8]> =
            batch.iter().filter_map(|waiting| Ledger::key(topic, &waiting.delivery)).collect();
        let handled = match self.services.ledger.handled(topic, &keys).await {
            Ok(handled) => handled,
            Err(error) => {
                tracing::warn!(
                    topic.name = %topic.name, %error,
                    "Deliveries are given back: the ledger cannot be read."
                );
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                let has_key = |waiting: &Waiting| Ledger::key(topic, &waiting.delivery).is_some();
                let (unknown, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(has_key);
                for waiting in unknown {
                    self.finish(topic, waiting, RunOutcome::Interrupted);
                }
                return (rest, false);
            }
        };
        let is_repeated = |waiting: &Waiting| {
            Ledger::key(topic, &waiting.delivery).is_some_and(|key| handled.contains(key))
        };
        let (repeated, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_repeated);
        for waiting in repeated {
            self.meter.ran(RunOutcome::Repeated.word(), Duration::ZERO);
            self.finish(topic, waiting, RunOutcome::Repeated);
        }
        (rest, true)
    }
}
