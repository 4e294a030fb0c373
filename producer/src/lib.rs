//! A producer: sends messages in transactions of its own, and resends them until each is stored
//! exactly once.
//!
//! A message that joins a transaction of *yours* needs no producer: call [`rowmq_core::enqueue`] on
//! your own connection, and the message is stored if and only if your transaction commits.
//!
//! ```no_run
//! use rowmq_producer::{Producer, ProducerOptions};
//! use rowmq_core::{NewMessage, TopicName, connection::ServerUrl};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = ServerUrl::new("mysql://app:secret@db.example/shop")?;
//! let producer = Producer::connect(url, ProducerOptions::default()).await?;
//! let mail = TopicName::new("mail")?;
//! let sent = producer.send(&mail, NewMessage::json(&"welcome, Ada")?).await?;
//! println!("{} is stored", sent.msg_id);
//! producer.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # How nothing is stored twice
//!
//! A connection that breaks while a batch is sent leaves its client without an answer. A blind
//! resend would store the batch a second time. So every batch goes through a *lane*: a row with a
//! sequence number that the batch's own INSERT advances. Afterwards the number shows whether the
//! batch was committed. The query locks the row, so it waits for a commit that is still in progress
//! on the lost connection. It also advances the number past a statement that has not arrived yet,
//! so that the server refuses that statement when it arrives.
//!
//! # How an outage is bridged
//!
//! With [`ProducerOptions::spill`], messages that the server does not accept go into a journal on
//! this machine's disk, and from there to the server when it is back: in order, each once, even if
//! this process is killed at any point. Before a batch is sent, the disk holds which lane and which
//! number it uses, so that the next process can ask for the batch's outcome.

mod accumulator;
mod batch;
mod error;
mod lane;
mod lanes;
mod options;
mod outlet;
mod producer;
mod receipt;
mod resend;
mod spill;

pub use self::error::SendError;
pub use self::options::{
    Batching, ProducerOptions, Progress, ProgressListener, ResendPolicy, SpillOptions,
};
pub use self::producer::Producer;
pub use self::receipt::{Destination, Outcome, Receipt, Sent};
pub use self::spill::Spilled;
