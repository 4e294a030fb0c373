//! HUP: applies the current configuration, as far as a running process can change it.

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches};
use futures_util::StreamExt;
use rowmq_core::connection::ServerUrl;
use signal_hook::consts::SIGHUP;
use signal_hook_tokio::Signals;

use crate::args::{ServerArgs, ServiceArgs};
use crate::config::{self, Process};
use crate::logging;

/// The part of a process's command line that can change while it runs.
pub trait Reloadable: CommandFactory + FromArgMatches {
    /// Where the server is, and what is logged. `None` for a command that is not reloaded.
    fn reloadable(&self) -> Option<(&ServerArgs, &ServiceArgs)>;
}

/// On each HUP, reads the configuration again. The log filter changes at once, and new connections
/// use the account that the URL now names. A wrong configuration changes nothing and is logged.
/// Call it within a runtime, once in each process.
///
/// # Errors
/// If the signal cannot be registered with the system.
pub fn on_hangup<T: Reloadable>(process: Process, url: ServerUrl) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP]).context("Cannot take signals")?;
    tokio::spawn(async move {
        while signals.next().await.is_some() {
            match reload::<T>(process, &url) {
                Ok(()) => tracing::info!("The configuration has been read again."),
                Err(error) => {
                    let error = crate::process::sentence(&error);
                    tracing::error!(%error, "The configuration is wrong; the old one stays.");
                }
            }
        }
    });
    Ok(())
}

fn reload<T: Reloadable>(process: Process, url: &ServerUrl) -> anyhow::Result<()> {
    let again = config::parse_again::<T>(process)?;
    let Some((server, service)) = again.arguments.reloadable() else { return Ok(()) };
    let located = server.located()?;
    url.renew_account(&located.url).with_context(|| format!("In {}", located.from))?;
    logging::change(&service.log);
    Ok(())
}
