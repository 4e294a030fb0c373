//! Connections: where to connect ([`ServerUrl`]), how ([`connect()`]), and the two ways to hold
//! one: a dedicated [`Session`], or a [`Pool`].
//!
//! A dropped query leaves its reply unread, and the next query on that connection would read it
//! (history H26). So both ways own the connection during a call and give it back only when the call
//! completes. A call that is cancelled or misses its deadline closes the connection.

mod any;
mod connect;
mod hosts;
mod kept;
mod link;
mod pool;
mod query;
pub(crate) mod role;
mod row;
mod session;
#[cfg(feature = "simulation")]
pub mod simulation;
mod statement;
mod transaction;
mod url;

pub use self::any::{Connection, Selects};
pub use self::connect::{SessionKind, Wanted, connect, connect_to_any};
pub(crate) use self::connect::{connect_host, connect_to};
pub(crate) use self::hosts::HostNo;
pub use self::link::Link;
pub use self::pool::{CheckedOut, Pool};
pub(crate) use self::query::{
    execute, execute_surely, load, load_surely, select, select_surely, write, write_surely,
};
/// The types that a [`Connection`] reads rows as.
#[doc(hidden)]
pub use self::row::{Columns, FromColumn, FromRow};
pub(crate) use self::row::{Rest, row};
pub use self::session::Session;
/// The statements that a [`Connection`] runs.
#[doc(hidden)]
pub use self::statement::Statement;
pub use self::transaction::{again_on_conflict, transaction};
pub(crate) use self::transaction::{begin, end, roll_back_surely};
pub use self::url::{ServerUrl, Tls};
