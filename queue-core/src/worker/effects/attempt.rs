//! One transaction: look, handle, settle last, commit.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::acks::Acks;
use super::failure::{conflict, judge, refused, unfinished};
use super::ground::{Ground, Held, TxState};
use super::{Effects, Perform};
use crate::connection::Connection;
use crate::handler::{Context, RunOutcome};
use crate::model::{Error, Fault, Result, TopicSettings};
use crate::store::ledger;

pub(super) const OPERATION: &str = "run in a transaction";

/// The outcome of an attempt.
pub(super) enum Attempt {
    Committed,
    /// The commit had no answer, and its rows are gone or could not be checked.
    InDoubt,
    /// These deliveries must not be handled; nothing else was done.
    Without(Vec<(usize, RunOutcome)>),
    /// Everything is rolled back, and the handler is not at fault.
    Again(Error),
    /// Everything is rolled back: another transaction had locked what the settle needed, for longer
    /// than the server's lock wait.
    Blocked(Error),
    /// The connection or its server failed, and everything is rolled back.
    Lost(Error),
    /// Everything is rolled back: the handler failed.
    Failed(RunOutcome),
    /// The handler ended the transaction: its effects cannot be undone.
    Ended,
    /// No transaction could be begun.
    Unable,
    /// The handler was dropped.
    GivenUp,
}

/// How far the transaction itself came.
enum Settle {
    Committed,
    /// It is rolled back.
    No(Error),
    /// The commit had no answer.
    InDoubt(Error),
    /// There was nothing to settle in.
    Unsettled(TxState),
}

impl<G: Ground> Effects<G> {
    pub(super) async fn attempt(
        &self,
        contexts: &[Context],
        topic: &TopicSettings,
        handler: &impl Perform<<G::Held as Held>::Conn>,
        give_up: &CancellationToken,
    ) -> Attempt {
        // Owned here: wherever this returns without trusting the connection, the connection is
        // closed, and the server rolls back.
        let mut held = match self.ground.check_out().await {
            Ok(held) => held,
            Err(error) => return unable(&error),
        };
        let expired = match in_time(self.deadline, self.begin(&mut held, contexts, topic)).await {
            Ok(Looked { without, expired }) if without.is_empty() => expired,
            Ok(Looked { without, .. }) => {
                if roll_back(self.deadline, &mut held).await.is_ok() {
                    held.trust();
                }
                return Attempt::Without(without);
            }
            Err(error) => return unable(&error),
        };
        let performed = AssertUnwindSafe(handler.perform(contexts, held.conn())).catch_unwind();
        let outcome = match give_up.run_until_cancelled(performed).await {
            None => return Attempt::GivenUp,
            Some(Err(panic)) => RunOutcome::of_panic(&*panic),
            Some(Ok(outcome)) => outcome,
        };
        if !matches!(outcome, RunOutcome::Returned(Ok(()))) {
            return self.fail(&mut held, outcome).await;
        }
        match self.settle(&mut held, contexts, topic, &expired).await {
            Settle::Committed => {
                held.trust();
                Attempt::Committed
            }
            Settle::Unsettled(TxState::Ended) => Attempt::Ended,
            Settle::Unsettled(_) => Attempt::Failed(RunOutcome::Returned(Err(unfinished()))),
            Settle::No(error) => {
                // A session that has not answered may answer yet: only closing it helps.
                if error.fault() != Fault::Gone {
                    drop(roll_back(self.deadline, &mut held).await);
                }
                match error.fault() {
                    Fault::LockWait => Attempt::Blocked(error),
                    _ => refused(error),
                }
            }
            Settle::InDoubt(error) => {
                drop(held);
                self.resolve(contexts, topic, error, give_up).await
            }
        }
    }

    /// Rolls back after a handler that failed. The handler may have left the connection in any
    /// state, so the connection is not used again; but its locks should go now.
    async fn fail(&self, held: &mut G::Held, outcome: RunOutcome) -> Attempt {
        // A deadlock has ended the transaction, as the handler might have.
        if let Some(error) = conflict(&outcome) {
            drop(roll_back(self.deadline, held).await);
            return Attempt::Again(error);
        }
        let state = in_time(self.deadline, held.state()).await;
        if state.is_ok() {
            drop(roll_back(self.deadline, held).await);
        }
        judge(outcome, state)
    }

