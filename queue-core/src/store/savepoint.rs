//! The point to which an enqueue of several statements rolls back when it fails, so that a caller
//! that commits anyway commits nothing of it.

use crate::connection::{Connection, roll_back_surely};
use crate::model::{Error, Result};

const OPERATION: &str = "enqueue: set the savepoint";

/// No index: sets the savepoint. Without an open transaction there is none to roll back to: both
/// servers then fail with 1305 (*run*).
///
/// # Errors
/// [`Error::NeedsTransaction`].
pub(crate) async fn set(conn: &mut impl Connection) -> Result<()> {
    tracing::trace!(step = "set");
    for statement in ["SAVEPOINT queue_enqueue", "ROLLBACK TO SAVEPOINT queue_enqueue"] {
        conn.batch(statement).await.map_err(|error| match error.to_string() {
            text if text.contains("SAVEPOINT queue_enqueue does not exist") => {
                Error::NeedsTransaction
            }
            _ => Error::database(OPERATION, &error),
        })?;
    }
    Ok(())
}

/// No index: rolls back to the savepoint. If that fails, the transaction is gone.
pub(crate) async fn roll_back(conn: &mut impl Connection) {
    if let Err(error) = roll_back_surely(conn, "ROLLBACK TO SAVEPOINT queue_enqueue").await {
        tracing::debug!(%error, "There is no savepoint to go back to any more.");
    }
}
