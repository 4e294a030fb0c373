//! The job whose handler does nothing.

use std::sync::{Arc, OnceLock};

use fang::{AsyncQueueable, AsyncRunnable, FangError, async_trait, typetag};
use peer_program::{Messages, Tally};
use serde::{Deserialize, Serialize};

/// What fang writes into a job's column `task_type` by default.
pub(crate) const TASK_TYPE: &str = "common";

/// fang creates the job from its row and passes it nothing from the program, so the tally is
/// global.
static TALLY: OnceLock<Arc<Tally>> = OnceLock::new();

/// From now on, counts the jobs that run in `tally`. All consumers of a program share one tally.
pub(crate) fn count_in(tally: Arc<Tally>) {
    TALLY.get_or_init(|| tally);
}

/// One message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) body: String,
}

#[typetag::serde]
#[async_trait]
impl AsyncRunnable for Job {
    async fn run(&self, _queue: &dyn AsyncQueueable) -> Result<(), FangError> {
        if let Some(tally) = TALLY.get() {
            tally.started(self.number);
        }
        Ok(())
    }
}

/// The messages as fang stores them in its column `metadata`.
pub(crate) fn stored(messages: &Messages) -> serde_json::Result<Vec<String>> {
    let body = messages.body();
    let job = |number| -> Box<dyn AsyncRunnable> { Box::new(Job { number, body: body.clone() }) };
    messages.numbers().map(|number| serde_json::to_string(&job(number))).collect()
}
