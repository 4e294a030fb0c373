//! Logs: to standard error, as text or JSON. Bodies and passwords never reach them.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::args::{LogFormat, ServiceArgs};

/// The filter of the process's logs.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging as `args` say. A second call changes nothing.
pub fn init(args: &ServiceArgs) {
    let (filter, handle) = reload::Layer::new(filter(args));
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    #[cfg(feature = "otlp")]
    let (registry, refused) = match crate::traces::layer() {
        Ok(layer) => (registry.with(layer), None),
        Err(error) => (registry.with(None), Some(error)),
    };
    let started = match args.log_format {
        LogFormat::Text => {
            registry.with(logs.with_ansi(std::io::stderr().is_terminal())).try_init()
        }
        LogFormat::Json => registry.with(logs.json().flatten_event(true)).try_init(),
    };
    if started.is_err() || FILTER.set(handle).is_err() {
        tracing::debug!("Logging has been started already.");
    }
    #[cfg(feature = "otlp")]
    if let Some(error) = refused {
        tracing::warn!("{error}");
    }
}

/// Logs what `args` say from here on.
pub fn change(args: &ServiceArgs) {
    if let Some(Err(error)) = FILTER.get().map(|handle| handle.reload(filter(args))) {
        tracing::warn!(%error, "What is logged could not be changed.");
    }
}

/// What the arguments' own parser has let through. Without it (in a test) it is as if nothing had
/// been said.
fn filter(args: &ServiceArgs) -> EnvFilter {
    let filter = EnvFilter::new(if args.log.is_empty() { "info" } else { &args.log });
    #[cfg(feature = "otlp")]
    if crate::traces::is_wanted() {
        // The spans of messages, whatever else is logged; there is nothing but spans.
        let spans = crate::traces::TARGETS.map(|target| format!("{target}=info").parse());
        return spans.into_iter().flatten().fold(filter, EnvFilter::add_directive);
    }
    filter
}
