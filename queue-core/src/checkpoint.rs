//! Checkpoints: how far the handler of a long message has come, for the delivery that goes on.
//!
//! A checkpoint is kept beside the message, under its id, and only the claim that has the message
//! can save one. It goes with the ack or the discard of a delivery that has asked for it or saved
//! it; one of a dead letter stays for the redrive. What is left over is pruned, and never taken for
//! one of a later message with the same id.
//!
//! ```
//! use rowmq_core::handler::{Context, HandlerError};
//! use rowmq_core::model::{Checkpoint, Percent};
//!
//! # async fn import(page: u64) -> std::io::Result<()> { Ok(()) }
//! async fn import_all(context: &Context, pages: u64) -> Result<(), HandlerError> {
//!     let last = context.last_checkpoint().await?;
//!     let first: u64 = last.map_or(Ok(0), |saved| saved.json())?;
//!     for page in first..pages {
//!         import(page).await?;
//!         let next = page + 1;
//!         context.checkpoint(Checkpoint::json(&next)?.at(Percent::of(next, pages))).await?;
//!     }
//!     Ok(())
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::connection::Pool;
use crate::model::{Checkpoint, Delivery, Error, Result, Saved, WorkerId};
use crate::store::checkpoint;

/// How large a checkpoint may be, in bytes: it is a place to go on from, not a result.
pub const LIMIT: usize = 1 << 20;

/// How long after it was saved a checkpoint is kept whose message never came to an end: as long as
/// somebody may redrive a dead letter.
pub const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the handlers of a worker keep their checkpoints. Opens nothing until one is saved or
/// asked for.
#[derive(Debug)]
pub struct Keeper {
    pool: Pool,
    worker: WorkerId,
}

impl Keeper {
    /// For the claims of this worker.
    #[must_use]
    pub fn new(pool: Pool, worker: WorkerId) -> Self {
        Self { pool, worker }
    }
}

/// The checkpoints that a run can save; of a run in a test, by default, none.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    keeper: Option<Arc<Keeper>>,
    /// The run has looked for one, or saved one.
    used: Arc<AtomicBool>,
}

impl Checkpoints {
    /// Of one run.
    #[must_use]
    pub fn of_run(keeper: &Arc<Keeper>) -> Self {
        Self { keeper: Some(Arc::clone(keeper)), used: Arc::default() }
    }

    /// Whether there may be one to remove when the message is done.
    #[must_use]
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) async fn save(&self, delivery: &Delivery, checkpoint: Checkpoint) -> Result<()> {
        let len = checkpoint.state.len();
        if len > LIMIT {
            return Err(Error::InvalidCheckpoint {
                reason: "it has more than a MiB; keep what is large elsewhere, and here where it is",
            });
        }
        let keeper = self.keeper(delivery)?;
        let worker = keeper.worker;
        let save = async |conn: &mut _| checkpoint::save(conn, worker, delivery, &checkpoint).await;
        let saved = keeper.pool.call("save the checkpoint", save).await?;
        if saved == 0 { Err(Error::ClaimLost { msg_id: delivery.msg_id }) } else { Ok(()) }
    }

    pub(crate) async fn last(&self, delivery: &Delivery) -> Result<Option<Saved>> {
        let keeper = self.keeper(delivery)?;
        let read = async |conn: &mut _| checkpoint::read(conn, delivery).await;
        keeper.pool.call("read the checkpoint", read).await
    }

    fn keeper(&self, delivery: &Delivery) -> Result<&Keeper> {
        if delivery.position.is_some() {
            return Err(Error::InvalidCheckpoint {
                reason: "messages of a stream have none; have the group's handler enqueue what \
                         takes long into a queue",
            });
        }
        let keeper = self.keeper.as_deref();
        let keeper =
            keeper.ok_or(Error::InvalidCheckpoint { reason: "no consumer runs this handler" })?;
        self.used.store(true, Ordering::Relaxed);
        Ok(keeper)
    }
}
