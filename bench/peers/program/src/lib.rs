//! What the programs of all peers have in common: the arguments, the clock, the count of handled
//! messages and the final line of JSON. Each peer adds its own part as a [`Peer`].

mod arguments;
mod database;
mod measure;
mod messages;
mod report;
mod tally;

use std::future::Future;
use std::sync::Arc;

pub use arguments::Case;
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

    /// How a statement that claims jobs begins, as the server's process list shows it. Sorting a
    /// large backlog takes seconds, so such a statement outlives the program and would slow down
    /// the next measurement. It is killed when the program ends.
    const CLAIM: &'static str;

    /// Connects with everything `case` needs, and creates the tables that are missing.
    fn open(database: Database, case: &Case) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// The settings chosen for `case`, worded for a table of results.
    fn settings(case: &Case) -> String;

    /// Enqueues one producer's share of the messages, by the best means that the peer has.
    fn enqueue(&self, share: Messages) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Stores at most [`Messages::BATCH`] messages as the peer would, in one statement of ours.
    fn insert(&self, batch: Messages) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Runs one consumer whose handler only passes the number of its message to `tally`. It returns
    /// only if the peer's workers end, which is a failure.
    fn consume(&self, tally: Arc<Tally>) -> impl Future<Output = anyhow::Result<()>> + Send;
}
