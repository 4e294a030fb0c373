//! Deciding what caused a transaction to fail.

use super::attempt::{Attempt, OPERATION};
use super::ground::TxState;
use crate::handler::{HandlerError, RunOutcome};
use crate::model::{Error, Fault, Result, chain};

/// Why the settle was refused. The next attempt's check finds the cause of a wrong count, or a biz
/// id that another session has entered in the meantime.
pub(super) fn refused(error: Error) -> Attempt {
    let fault = error.fault();
    let shows = matches!(error, Error::Counts { .. }) || fault == Fault::Duplicate;
    if shows || fault.is_conflict() {
        Attempt::Again(error)
    } else if fault == Fault::Gone || is_of_server(fault) {
        Attempt::Lost(error)
    } else {
        Attempt::Failed(RunOutcome::Returned(Err(HandlerError::retry(error))))
    }
}

/// The outcome of a failed handler, given the state of its transaction. A verdict that is no
/// failure stands, whatever became of the connection.
pub(super) fn judge(outcome: RunOutcome, state: Result<TxState>) -> Attempt {
    let Some(text) = failure(&outcome) else {
        return match state {
            Ok(TxState::Ended) => Attempt::Ended,
            _ => Attempt::Failed(outcome),
        };
    };
    match state {
        Ok(TxState::Ended) => Attempt::Ended,
        // If the connection answers, the handler's lost connection is another one.
        Ok(TxState::Open) if is_of_server(Fault::of_text(&text)) => {
            Attempt::Lost(database(Fault::of_text(&text), text))
        }
        Ok(TxState::Open | TxState::Unfinished) => Attempt::Failed(outcome),
        Err(error) => match refused(error) {
            Attempt::Failed(_) => Attempt::Failed(outcome),
            other => other,
        },
    }
}

/// The conflict that a handler failed with, however deep it lies in the error.
pub(super) fn conflict(outcome: &RunOutcome) -> Option<Error> {
    let text = failure(outcome)?;
    // A deadlock rolls back everything, savepoints too, and diesel reports the savepoint rollback,
    // which found none.
    let in_nested = text.contains("SAVEPOINT diesel_savepoint_") && text.contains("does not exist");
    let fault = if in_nested { Fault::Deadlock } else { Fault::of_text(&text) };
    fault.is_conflict().then(|| database(fault, text))
}

/// The handler's error text, if it failed so that the message is to be retried.
fn failure(outcome: &RunOutcome) -> Option<String> {
    match outcome {
        RunOutcome::Returned(Err(
            HandlerError::Retry(error)
            | HandlerError::RetryAfter(_, error)
            | HandlerError::RetryAt(_, error),
        )) => Some(chain(&**error)),
        RunOutcome::Panicked(text) => Some(text.clone()),
        _ => None,
    }
}

/// Whether the server is at fault, although the connection may live.
fn is_of_server(fault: Fault) -> bool {
    matches!(fault, Fault::ReadOnly | Fault::Busy | Fault::Interrupted)
}

fn database(fault: Fault, message: String) -> Error {
    Error::Database { operation: OPERATION, fault, message }
}

pub(super) fn unfinished() -> HandlerError {
    HandlerError::retry(
        "the handler dropped a query or a nested transaction half-way, so that the replies of its \
         connection fit no question any more, and all was rolled back: let the handler await each \
         query to its end, without a timeout or a select around it",
    )
}
