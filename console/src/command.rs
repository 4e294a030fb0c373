use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rowmq_core::account::Account;
use rowmq_core::{Error, doctor};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::config::{self, Configured, Process, Settings};
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::location::Located;
use rowmq_service::reload::{self, Reloadable};
use rowmq_service::start::when_there;
use rowmq_service::{process, signals};

use crate::role::Role;
use crate::server;
use crate::settings::{Rules, SettingsArgs};
use crate::users;

/// The web console of the queue: see it, search it, fix it.
///
/// Without a file of users it listens on 127.0.0.1 only, and prints a link that signs in once.
#[derive(Debug, Parser)]
#[command(name = "rowmq-console", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a line for the users' file; the password is read from standard input.
    ///
    /// To keep it out of sight: `read -rs password`, and then this with `<<<"$password" >>users`.
    User {
        /// Who signs in.
        name: String,
        /// What they may do.
        #[arg(long, value_enum)]
        role: Role,
    },
}

/// The process as the configuration names it.
const PROCESS: Process = Process { table: "console", apart: &["role"] };

impl Reloadable for Arguments {
    fn reloadable(&self) -> Option<(&ServerArgs, &ServiceArgs)> {
        Some((&self.server, &self.service))
    }
}

/// Runs the process, from its command line to its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let configured = config::parse(PROCESS);
    process::run(|| run(configured))
}

async fn run(configured: Configured<Arguments>) -> anyhow::Result<ExitCode> {
    let Configured { arguments, settings } = configured;
    if let Some(Command::User { name, role }) = &arguments.command {
        return print_user(name, *role);
    }
    arguments.service.start_logs();
    let (located, rules) = match prepare(&arguments, &settings) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(config::refuse(&error)),
    };
    if arguments.service.check {
        return settings.show(&[located.shown()]);
    }
    let url = located.url;
    let shutdown = signals::shutdown_on_signals()?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.drain.clone()).await?;
    let check = || doctor::require_as(&url, Some(Account::Console));
    if when_there(&health, &shutdown.drain, Error::is_transient, check).await?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    reload::on_hangup::<Arguments>(PROCESS, url.clone())?;
    server::serve(url, rules, health, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn prepare(arguments: &Arguments, settings: &Settings) -> anyhow::Result<(Located, Rules)> {
    let located = arguments.server.located()?;
    Ok((located, arguments.settings.clone().check(settings)?))
}

fn print_user(name: &str, role: Role) -> anyhow::Result<ExitCode> {
    let mut password = String::new();
    stdin().lock().read_line(&mut password).context("Cannot read the password")?;
    let line = users::line(name, role, password.trim_end_matches(['\n', '\r']))?;
    writeln!(stdout(), "{line}").context("Cannot print the line")?;
    Ok(ExitCode::SUCCESS)
}
