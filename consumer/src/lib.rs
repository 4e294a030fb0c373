//! Consumers: claim messages, run handlers on them, settle them.
//!
//! [`Consumer`] runs registered handlers; [`Receiver`] hands out deliveries that the caller's own
//! code settles. [`exec`] and [`webhook`] are handlers for people who write no Rust, and
//! [`forward`] sends a topic on to another system.

mod bell;
mod breaker;
mod consumer;
mod crew;
mod decode;
mod error;
pub mod exec;
mod executor;
pub mod forward;
mod ledger;
mod listener;
mod members;
mod middleware;
mod options;
mod order;
mod permit;
mod poll;
mod receiver;
mod registration;
mod run;
mod runs;
mod settings;
mod settler;
mod shares;
mod span;
mod sweep;
mod topic_loop;
pub mod webhook;

pub use rowmq_service::signals::Shutdown;

pub use crate::breaker::{ErrorRate, InvalidErrorRate};
pub use crate::consumer::{Consumer, ConsumerBuilder};
pub use crate::error::Error;
pub use crate::listener::{SettledDelivery, SettledListener};
pub use crate::middleware::{Middleware, Next};
pub use crate::options::{ConsumerOptions, DoorbellMode, TopicOptions};
pub use crate::receiver::{Received, Receiver};
pub use crate::settings::SettingsArgs;

/// The README's examples, so that they are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
