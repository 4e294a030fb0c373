//! HUP: what the configuration says by now, as far as it can change in a process that runs.

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

/// On each HUP reads the configuration again: the log filter changes at once, and connections made
/// from then on are those of the account that the URL names by now. A configuration that is wrong
/// changes nothing and is logged. Call it within a runtime, once a process.
///
/// # Errors
/// If the signal cannot be had from the system.
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
