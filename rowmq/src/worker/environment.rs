//! A worker's process as the environment configures it.

use std::ffi::OsString;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use rowmq_consumer::ConsumerOptions;
use rowmq_core::connection::ServerUrl;
use rowmq_service::health::Health;
use rowmq_service::location;
use rowmq_service::logging::{self, LogFormat};
use tokio_util::sync::CancellationToken;

/// The prefix of the variables that are fields of [`ConsumerOptions`].
const OPTIONS: &str = "ROWMQ_CONSUMER_";

const METRICS: &str = "ROWMQ_METRICS";

const LOG_FORMAT: &str = "ROWMQ_LOG_FORMAT";

/// The logs and metrics of the process.
#[derive(Debug, Default)]
pub(super) struct Process {
    log: String,
    log_format: LogFormat,
    metrics: Option<SocketAddr>,
}

/// Reads where the server is, how the worker works, and how the process logs and is measured.
pub(super) fn read() -> anyhow::Result<(ServerUrl, ConsumerOptions, Process)> {
    let url = location::from_env()?.url;
    let options = options(std::env::vars_os())?;
    let log_format = match variable(LOG_FORMAT).as_deref() {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => bail!("{LOG_FORMAT} is '{other}': use text or json"),
    };
    let metrics = variable(METRICS).map(|text| address(&text)).transpose()?;
    let log = variable("RUST_LOG").unwrap_or_default();
    Ok((url, options, Process { log, log_format, metrics }))
}

/// Reads the options that variables set. Each is parsed by itself first, so that an error names it.
fn options(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> anyhow::Result<ConsumerOptions> {
    let named = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok().filter(|name| name.starts_with(OPTIONS))?, value))
    };
    let mut set = Vec::new();
    for (name, value) in variables.filter_map(named) {
        let value = value.into_string().ok().with_context(|| format!("{name} is not UTF-8"))?;
        envy::prefixed(OPTIONS)
            .from_iter::<_, ConsumerOptions>([(name.clone(), value.clone())])
            .with_context(|| format!("{name} cannot be used"))?;
        set.push((name, value));
    }
    Ok(envy::prefixed(OPTIONS).from_iter(set)?)
}

/// Reads a variable that is not blank.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

#[cfg(feature = "endpoint")]
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let parsed = rowmq_service::endpoint::address(text).map_err(anyhow::Error::msg);
    parsed.with_context(|| format!("{METRICS} is '{text}'"))
}

#[cfg(not(feature = "endpoint"))]
fn address(_: &str) -> anyhow::Result<SocketAddr> {
    bail!(
        "{METRICS} is set, but this program serves no metrics: build it with rowmq's feature `endpoint`"
    )
}

impl Process {
    pub(super) fn start_logs(&self) {
        logging::start(&self.log, self.log_format);
    }

    /// Serves metrics and probes, if an address was given.
    #[cfg(feature = "endpoint")]
    pub(super) async fn serve(
        &self,
        health: Health,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        rowmq_service::endpoint::serve(self.metrics, health, shutdown).await.map(|_| ())
    }

    /// Without the feature `endpoint` there is nothing to serve.
    #[cfg(not(feature = "endpoint"))]
    pub(super) async fn serve(&self, _: Health, _: CancellationToken) -> anyhow::Result<()> {
        debug_assert!(self.metrics.is_none(), "an address is refused without the feature");
        Ok(())
    }
}
