//! Logs: to standard error, as text or JSON. Bodies and passwords never reach them.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{LogFormat, ServiceArgs};

/// Starts logging: at `info`, or as `RUST_LOG` says. A second call changes nothing.
pub fn init(args: &ServiceArgs) {
    // A part of RUST_LOG that cannot be read is left out; the process must start all the same.
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = if wanted.is_empty() { EnvFilter::new("info") } else { EnvFilter::new(wanted) };
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match args.log_format {
        LogFormat::Text => {
            registry.with(logs.with_ansi(std::io::stderr().is_terminal())).try_init()
        }
        LogFormat::Json => registry.with(logs.json().flatten_event(true)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("Logging has been started already.");
    }
}
