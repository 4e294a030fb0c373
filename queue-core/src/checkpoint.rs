//! Checkpoints: the progress of a long message's handler, for the next delivery to resume from.
//!
//! A checkpoint is kept beside the message, under its id, and only the claim that holds the message
//! can save one. A delivery that has read or saved a checkpoint deletes it with its ack or discard;
//! a dead letter's checkpoint stays for the redrive. Leftovers are pruned, and never taken for the
//! checkpoint of a later message with the same id.
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

/// How large a checkpoint may be, in bytes: it is a point to resume from, not a result.
pub const LIMIT: usize = 1 << 20;

/// How long a checkpoint is kept after it was saved if its message never ends: long enough for a
/// redrive of a dead letter.
pub const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The store of a worker's checkpoints. It opens no connection until a checkpoint is saved or read.
#[derive(Debug)]
pub struct Keeper {
    pool: Pool,
    worker: WorkerId,
}

impl Keeper {
    /// Creates a keeper for the claims of this worker.
    #[must_use]
    pub fn new(pool: Pool, worker: WorkerId) -> Self {
        Self { pool, worker }
    }
}

/// The checkpoints that a run can save; a run in a test has none by default.
#[derive(Debug, Clone, Default)]
pub struct Checkpoints {
    keeper: Option<Arc<Keeper>>,
    /// Whether the run has read or saved one.
    used: Arc<AtomicBool>,
}

impl Checkpoints {
    /// The checkpoints of one run.
    #[must_use]
    pub fn of_run(keeper: &Arc<Keeper>) -> Self {
        Self { keeper: Some(Arc::clone(keeper)), used: Arc::default() }
    }

    /// Whether there may be one to delete when the message is done.
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
