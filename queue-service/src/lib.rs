//! What every process of the queue shares: where the server is ([`location`]), logs, signals, its
//! health, and how it ends ([`process`]). The feature `command` adds command lines and
//! configuration files, the feature `endpoint` metrics and probes by an HTTP server with limits.

#[cfg(feature = "command")]
pub mod args;
#[cfg(feature = "command")]
pub mod command_group;
#[cfg(feature = "command")]
pub mod config;
#[cfg(feature = "endpoint")]
pub mod endpoint;
pub mod health;
#[cfg(feature = "endpoint")]
pub mod http;
pub mod identity;
pub mod location;
pub mod logging;
mod notify;
#[cfg(feature = "command")]
mod paperwork;
pub mod process;
#[cfg(feature = "command")]
pub mod reload;
pub mod signals;
pub mod start;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
