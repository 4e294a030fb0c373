//! What every peer is as a program: the arguments, the clock, the count of what was handled and
//! the line of JSON in the end. A peer brings only what is its own, as a [`Peer`].

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

/// A queue of somebody else, under the same load as ours.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// The name of its crate.
    const NAME: &'static str;

    /// The version of its crate, as in the lock file of its package.
    const VERSION: &'static str;

    /// How a statement begins that claims jobs, as the server's process list shows it. Such a
    /// statement outlives the program by the seconds a large backlog takes to sort, and would
    /// burden whatever is measured next: it is ended with the program.
    const CLAIM: &'static str;

    /// Connects with everything `case` needs, and creates the tables that are missing.
    fn open(database: Database, case: &Case) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// What was chosen for `case`, in words that stand in a table of results.
    fn settings(case: &Case) -> String;

    /// One producer enqueues its share of the messages, by the best means the peer has.
    fn enqueue(&self, share: Messages) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Stores at most [`Messages::BATCH`] messages as the peer would, in one statement of ours.
    fn insert(&self, batch: Messages) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Runs one consumer whose handler does nothing but tell `tally` the number of its message.
    /// It ends only when the peer's workers do, which is a failure.
    fn consume(&self, tally: Arc<Tally>) -> impl Future<Output = anyhow::Result<()>> + Send;
}
