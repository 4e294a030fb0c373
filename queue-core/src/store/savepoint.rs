//! The point to which an enqueue of several statements goes back when it fails, so that a caller
//! who commits all the same commits nothing of it.

use crate::connection::Connection;
use crate::model::{Error, Result};

const OPERATION: &str = "enqueue: set the savepoint";

/// No index: sets the point. Where no transaction is open there is none to go back to, which is how
/// both servers tell (1305, *run*).
///
/// # Errors
/// [`Error::NeedsTransaction`].
pub(crate) async fn set(conn: &mut impl Connection) -> Result<()> {
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

/// No index: goes back to the point. If that fails, the transaction is gone with it.
pub(crate) async fn roll_back(conn: &mut impl Connection) {
    if let Err(error) = conn.batch("ROLLBACK TO SAVEPOINT queue_enqueue").await {
        tracing::debug!(%error, "There is no savepoint to go back to any more.");
    }
}
