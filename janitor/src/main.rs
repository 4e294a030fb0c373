//! The janitor as a process: `janitor`, or `janitor --once` for cron.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use janitor::{Driver, DriverOptions, Standby};
use queue_core::account::Account;
use queue_core::connection::ServerUrl;
use queue_core::doctor;
use queue_service::args::{self, ServerArgs, ServiceArgs};
use queue_service::endpoint::{self, Health};
use queue_service::{config, identity, logging, process, signals};
use serde::Deserialize;

/// Takes claims back from dead workers, makes due messages ready, removes what has served its
/// time. Any number may run: one works, the others stand ready.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Perform every duty once and end, for cron. Exit code 0 also when another janitor is at work.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// The table `janitor` of the configuration.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// How often the workers are looked at.
    #[serde(with = "humantime_serde")]
    sweep: Duration,
    /// How long a worker's sessions must have been missing.
    #[serde(with = "humantime_serde")]
    rescue_grace: Duration,
    /// The most workers declared dead in one sweep.
    deaths_per_sweep: usize,
    /// After this silence the server drops the janitor's own session.
    #[serde(with = "humantime_serde")]
    lease: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let rescue = janitor::duties::RescueOptions::default();
        Self {
            sweep: rescue.sweep,
            rescue_grace: rescue.grace,
            deaths_per_sweep: rescue.deaths_per_sweep,
            lease: Duration::from_secs(10),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Arguments = args::parse();
    process::run(|| run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::init(&arguments.service);
    let settings: Settings = config::load(arguments.server.config.as_deref(), "janitor")?;
    let url = arguments.server.url()?;
    let shutdown = signals::shutdown_on_signals()?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.drain.clone()).await?;
    doctor::require_as(&url, Some(Account::Janitor)).await?;
    let driver = Driver::new(options(url, &settings));
    if arguments.once {
        if !driver.run_once().await? {
            tracing::info!("Another janitor is at work; nothing to do.");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ticked = move |result: queue_core::Result<()>| {
        health.alive();
        health.ready(result.map_err(|error| error.to_string()));
    };
    driver.run(shutdown.drain, Standby::Wait, ticked).await;
    Ok(ExitCode::SUCCESS)
}

fn options(url: ServerUrl, settings: &Settings) -> DriverOptions {
    let mut options = DriverOptions::new(url, identity::client_id());
    options.lease = settings.lease;
    options.rescue.sweep = settings.sweep;
    options.rescue.grace = settings.rescue_grace;
    options.rescue.deaths_per_sweep = settings.deaths_per_sweep;
    options.measures = true;
    options
}
