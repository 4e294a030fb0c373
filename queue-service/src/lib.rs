//! What every process of the queue shares: where the server is ([`args`]), its settings
//! ([`config`]), logs, signals, the metrics and health endpoint, an HTTP server with limits
//! ([`http`]), and how it ends ([`process`]).
//!
//! Libraries do not depend on this; only binaries do.

pub mod args;
pub mod config;
pub mod endpoint;
mod health;
pub mod http;
pub mod identity;
pub mod logging;
mod notify;
mod paperwork;
pub mod process;
pub mod reload;
pub mod signals;
#[cfg(feature = "otlp")]
mod traces;
