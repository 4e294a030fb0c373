//! Checkpoints: how far the handler of a long message has come, for the delivery that goes on.
//!
//! A checkpoint is kept beside the message, under its id, and only the claim that has the message
//! can save one. It goes with the ack or the discard of a delivery that has asked for it or saved
//! it; one of a dead letter stays for the redrive. What is left over is pruned, and never taken for
//! one of a later message with the same id.
//!
//! ```
//! use rowmq_core::checkpoint::{Checkpoint, Percent};
//! use rowmq_core::handler::{Context, HandlerError};
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

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::{Pool, ServerUrl};
use crate::error::{Error, Result};
use crate::message::{Delivery, DeliveryNo, WorkerId};
use crate::store::checkpoint;

/// How large a checkpoint may be, in bytes: it is a place to go on from, not a result.
pub const LIMIT: usize = 1 << 20;

/// How long after it was saved a checkpoint is kept whose message never came to an end: as long as
/// somebody may redrive a dead letter.
pub const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long one statement may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Statements at once, of all handlers of a process.
const CONNECTIONS: usize = 4;

/// How much of the work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(extend("maximum" = 100)))]
pub struct Percent(u8);

impl Percent {
    /// 0 to 100; what is more is 100.
    #[must_use]
    pub fn new(percent: u8) -> Self {
        Self(percent.min(100))
    }

    /// `done` of `all`, rounded down; of nothing, all of it.
    #[must_use]
    pub fn of(done: u64, all: u64) -> Self {
        let percent = (u128::from(done) * 100).checked_div(u128::from(all)).unwrap_or(100);
        Self::new(u8::try_from(percent).unwrap_or(100))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// A place to go on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// What the handler needs in order to go on.
    pub state: Vec<u8>,
    /// How far it is, for people: `rowmq find` shows it.
    pub progress: Option<Percent>,
}

impl Checkpoint {
    /// A place of any bytes.
    pub fn new(state: impl Into<Vec<u8>>) -> Self {
        Self { state: state.into(), progress: None }
    }

    /// A place as JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if it is none.
    pub fn json<S: Serialize>(state: &S) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(state).map(Self::new)
    }

    /// With how far the handler is.
    #[must_use]
    pub fn at(self, progress: Percent) -> Self {
        Self { progress: Some(progress), ..self }
    }
}

/// A checkpoint as it was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The place.
    pub checkpoint: Checkpoint,
    /// The delivery that saved it.
    pub delivery_no: DeliveryNo,
    /// Server time at which it did.
    pub at: DateTime<Utc>,
}

impl Saved {
    /// The place, from JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if it is not what the caller takes.
    pub fn json<S: DeserializeOwned>(&self) -> Result<S, serde_json::Error> {
        serde_json::from_slice(&self.checkpoint.state)
    }
}

/// Where the handlers of a worker keep their checkpoints. Opens nothing until one is saved or
/// asked for.
#[derive(Debug)]
pub struct Keeper {
    pool: Pool,
    worker: WorkerId,
}

impl Keeper {
    /// For the claims of this worker.
    ///
    /// # Errors
    /// [`Error::Connect`] if the pool cannot be built.
    pub fn new(url: ServerUrl, worker: WorkerId) -> Result<Self> {
        Ok(Self { pool: Pool::new(url, CONNECTIONS, DEADLINE)?, worker })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_rounded_down_and_never_more_than_all() {
        assert_eq!(Percent::of(1, 3).get(), 33);
        assert_eq!(Percent::of(999, 1000).get(), 99);
        assert_eq!(Percent::of(5, 4).get(), 100);
        assert_eq!(Percent::of(0, 0).get(), 100);
        assert_eq!(Percent::of(u64::MAX, u64::MAX).get(), 100);
    }
}
