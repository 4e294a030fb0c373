//! What the programs of all peers have in common: the arguments, the clock, the count of handled
//! messages and the final line of JSON. Each peer adds its own part as a [`Peer`].

mod arguments;
#[cfg(feature = "sql")]
mod database;
mod measure;
mod messages;
mod report;
mod tally;

use std::future::Future;
use std::sync::Arc;

pub use arguments::Case;
#[cfg(feature = "sql")]
pub use database::Database;
pub use measure::run;
pub use messages::Messages;
pub use tally::Tally;

/// Another queue, under the same load as ours.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// The name of its crate.
    const NAME: &'static str;

    /// The version of its crate, as in the lock file of its package.
    const VERSION: &'static str;

    /// Connects with everything `case` needs, and makes the tables, streams or queues that are
    /// missing. A broker begins an `enqueue` and a `fill` with an empty queue.
    fn open(url: &str, case: &Case) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// The settings chosen for `case`, worded for a table of results. A broker's version is one.
    fn settings(&self, case: &Case) -> String;

    /// Enqueues these messages together by the best means that the peer has, and returns when all
    /// of them are stored. `producer` counts from zero; each calls this for one batch at a time.
    fn enqueue(
        &self,
        producer: usize,
        batch: Messages,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Stores at most [`Messages::BATCH`] messages for a backlog: unless there are rows that can be
    /// inserted faster, as `enqueue` does.
    fn insert(
        &self,
        filler: usize,
        batch: Messages,
    ) -> impl Future<Output = anyhow::Result<()>> + Send {
        self.enqueue(filler, batch)
    }

    /// Runs one consumer whose handler only passes the number of its message to `tally`. It returns
    /// only if the peer's workers end, which is a failure.
    fn consume(&self, tally: Arc<Tally>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Ends what still runs on the server once the consumers were stopped.
    fn end(_url: &str) -> impl Future<Output = anyhow::Result<()>> {
        std::future::ready(Ok(()))
    }
}
