//! Logs: to standard error, as text or JSON. Bodies and passwords never reach them.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// How logs are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// Lines of text, for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter of the process's logs.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging what `filter` lets through (`info`, or `info,rowmq_core=debug`). A second call
/// changes nothing; neither does a call in a program that has its own subscriber.
pub fn start(filter: &str, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(parsed(filter));
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    #[cfg(feature = "otlp")]
    let (registry, refused) = match crate::traces::layer() {
        Ok(layer) => (registry.with(layer), None),
        Err(error) => (registry.with(None), Some(error)),
    };
    let started = match format {
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

/// Changes the filter to `filter`.
pub fn change(filter: &str) {
    if let Some(Err(error)) = FILTER.get().map(|handle| handle.reload(parsed(filter))) {
        tracing::warn!(%error, "What is logged could not be changed.");
    }
}

/// Sends the spans that the collector does not have yet, at the end of the process. There are none
/// without the feature `otlp`.
pub fn stop() {
    #[cfg(feature = "otlp")]
    crate::traces::flush();
}

/// Parses the filter. An empty one is `info`; an invalid part is left out.
fn parsed(filter: &str) -> EnvFilter {
    let filter = EnvFilter::new(if filter.trim().is_empty() { "info" } else { filter });
    #[cfg(feature = "otlp")]
    if crate::traces::is_wanted() {
        // The spans of messages pass the filter in any case; these targets hold nothing but spans.
        let spans = crate::traces::TARGETS.map(|target| format!("{target}=info").parse());
        return spans.into_iter().flatten().fold(filter, EnvFilter::add_directive);
    }
    filter
}
