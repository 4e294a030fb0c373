//! Resolving a commit that had no answer.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Effects;
use super::acks::Acks;
use super::attempt::{Attempt, in_time, roll_back};
use super::ground::{Ground, Held};
use crate::chance;
use crate::handler::Context;
use crate::model::{ClaimNo, Error, Result, RowId, TopicSettings};

/// The first wait before a retry; it doubles up to a second.
const BACKOFF: Duration = Duration::from_millis(20);

impl<G: Ground> Effects<G> {
    /// Finds out whether the transaction was committed, by locking its rows on another connection.
    ///
    /// The old transaction had deleted the rows, so its session holds their locks as long as it may
    /// still commit. Once this session has the locks, the old one has ended. Rows that are there
    /// were not acked, and everything is rolled back. Rows that are gone were acked by it, or taken
    /// by another worker because this one was presumed dead; which of the two cannot be known.
    pub(super) async fn resolve(
        &self,
        contexts: &[Context],
        topic: &TopicSettings,
        error: Error,
        give_up: &CancellationToken,
    ) -> Attempt {
        tracing::warn!(worker.id = %self.worker, %error, "A commit had no answer; looking again.");
        let mut backoff = BACKOFF;
        loop {
            match self.own(contexts, topic).await {
                // Either all of them or none were acked: if some are gone, they were taken, and the
                // next attempt notices.
                Ok(own) if !own.is_empty() => return Attempt::Again(error),
                Ok(_) => return Attempt::InDoubt,
                Err(error) => {
                    tracing::debug!(worker.id = %self.worker, %error, "Cannot look yet.");
                    if give_up.is_cancelled() {
                        return Attempt::InDoubt;
                    }
                    let wait = backoff.mul_f64(chance::between(0.5..=1.5));
                    tokio::time::sleep(wait).await;
                    backoff = (backoff * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Reads which rows are still the claims' own; an error while another session has one locked.
    async fn own(
        &self,
        contexts: &[Context],
        topic: &TopicSettings,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let acks = Acks::of(self.worker, contexts, topic);
        let mut held = self.ground.check_out().await?;
        let own = in_time(self.deadline, async {
            held.begin().await?;
            acks.wait_for_own(held.conn()).await
        })
        .await?;
        if roll_back(self.deadline, &mut held).await.is_ok() {
            held.trust();
        }
        Ok(own)
    }
}
