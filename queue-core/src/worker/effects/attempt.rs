//! One transaction: look, handle, settle last, commit.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection};
use diesel_async::{SimpleAsyncConnection, TransactionManager};
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::{Effects, Perform, acks};
use crate::connection::Connection;
use crate::error::{Error, Fault, Result};
use crate::handler::{Context, HandlerError, RunOutcome};
use crate::store::ledger;
use crate::topic::TopicSettings;
use crate::worker::settling::{Batch, Care};

const OPERATION: &str = "run in a transaction";

/// With autocommit off, what a handler writes after a deadlock that it ignored is rolled back too.
/// The savepoint goes when the transaction ends, whoever ends it.
const BEGIN: &str = "SET autocommit = 0; BEGIN; SAVEPOINT queue_run";

/// Fails if the transaction is not the one that was begun.
const STILL_OPEN: &str = "RELEASE SAVEPOINT queue_run";

/// What an attempt came to.
pub(super) enum Attempt {
    Committed,
    /// A commit had no answer, and its rows are gone, or nobody could look.
    InDoubt,
    /// These of its deliveries are not to be handled; nothing else was done.
    Without(Vec<(usize, RunOutcome)>),
    /// All is rolled back, and it was nobody's fault.
    Again(Error),
    /// All is rolled back: the handler failed.
    Failed(RunOutcome),
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
    /// The handler ended the transaction.
    Ended,
}

impl Effects {
    pub(super) async fn attempt(
        &self,
        contexts: &[Context],
        topic: &TopicSettings,
        handler: &impl Perform,
        give_up: &CancellationToken,
    ) -> Attempt {
        // Owned here: wherever this returns without trusting it, it is closed, and the server
        // rolls back.
        let mut checked_out = match self.pool.check_out().await {
            Ok(checked_out) => checked_out,
            Err(error) => return unable(&error),
        };
        let conn = checked_out.conn();
        let expired = match in_time(self.deadline, self.begin(conn, contexts, topic)).await {
            Ok(Looked { without, expired }) if without.is_empty() => expired,
            Ok(Looked { without, .. }) => {
                if roll_back(self.deadline, conn).await.is_ok() {
                    checked_out.trust();
                }
                return Attempt::Without(without);
            }
            Err(error) => return unable(&error),
        };
        let performed = AssertUnwindSafe(handler.perform(contexts, conn)).catch_unwind();
        let outcome = match give_up.run_until_cancelled(performed).await {
            None => return Attempt::GivenUp,
            Some(Err(panic)) => return Attempt::Failed(RunOutcome::Panicked(text_of(&*panic))),
            Some(Ok(outcome)) => outcome,
        };
        if !matches!(outcome, RunOutcome::Returned(Ok(()))) {
            // A query that the handler has dropped half-way may have left its reply on the
            // connection, so this one is not used again; but its locks should go now.
            if depth(conn) == Some(1) {
                drop(roll_back(self.deadline, conn).await);
            }
            return match conflict(&outcome) {
                Some(error) => Attempt::Again(error),
                None => Attempt::Failed(outcome),
            };
        }
        match self.settle(conn, contexts, topic, &expired).await {
            Settle::Committed => {
                checked_out.trust();
                Attempt::Committed
            }
            Settle::Ended => Attempt::Failed(RunOutcome::Returned(Err(ended()))),
            Settle::No(error) => {
                // One that has not answered may answer yet: only closing helps.
                if error.fault() != Fault::Gone {
                    drop(roll_back(self.deadline, conn).await);
                }
                refused(error)
            }
            Settle::InDoubt(error) => {
                drop(checked_out);
                self.resolve(contexts, topic, error, give_up).await
            }
        }
    }

    /// Begins, and looks which deliveries are to be handled: without a lock, because the settle
    /// under the fence decides.
    async fn begin(
        &self,
        conn: &mut AsyncMysqlConnection,
        contexts: &[Context],
        topic: &TopicSettings,
    ) -> Result<Looked> {
        let named = |error: diesel::result::Error| Error::database(OPERATION, &error);
        AnsiTransactionManager::begin_transaction_sql(conn, BEGIN).await.map_err(named)?;
        let own = Batch::new(self.worker, acks(contexts, topic)).read_own(conn).await?;
        let entries = look(conn, contexts, topic).await?;
        let mut without = Vec::new();
        for (nth, context) in contexts.iter().enumerate() {
            let (delivery, mut live) = (&context.delivery, entries.iter().filter(|e| !e.expired));
            if !own.contains(&(delivery.claim_no, delivery.row)) {
                // The work session finds that it is fenced when it gives it back.
                without.push((nth, RunOutcome::Interrupted));
            } else if live.any(|entry| Some(&entry.biz_id) == delivery.biz_id.as_ref()) {
                without.push((nth, RunOutcome::Repeated));
            }
        }
        let expired = entries.into_iter().filter(|entry| entry.expired);
        Ok(Looked { without, expired: expired.map(|entry| entry.biz_id).collect() })
    }

