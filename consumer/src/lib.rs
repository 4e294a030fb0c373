//! Consumers: claim messages, run handlers on them, settle them.
//!
//! [`Consumer`] runs registered handlers; [`Receiver`] hands out deliveries that the caller's own
//! code settles. With the feature `command`, `exec` and `webhook` are handlers for users who write
//! no Rust, and `forward` forwards a topic to another system.

mod bell;
mod breaker;
mod consumer;
mod decode;
mod error;
#[cfg(feature = "command")]
pub mod exec;
#[cfg(feature = "command")]
pub mod forward;
mod kinds;
mod ledger;
#[cfg(feature = "command")]
mod line;
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
mod services;
#[cfg(feature = "command")]
mod settings;
mod settler;
mod shares;
mod span;
mod sweep;
mod topic_loop;
#[cfg(feature = "command")]
pub mod webhook;

pub use rowmq_service::signals::Shutdown;

pub use crate::breaker::{ErrorRate, InvalidErrorRate};
pub use crate::consumer::{Consumer, ConsumerBuilder};
pub use crate::error::Error;
pub use crate::kinds::Kinds;
pub use crate::listener::{SettledDelivery, SettledListener};
pub use crate::middleware::{Middleware, Next};
pub use crate::options::{ConsumerOptions, DoorbellMode, TopicOptions};
pub use crate::receiver::{Received, Receiver};
#[cfg(feature = "command")]
pub use crate::settings::SettingsArgs;
