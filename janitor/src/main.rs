//! The janitor as a process: `rowmq-janitor`, or `rowmq-janitor --once` for cron.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use humantime::parse_duration;
use rowmq_core::Error;
use rowmq_core::account::Account;
use rowmq_core::connection::ServerUrl;
use rowmq_core::doctor;
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::config::{self, Configured, Process, Settings};
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::location::Located;
use rowmq_service::reload::{self, Reloadable};
use rowmq_service::start::when_there;
use rowmq_service::{identity, process, signals};

/// Takes claims back from dead workers, makes due messages ready, removes what has served its
/// time. Any number may run: one works, the others stand ready.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Perform every duty once and end, for cron. Exit code 0 also when another janitor is at work.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// The janitor's settings.
#[derive(clap::Args)]
#[command(next_help_heading = "Settings")]
struct SettingsArgs {
    /// How often everything about the workers is read. Missing ones are found much sooner.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_duration)]
    sweep: Duration,
    /// How long a worker's sessions must have been missing, at least.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_duration)]
    rescue_grace: Duration,
    /// The most workers declared dead in a second.
    #[arg(long, value_name = "N", default_value_t = 10)]
    deaths_per_second: usize,
    /// After this silence the server drops the janitor's own session. At least 2s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    lease: Duration,
    /// How long the audit keeps who has changed what by hand, or none: for ever.
    #[arg(long, value_name = "TIME|none", default_value = "400d")]
    audit_retention: AuditRetention,
}

/// How long the audit keeps its entries; `None`: for ever.
#[derive(Debug, Clone, Copy)]
struct AuditRetention(Option<Duration>);

impl FromStr for AuditRetention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => match parse_duration(text) {
                Ok(time) => Ok(Self(Some(time))),
                Err(error) => Err(format!("{error}; or `none`")),
            },
        }
    }
}

/// A setting that cannot work.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' is {value}: {fix}")]
struct Unworkable {
    name: &'static str,
    value: String,
    fix: &'static str,
}

impl SettingsArgs {
    fn check(&self) -> Result<(), Unworkable> {
        let millis = |time: Duration| format!("{} ms", time.as_millis());
        if self.sweep.is_zero() {
            let fix = "use more than nothing, such as 300ms";
            return Err(Unworkable { name: "sweep", value: millis(self.sweep), fix });
        }
        if self.deaths_per_second == 0 {
            let fix = "no claim would ever be rescued, use 1 or more";
            return Err(Unworkable { name: "deaths_per_second", value: "0".to_owned(), fix });
        }
        if self.lease < Duration::from_secs(2) {
            let fix = "the server counts whole seconds, use 2s or more";
            return Err(Unworkable { name: "lease", value: millis(self.lease), fix });
        }
        if let Some(time) = self.audit_retention.0.filter(|time| time.as_secs() == 0) {
            let fix = "the server counts whole seconds, use 1s or more, or none";
            return Err(Unworkable { name: "audit_retention", value: millis(time), fix });
        }
        if let Some(time) = self.audit_retention.0.filter(|time| *time > LONGEST) {
            let fix = "that is before the server's calendar begins, use none";
            return Err(Unworkable { name: "audit_retention", value: millis(time), fix });
        }
        Ok(())
    }
}

/// The longest time that the audit is kept, unless for ever: a thousand years.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

/// How the configuration knows this process.
const PROCESS: Process = Process { table: "janitor", apart: &[] };

impl Reloadable for Arguments {
    fn reloadable(&self) -> Option<(&ServerArgs, &ServiceArgs)> {
        Some((&self.server, &self.service))
    }
}

fn main() -> ExitCode {
    let configured = config::parse(PROCESS);
    process::run(|| run(configured))
}

fn prepare(arguments: &Arguments, settings: &Settings) -> anyhow::Result<Located> {
    arguments.settings.check().map_err(|error| settings.refused(error.name, error))?;
    arguments.server.located()
}

async fn run(configured: Configured<Arguments>) -> anyhow::Result<ExitCode> {
    let Configured { arguments, settings } = configured;
    arguments.service.start_logs();
    let located = match prepare(&arguments, &settings) {
        Ok(located) => located,
        Err(error) => return Ok(config::refuse(&error)),
    };
    if arguments.service.check {
        return settings.show(&[located.shown()]);
    }
    let url = located.url;
    let shutdown = signals::shutdown_on_signals()?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.drain.clone()).await?;
    let check = || doctor::require_as(&url, Some(Account::Janitor));
    // cron runs it again.
    let is_away = |error: &Error| !arguments.once && error.is_transient();
    if when_there(&health, &shutdown.drain, is_away, check).await?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    reload::on_hangup::<Arguments>(PROCESS, url.clone())?;
    let driver = Driver::new(options(url, &arguments.settings));
    if arguments.once {
        if !driver.run_once().await? {
            tracing::info!("Another janitor is at work; nothing to do.");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ticked = move |result: rowmq_core::Result<()>| {
        health.alive();
        health.ready(result.map_err(|error| error.to_string()));
    };
    driver.run(shutdown.drain, ticked).await;
    Ok(ExitCode::SUCCESS)
}

fn options(url: ServerUrl, settings: &SettingsArgs) -> DriverOptions {
    let mut options = DriverOptions::new(url, identity::client_id());
    options.lease = settings.lease;
    options.rescue.sweep = settings.sweep;
    options.rescue.grace = settings.rescue_grace;
    options.rescue.deaths_per_second = settings.deaths_per_second;
    options.audit_retention = settings.audit_retention.0;
    options.measures = true;
    options
}
