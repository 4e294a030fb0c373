//! The consumer's command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

mod forward;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use rowmq_consumer::exec::{ExecHandler, ExecOptions};
use rowmq_consumer::forward::Ended;
use rowmq_consumer::webhook::{AddressPolicy, Allowed, WebhookHandler, WebhookOptions};
use rowmq_consumer::{Consumer, ConsumerBuilder, ErrorRate, SettingsArgs, TopicOptions};
use rowmq_core::account::Account;
use rowmq_core::codec::Codecs;
use rowmq_core::{Error, TopicName, doctor};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::config::{Configured, Process, Settings};
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::location::Located;
use rowmq_service::reload::{self, Reloadable};
use rowmq_service::signals::Shutdown;
use rowmq_service::start::when_there;
use rowmq_service::{config, signals};
use secrecy::SecretString;
use url::Url;

/// Claims the messages of a topic and runs a program, or calls a URL, for each.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    settings: SettingsArgs,
    /// The most bytes of a body that comes compressed (`content-encoding: gzip`) once it is
    /// decoded; a larger one is dead-lettered.
    #[arg(long, global = true, value_name = "BYTES", default_value = "33554432")]
    #[arg(help_heading = "Settings")]
    decoded_limit: NonZeroUsize,
    /// The most bytes that the decoded bodies of all handlers may have together; a handler whose
    /// body finds no room waits for it.
    #[arg(long, global = true, value_name = "BYTES", default_value = "134217728")]
    #[arg(help_heading = "Settings")]
    decoded_budget: NonZeroUsize,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program for every message: the body on its standard input, its exit code decides.
    Exec {
        #[command(flatten)]
        topic: TopicArgs,
        /// A variable of the consumer's environment that the program sees (repeatable). Without
        /// it the program sees PATH, LANG, HOME and the ROWMQ_* variables of the message.
        #[arg(long = "pass-env", value_name = "NAME")]
        pass_env: Vec<OsString>,
        /// The program and its arguments, after `--`. Never a shell.
        #[arg(last = true, required = true, value_name = "PROGRAM")]
        argv: Vec<OsString>,
    },
    /// Send every message to a URL as a POST request: the status of the answer decides.
    Webhook {
        #[command(flatten)]
        topic: TopicArgs,
        /// Where to. A URL that holds a token is better given by the environment.
        #[arg(env = "ROWMQ_WEBHOOK_URL", hide_env_values = true)]
        url: Url,
        /// File with the secret that requests are signed with.
        #[arg(long, env = "ROWMQ_WEBHOOK_SECRET_FILE", value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// A host, address or network (10.0.0.0/8) that may be connected to (repeatable). Without
        /// it every public address may, and no private one.
        #[arg(long, value_name = "HOST")]
        allow: Vec<Allowed>,
    },
    /// Send a topic on, in batches and in order, to another system.
    Forward {
        #[command(subcommand)]
        to: forward::Destination,
    },
}

#[derive(Args)]
struct TopicArgs {
    /// The topic.
    topic: TopicName,
    /// Messages handled at once; 1 keeps them strictly in order.
    #[arg(long, default_value_t = TopicOptions::default().concurrency, value_name = "N")]
    concurrency: usize,
    /// The longest run of one message.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    timeout: Duration,
    /// The most messages of one claim.
    #[arg(long, default_value_t = TopicOptions::default().max_batch, value_name = "N")]
    max_batch: u32,
    /// Pause while so many of the last messages fail: 50%/20 is half of the last 20.
    #[arg(long, value_name = "SHARE/N")]
    pause_on_errors: Option<ErrorRate>,
    /// How long such a pause is, before one message is tried.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pause_for: Duration,
}

/// How the configuration knows this process.
pub(crate) const PROCESS: Process = Process { table: "consumer", apart: &[] };

impl Reloadable for Arguments {
    fn reloadable(&self) -> Option<(&ServerArgs, &ServiceArgs)> {
        Some((&self.server, &self.service))
    }
}