    /// The ledger, the rows, the commit.
    async fn settle(
        &self,
        conn: &mut AsyncMysqlConnection,
        contexts: &[Context],
        topic: &TopicSettings,
        expired: &[Vec<u8>],
    ) -> Settle {
        if depth(conn) != Some(1) {
            return Settle::Ended;
        }
        let batch = Batch::new(self.worker, acks(contexts, topic));
        let settling = async {
            if let Err(error) = SimpleAsyncConnection::batch_execute(conn, STILL_OPEN).await {
                let error = Error::database(OPERATION, &error);
                return Ok(if error.to_string().contains("does not exist") {
                    Some(Settle::Ended)
                } else {
                    Some(Settle::No(error))
                });
            }
            if let Some(topic) = contexts.first().map(|context| context.delivery.topic_id) {
                for biz_id in expired {
                    ledger::drop_expired(conn, topic, biz_id).await?;
                }
            }
            let unsettled = batch.run(conn, self.worker, &[], Care::Once).await?;
            let missing = unsettled.missing.len() + unsettled.blocked.len();
            crate::store::moves::equal(OPERATION, contexts.len(), contexts.len() - missing)?;
            Ok(None)
        };
        match in_time(self.deadline, settling).await {
            Ok(None) => {}
            Ok(Some(settle)) => return settle,
            Err(error) => return Settle::No(error),
        }
        let commit = async {
            let committed = AnsiTransactionManager::commit_transaction(conn).await;
            committed.map_err(|error| Error::database(OPERATION, &error))
        };
        match in_time(self.deadline, commit).await {
            Ok(()) => Settle::Committed,
            Err(error) if matches!(error.fault(), Fault::Gone | Fault::Interrupted) => {
                Settle::InDoubt(error)
            }
            Err(error) => Settle::No(error),
        }
    }
}

/// What a look before the handler found.
struct Looked {
    /// Deliveries that are not to be handled, and why.
    without: Vec<(usize, RunOutcome)>,
    /// Biz ids that the ledger still has beyond their time.
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

/// Past the deadline the future is dropped, and its connection must be too.
pub(super) async fn in_time<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let timed = tokio::time::timeout(deadline, work).await;
    timed.unwrap_or(Err(Error::Deadline { operation: OPERATION, deadline }))
}

pub(super) async fn roll_back(deadline: Duration, conn: &mut AsyncMysqlConnection) -> Result<()> {
    let rolling_back = async {
        let rolled_back = AnsiTransactionManager::rollback_transaction(conn).await;
        rolled_back.map_err(|error| Error::database(OPERATION, &error))
    };
    in_time(deadline, rolling_back).await
}

/// How many transactions diesel knows to be open, one within the other.
fn depth(conn: &mut AsyncMysqlConnection) -> Option<u32> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    status.transaction_depth().ok().flatten().map(u32::from)
}

fn unable(error: &Error) -> Attempt {
    tracing::warn!(%error, "Deliveries are given back: no transaction can be begun for them.");
    Attempt::Unable
}

/// Why the settle was refused. A count that is off, and a biz id that somebody has entered
/// meanwhile, show when the next attempt looks.
fn refused(error: Error) -> Attempt {
    let shows = matches!(error, Error::Counts { .. }) || error.fault() == Fault::Duplicate;
    if shows || error.fault().is_conflict() {
        Attempt::Again(error)
    } else {
        Attempt::Failed(RunOutcome::Returned(Err(HandlerError::retry(error))))
    }
}

/// The conflict that a handler failed with, however deep it lies in the error.
fn conflict(outcome: &RunOutcome) -> Option<Error> {
    let RunOutcome::Returned(Err(HandlerError::Retry(error) | HandlerError::RetryAfter(_, error))) =
        outcome
    else {
        return None;
    };
    let message = crate::handler::chain(&**error);
    let fault = Fault::of_text(&message);
    fault.is_conflict().then_some(Error::Database { operation: OPERATION, fault, message })
}

fn ended() -> HandlerError {
    HandlerError::dead(
        "the handler ended its transaction: by COMMIT or ROLLBACK, by a statement that commits (one \
         that makes or changes a table, say), or it went on after a deadlock; see what it has done \
         before you redrive this message",
    )
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "with something that is no text".to_owned())
}
