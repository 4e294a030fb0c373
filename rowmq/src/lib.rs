//! A message queue that lives in the MySQL or MariaDB server that you already run.
//!
//! A message is a [`Job`]: a type with a topic. You enqueue it in your own transaction, and it
//! exists if and only if that transaction commits:
//!
//! ```no_run
//! # use rowmq::{AsyncMysqlConnection, Job};
//! # #[derive(serde::Serialize, serde::Deserialize, Job)]
//! # #[job(topic = "mail")]
//! # struct Mail { to: String, text: String }
//! # async fn order(conn: &mut AsyncMysqlConnection) -> Result<(), rowmq::Error> {
//! Mail { to: "ada@example.com".into(), text: "Thank you".into() }.enqueue(conn).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Worker`] handles it, in any number of processes:
//!
//! ```no_run
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! # Features
//!
//! | feature | what it brings |
//! |---|---|
//! | `worker` (default) | [`Worker`], and [`consumer`] for what it does not cover |
//! | `endpoint` | metrics and probes of a worker by HTTP |
//! | `otlp` | spans for an OpenTelemetry collector |
//! | `producer` | messages in transactions of their own, sent again until each is stored once |
//! | `test` | a throw-away queue for each of your tests |

mod job;

#[cfg(feature = "worker")]
mod failure;
#[cfg(feature = "worker")]
mod worker;

pub use rowmq_core::connection::ServerUrl;
pub use rowmq_core::handler::{Context, Decide, HandlerError};
pub use rowmq_core::model::{Topic, TopicSettings};
pub use rowmq_core::topic::ensure as ensure_topic;
pub use rowmq_core::{
    AsyncMysqlConnection, Delivery, Enqueued, Error, Moment, MsgId, NewMessage, OnConflict,
    Priority, TopicName, Unique, cancel, enqueue, enqueue_all, reschedule,
};
pub use rowmq_macros::Job;

#[cfg(feature = "worker")]
pub use crate::failure::{Failure, Outcome};
pub use crate::job::Job;
#[cfg(feature = "worker")]
pub use crate::worker::{Run, Worker};

/// The schema, the claim protocol and everything else that the other crates build on.
pub use rowmq_core as core;

/// Handlers of every kind: batches, bytes, transactions, middleware; deliveries by hand.
#[cfg(feature = "worker")]
pub use rowmq_consumer as consumer;

/// Lanes of messages that are sent again until each is stored.
#[cfg(feature = "producer")]
pub use rowmq_producer as producer;

/// Queues for tests.
#[cfg(feature = "test")]
pub use rowmq_test as test;

/// The examples of the README and of the guides, so that they are compiled.
#[cfg(doctest)]
mod guides {
    macro_rules! compiled {
        ($($Page:ident: $path:literal),+ $(,)?) => {
            $(#[doc = include_str!(concat!("../../", $path))]
            struct $Page;)+
        };
    }

    compiled! {
        Readme: "README.md",
        Rust: "docs/rust.md",
        Outbox: "docs/how-to/outbox.md",
        Payment: "docs/how-to/exactly-once-payment.md",
        Production: "docs/worker-in-production.md",
    }
}