    /// Begins, and checks which deliveries must be handled. It takes no locks, because the settle
    /// under the fence decides.
    async fn begin(
        &self,
        held: &mut G::Held,
        contexts: &[Context],
        topic: &TopicSettings,
    ) -> Result<Looked> {
        held.begin().await?;
        let own = Acks::of(self.worker, contexts, topic).read_own(held.conn()).await?;
        let entries = look(held.conn(), contexts, topic).await?;
        let mut without = Vec::new();
        for (nth, context) in contexts.iter().enumerate() {
            let (delivery, mut live) = (&context.delivery, entries.iter().filter(|e| !e.expired));
            if !own.contains(&(delivery.claim_no, delivery.row)) {
                // The work session finds it fenced when it gives it back.
                without.push((nth, RunOutcome::Interrupted));
            } else if live.any(|entry| Some(&entry.biz_id) == delivery.biz_id.as_ref()) {
                without.push((nth, RunOutcome::Repeated));
            }
        }
        let expired = entries.into_iter().filter(|entry| entry.expired);
        Ok(Looked { without, expired: expired.map(|entry| entry.biz_id).collect() })
    }

    /// Enters the ledger, settles the rows and commits.
    async fn settle(
        &self,
        held: &mut G::Held,
        contexts: &[Context],
        topic: &TopicSettings,
        expired: &[Vec<u8>],
    ) -> Settle {
        match in_time(self.deadline, held.state()).await {
            Ok(TxState::Open) => {}
            Ok(state) => return Settle::Unsettled(state),
            Err(error) => return Settle::No(error),
        }
        let settling = self.settle_last(held.conn(), contexts, topic, expired);
        if let Err(error) = in_time(self.deadline, settling).await {
            return Settle::No(error);
        }
        match in_time(self.deadline, held.commit()).await {
            Ok(()) => Settle::Committed,
            Err(error) if matches!(error.fault(), Fault::Gone | Fault::Interrupted) => {
                Settle::InDoubt(error)
            }
            Err(error) => Settle::No(error),
        }
    }

    async fn settle_last(
        &self,
        conn: &mut impl Connection,
        contexts: &[Context],
        topic: &TopicSettings,
        expired: &[Vec<u8>],
    ) -> Result<()> {
        if let Some(topic) = contexts.first().map(|context| context.delivery.topic_id) {
            for biz_id in expired {
                ledger::drop_expired(conn, topic, biz_id).await?;
            }
        }
        Acks::of(self.worker, contexts, topic).settle(conn).await
    }
}

/// The result of the check before the handler runs.
struct Looked {
    /// Deliveries that must not be handled, and why.
    without: Vec<(usize, RunOutcome)>,
    /// Biz ids that the ledger has kept beyond their time.
    expired: Vec<Vec<u8>>,
}

async fn look(
    conn: &mut impl Connection,
    contexts: &[Context],
    topic: &TopicSettings,
) -> Result<Vec<ledger::Entry>> {
    let biz_ids: Vec<&[u8]> =
        contexts.iter().filter_map(|context| context.delivery.biz_id.as_deref()).collect();
    match contexts.first() {
        Some(first) if topic.ledger_window.is_some() && !biz_ids.is_empty() => {
            ledger::look(conn, first.delivery.topic_id, &biz_ids).await
        }
        _ => Ok(Vec::new()),
    }
}

/// Drops the future past the deadline; its connection must then be dropped too.
pub(super) async fn in_time<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let timed = tokio::time::timeout(deadline, work).await;
    timed.unwrap_or(Err(Error::Deadline { operation: OPERATION, deadline }))
}

pub(super) async fn roll_back(deadline: Duration, held: &mut impl Held) -> Result<()> {
    in_time(deadline, held.roll_back()).await
}

fn unable(error: &Error) -> Attempt {
    tracing::warn!(%error, "Deliveries are given back: no transaction can be begun for them.");
    Attempt::Unable
}