pub(crate) async fn run(configured: Configured<Arguments>) -> anyhow::Result<ExitCode> {
    let Configured { arguments, settings } = configured;
    let service = arguments.service.clone();
    service.start_logs();
    let health = Health::new();
    let shutdown =
        if service.check { Shutdown::default() } else { signals::shutdown_on_signals()? };
    let ended = Ended::default();
    let prepared = prepare(arguments, &settings, &health, (&shutdown, &ended));
    let (located, consumer) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Ok(config::refuse(&error)),
    };
    if service.check {
        return settings.show(&[located.shown()]);
    }
    // The endpoint answers probes and scrapes until the very end, so that users can watch the
    // drain.
    let served = tokio_util::sync::CancellationToken::new();
    endpoint::serve(service.metrics, health.clone(), served.clone()).await?;
    let check = || doctor::require_as(&located.url, Some(Account::Consumer));
    if when_there(&health, &shutdown.drain, Error::is_transient, check).await?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    reload::on_hangup::<Arguments>(PROCESS, located.url)?;
    consumer.run(shutdown).await?;
    served.cancel();
    if let Some(reason) = ended.reason() {
        anyhow::bail!("{reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the consumer as it would be started; finds every error that can be found without a
/// server.
fn prepare(
    arguments: Arguments,
    settings: &Settings,
    health: &Health,
    (shutdown, ended): (&Shutdown, &Ended),
) -> anyhow::Result<(Located, Consumer)> {
    let located = arguments.server.located()?;
    let builder =
        Consumer::builder(located.url.clone()).options(arguments.settings.options()).codecs(
            Codecs::default()
                .with_limit(arguments.decoded_limit)
                .with_budget(arguments.decoded_budget),
        );
    let builder = match arguments.command {
        Command::Forward { to } => to.register(builder, shutdown, ended)?,
        command => register(command, arguments.server.secrets(), builder)?,
    };
    let consumer = builder.health(health.clone()).build().map_err(|error| match error {
        rowmq_consumer::Error::Setting { name, .. } => settings.refused(name, error),
        error => error.into(),
    })?;
    Ok((located, consumer))
}

fn register(
    command: Command,
    secrets: Vec<PathBuf>,
    builder: ConsumerBuilder,
) -> anyhow::Result<ConsumerBuilder> {
    match command {
        Command::Exec { topic, pass_env, argv } => {
            let mut exec = ExecOptions::new(argv);
            exec.timeout = topic.timeout;
            exec.environment.pass.extend(pass_env);
            exec.supervisor = Some(PathBuf::from("/proc/self/exe"));
            exec.hidden = secrets;
            let handler = ExecHandler::new(exec)?;
            Ok(builder.raw_handler(topic.topic.clone(), topic.options(), handler))
        }
        Command::Webhook { topic, url, secret_file, allow } => {
            let mut webhook = WebhookOptions::new(url);
            webhook.timeout = topic.timeout;
            webhook.secret = secret_file.as_deref().map(secret).transpose()?;
            if !allow.is_empty() {
                webhook.allow = AddressPolicy::Allow(allow);
            }
            let handler = WebhookHandler::new(webhook)?;
            Ok(builder.raw_handler(topic.topic.clone(), topic.options(), handler))
        }
        Command::Forward { .. } => anyhow::bail!("A forward is registered by itself."),
    }
}

pub(crate) fn secret(file: &Path) -> anyhow::Result<SecretString> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("Cannot read the secret from {}", file.display()))?;
    Ok(SecretString::from(text.trim_end().to_owned()))
}

impl TopicArgs {
    /// The handler itself keeps the time limit, so that its program gets TERM before KILL.
    fn options(&self) -> TopicOptions {
        TopicOptions {
            concurrency: self.concurrency,
            timeout: None,
            max_batch: self.max_batch,
            pause_on_errors: self.pause_on_errors,
            pause_for: self.pause_for,
            ..TopicOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options may stand where users write them, and where the documentation does.
    #[test]
    fn what_a_consumer_is_may_stand_before_and_behind_its_command() {
        let behind =
            ["consumer", "exec", "mail", "--metrics", "0", "--doorbell", "auto", "--", "true"];
        let before =
            ["consumer", "--metrics", "0", "--doorbell", "auto", "exec", "mail", "--", "true"];
        for line in [&behind[..], &before[..]] {
            let arguments = Arguments::try_parse_from(line).map_err(|error| error.to_string());
            let arguments = arguments.expect("understood");
            assert_eq!(arguments.service.metrics.map(|it| it.port()), Some(0));
            assert_eq!(arguments.settings.options().doorbell, rowmq_consumer::DoorbellMode::Auto);
        }
    }
}
