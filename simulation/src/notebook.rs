//! Where a consumer's handlers save checkpoints: queue-core's statements, on a separate connection.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::{Link, Session, SessionKind};
use rowmq_core::model::{Checkpoint, ClaimNo, RowId, WorkerId};
use rowmq_core::store::checkpoint;
use rowmq_core::{Delivery, Result};
use tokio::time::sleep;

use crate::recorder::Saved;
use crate::stage::Stage;

/// The checkpoints of one worker's handlers.
pub(crate) struct Notebook {
    stage: Rc<Stage>,
    name: String,
    worker: WorkerId,
    session: Cell<Option<Session>>,
    /// Deliveries that have looked for a checkpoint, or saved one.
    used: RefCell<HashSet<(ClaimNo, RowId)>>,
}

impl Notebook {
    pub(crate) fn new(stage: &Rc<Stage>, name: &str, worker: WorkerId) -> Self {
        let (stage, name) = (Rc::clone(stage), name.to_owned());
        Self { stage, name, worker, session: Cell::new(None), used: RefCell::default() }
    }

    /// Returns whether the handler of these saves checkpoints. Messages of a log can have none.
    pub(crate) fn is_wanted(&self, batch: &[Delivery]) -> bool {
        self.stage.settings.checkpoints
            && batch.iter().all(|delivery| delivery.position.is_none())
            && self.stage.below(3) > 0
    }

    /// Returns whether there may be a checkpoint to remove with the delivery.
    pub(crate) fn has(&self, delivery: &Delivery) -> bool {
        self.used.borrow().contains(&(delivery.claim_no, delivery.row))
    }

    /// Looks up how far the earlier runs got.
    pub(crate) async fn look_back(&self, batch: &[Delivery]) {
        let names = batch.iter().map(|delivery| (delivery.claim_no, delivery.row));
        self.used.borrow_mut().extend(names);
        for delivery in batch {
            let since = self.stage.recorder.borrow().now();
            let read = async |conn: &mut Link| checkpoint::read(conn, delivery).await;
            let Ok(found) = self.call("read the checkpoint", read).await else { return };
            let found = found.map(|saved| {
                let state = saved.checkpoint.state.try_into().expect("a number");
                (u64::from_be_bytes(state), saved.delivery_no)
            });
            let mut recorder = self.stage.recorder.borrow_mut();
            recorder.looked_back(&self.name, delivery, since, found);
        }
    }

    /// Saves how far these runs have got. Returns false if that fails: the handler then stops.
    pub(crate) async fn save(&self, batch: &[Delivery]) -> bool {
        for delivery in batch {
            let number = self.stage.recorder.borrow_mut().saving(&self.name, delivery);
            let state = Checkpoint::new(number.to_be_bytes());
            let save =
                async |conn: &mut Link| checkpoint::save(conn, self.worker, delivery, &state).await;
            let saved = match self.call("save the checkpoint", save).await {
                Ok(0) => Saved::Refused,
                Ok(_) => Saved::Stored,
                Err(_) => Saved::Unknown,
            };
            self.stage.recorder.borrow_mut().saved(delivery, number, saved);
            if saved != Saved::Stored {
                return false;
            }
        }
        true
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut Link) -> Result<T>,
    ) -> Result<T> {
        let lease = self.stage.settings.lease;
        let mut session = match self.session.take().filter(|session| !session.is_lost()) {
            Some(session) => session,
            None => {
                let url = self.stage.url(&self.name);
                let opened = Session::open(&url, SessionKind::Leased(lease), lease).await;
                if opened.is_err() {
                    sleep(Duration::from_millis(50)).await;
                }
                opened?
            }
        };
        let result = session.call(operation, work).await;
        self.session.set(Some(session));
        result
    }
}
