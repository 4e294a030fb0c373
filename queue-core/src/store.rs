//! Every SQL statement of the project, one function each.
//!
//! The functions take a connection and begin no transaction: the callers in [`crate::worker`], the
//! producer and the janitor combine them, so that each can also join a caller's transaction. Each
//! function's first line names the index it uses; the conformance suite checks the plans. Each
//! fails with [`Error::Database`](crate::Error::Database) when the server does; its `# Errors`
//! section lists any other failures.

pub mod audit;
pub mod backlog;
pub mod cancel;
pub mod checkpoint;
pub mod claim;
pub mod dead;
pub mod dedupe;
pub mod doctor;
pub mod doorbell;
pub mod duty;
pub(crate) mod echo;
pub mod enqueue;
pub mod find;
pub mod floor;
pub mod grant;
mod inserted;
pub mod inspect;
pub mod installation;
pub mod lane;
pub mod ledger;
pub mod limit;
pub mod lookup;
pub mod migration;
pub(crate) mod moment;
pub mod moves;
pub mod procedure;
pub mod process_list;
pub mod prune;
pub mod ready;
pub mod rescue;
pub mod row_set;
pub(crate) mod savepoint;
pub mod schedule;
pub mod scheduled;
pub mod server;
pub mod settle;
pub mod share;
pub mod stored;
pub mod stream;
pub mod switch;
pub mod throughput;
pub mod topic;
pub mod trace;
pub mod unique;
pub mod worker;

use self::inserted::first_inserted;
use crate::connection::{
    Statement, execute, execute_surely, load, load_surely, select, select_surely, write,
    write_surely,
};
