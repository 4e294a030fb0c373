//! Taking up a worker: on a new connection, in place of one that is lost.

use std::time::Duration;

use uuid::Uuid;

use super::WorkerOptions;
use crate::connection::{Connection, Session, SessionKind};
use crate::model::{Error, Fault, Result, WorkerId};
use crate::store::worker::{self, Role};

/// The wait for the name lock, in whole seconds; see [`worker::take_lock`].
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Opens a session in place of a lost one. The new connection takes the name lock first, so that no
/// statement of the old one can commit; then it adopts the worker.
///
/// # Errors
/// [`Error::WorkerDead`] if the worker has been declared dead, or cannot get its lock again: the
/// process then registers a new worker. Any other failure may pass.
pub(super) async fn take_up(
    options: &WorkerOptions,
    id: WorkerId,
    instance: Uuid,
    role: Role,
) -> Result<Session> {
    let kind = SessionKind::Leased(options.lease);
    let mut session = Session::open(&options.url, kind, options.deadline()).await?;
    let adopted = session.call("adopt the worker", async |conn| {
        take_name_lock(conn, instance, role).await?;
        let incarnation = worker::incarnation(conn).await?;
        worker::adopt(conn, id, instance, role, &incarnation).await
    });
    if adopted.await? == 0 {
        return Err(Error::WorkerDead { reason: "found on reconnecting".to_owned() });
    }
    Ok(session)
}

/// Takes the session's name lock. If an old session of the worker still holds it, because the
/// server has not noticed that session's end, kills that session first. Once the lock is free, no
/// statement of the old session can commit any more (history H6). A session of another account
/// cannot be killed and may keep the lock for ever.
pub(super) async fn take_name_lock(
    conn: &mut impl Connection,
    instance: Uuid,
    role: Role,
) -> Result<()> {
    if worker::take_lock(conn, instance, role, Duration::ZERO).await? {
        return Ok(());
    }
    match worker::end_old_session(conn, instance, role).await {
        Err(error) if error.fault() == Fault::Denied => {
            let reason = "another account holds its name lock".to_owned();
            return Err(Error::WorkerDead { reason });
        }
        Err(error) => tracing::debug!(
            %error, "The old session was not ended; waiting for the server to do it."
        ),
        Ok(()) => {}
    }
    if worker::take_lock(conn, instance, role, LOCK_WAIT).await? {
        return Ok(());
    }
    Err(Error::Database {
        operation: "take the worker's name lock",
        fault: Fault::LockWait,
        message: "the worker's old session still holds it".to_owned(),
    })
}
