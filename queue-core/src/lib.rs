//! The core of the message queue that lives inside MySQL: its schema, every SQL statement, the
//! claim protocol, and the types that producers, consumers and the janitor share.
//!
//! This library has no knowledge of processes, signals or HTTP; those are in `queue-service` and
//! the binaries.

// The database, the connections to it, and the types that everything shares.
pub mod connection;
pub mod migration;
pub mod model;
pub mod procedures;
pub mod schema;
pub mod store;

// Enqueueing: single messages, schedules and streams.
pub mod codec;
mod enqueue;
pub mod schedule;
pub mod stream;

// Claiming, handling and settling.
pub mod checkpoint;
pub mod doorbell;
pub mod handler;
pub mod wake;
pub mod worker;

// Failures of messages and of workers.
pub mod dead;
pub mod rescue;

// Finding, inspecting and changing what is there.
pub mod cancellation;
pub mod erasure;
pub mod find;
pub mod inspect;
pub mod ready;
pub mod throughput;
pub mod topic;
pub mod trace;
mod waiting;

// Accounts, the self-test, and what the other modules build on.
pub mod account;
pub mod actor;
pub mod audit;
pub mod chance;
pub mod doctor;
pub mod telemetry;

pub use diesel_async::AsyncMysqlConnection;

pub use crate::enqueue::{
    Enqueued, Part, enqueue, enqueue_all, enqueue_in_transaction, enqueue_to, is_plain, statements,
};
pub use crate::model::{
    Delivery, Error, Fault, Headers, Moment, MsgId, NewMessage, OnConflict, Priority, Result,
    Topic, TopicName, TraceParent, Unique,
};
pub use crate::waiting::{cancel, reschedule};
