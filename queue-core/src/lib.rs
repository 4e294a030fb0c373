//! The core of the message queue that lives inside MySQL: its schema, every SQL statement, the
//! claim protocol, and the types that producers, consumers and the janitor share.
//!
//! This library has no knowledge of processes, signals or HTTP; those are in `queue-service` and
//! the binaries.

pub mod account;
pub mod actor;
pub mod audit;
pub mod cancellation;
pub mod chance;
pub mod checkpoint;
pub mod codec;
pub mod connection;
pub mod dead;
pub mod doctor;
pub mod doorbell;
mod enqueue;
pub mod find;
pub mod handler;
pub mod inspect;
pub mod migration;
pub mod model;
pub mod procedures;
pub mod ready;
pub mod rescue;
pub mod schedule;
pub mod schema;
pub mod store;
pub mod stream;
pub mod telemetry;
pub mod throughput;
pub mod topic;
pub mod trace;
mod waiting;
pub mod wake;
pub mod worker;

pub use diesel_async::AsyncMysqlConnection;

pub use crate::enqueue::{
    Enqueued, Part, enqueue, enqueue_all, enqueue_in_transaction, enqueue_to, is_plain, statements,
};
pub use crate::model::{
    Delivery, Error, Fault, Headers, Moment, MsgId, NewMessage, OnConflict, Priority, Result,
    Topic, TopicName, TraceParent, Unique,
};
pub use crate::waiting::{cancel, reschedule};
