//! The consumer's command line.

use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

mod forward;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use rowmq_consumer::exec::{ExecHandler, ExecOptions, PoolHandler};
use rowmq_consumer::forward::Ended;
use rowmq_consumer::webhook::{AddressPolicy, Allowed, WebhookHandler, WebhookOptions};
use rowmq_consumer::{Consumer, ConsumerBuilder, ErrorRate, SettingsArgs, TopicOptions};
use rowmq_core::account::Account;
use rowmq_core::codec::Codecs;
use rowmq_core::handler::RawHandler;
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

/// Claims the messages of topics and passes each to a program or to a URL.
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
    /// Pass every message to one of a pool of programs, each of which takes one after another, as a
    /// line of JSON.
    Pool {
        #[command(flatten)]
        topics: TopicArgs,
        #[command(flatten)]
        program: ProgramArgs,
    },
    /// Run a program for every message: the body on its standard input, its exit code decides.
    Exec {
        #[command(flatten)]
        topics: TopicArgs,
        #[command(flatten)]
        program: ProgramArgs,
    },
    /// Send every message to a URL as a POST request: the status of the answer decides.
    Webhook {
        #[command(flatten)]
        topics: TopicArgs,
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
struct ProgramArgs {
    /// A variable of the consumer's environment that the program sees (repeatable). Without it the
    /// program sees PATH, LANG and HOME, and the ROWMQ_* variables that it is given.
    #[arg(long = "pass-env", value_name = "NAME")]
    pass_env: Vec<OsString>,
    /// The program and its arguments, after `--`. Never a shell.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    argv: Vec<OsString>,
}

#[derive(Args)]
struct TopicArgs {
    /// The topic, or TOPIC=WEIGHT.
    topic: WeightedTopic,
    /// Another topic, or TOPIC=WEIGHT (repeatable). Topics with work share the handlers' time by
    /// their weights: 3 gets three times that of 1.
    #[arg(long, value_name = "TOPIC")]
    also: Vec<WeightedTopic>,
    /// Messages handled at once, of all topics together; 1 keeps them strictly in order.
    #[arg(long, default_value_t = TopicOptions::default().concurrency, value_name = "N")]
    concurrency: usize,
    /// The longest run of one message.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    timeout: Duration,
    /// The most messages of one claim.
    #[arg(long, default_value_t = TopicOptions::default().max_batch, value_name = "N")]
    max_batch: u32,
    /// Pause a topic while so many of its last messages fail: 50%/20 is half of the last 20.
    #[arg(long, value_name = "SHARE/N")]
    pause_on_errors: Option<ErrorRate>,
    /// How long such a pause is, before one message is tried.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pause_for: Duration,
}

/// A topic and its share of the consumer's concurrency.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WeightedTopic {
    topic: TopicName,
    weight: NonZeroU32,
}

impl FromStr for WeightedTopic {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (topic, weight) = text.split_once('=').unwrap_or((text, "1"));
        let weight = weight.parse().context("a weight is a whole number from 1 on: mail=3")?;
        Ok(Self { topic: topic.parse()?, weight })
    }
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
    let Prepared { located, consumer, pool } = match prepared {
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
    if let Some(pool) = pool {
        pool.close().await;
    }
    served.cancel();
    if let Some(reason) = ended.reason() {
        anyhow::bail!("{reason}");
    }
    Ok(ExitCode::SUCCESS)
}

struct Prepared {
    located: Located,
    consumer: Consumer,
    /// To be closed when the consumer has ended.
    pool: Option<PoolHandler>,
}

/// Builds the consumer as it would be started; finds every error that can be found without a
/// server.
fn prepare(
    arguments: Arguments,
    settings: &Settings,
    health: &Health,
    (shutdown, ended): (&Shutdown, &Ended),
) -> anyhow::Result<Prepared> {
    let located = arguments.server.located()?;
    let mut options = arguments.settings.options();
    options.concurrency = arguments.command.shared_concurrency();
    let codecs =
        Codecs::default().with_limit(arguments.decoded_limit).with_budget(arguments.decoded_budget);
    let builder = Consumer::builder(located.url.clone()).options(options).codecs(codecs);
    let mut pool = None;
    let secrets = arguments.server.secrets();
    let builder = match arguments.command {
        Command::Forward { to } => to.register(builder, shutdown, ended)?,
        Command::Pool { topics, program } => {
            let handler = PoolHandler::new(program.options(topics.timeout, secrets))?;
            pool = Some(handler.clone());
            topics.register(builder, handler)
        }
        Command::Exec { topics, program } => {
            let handler = ExecHandler::new(program.options(topics.timeout, secrets))?;
            topics.register(builder, Arc::new(handler))
        }
        Command::Webhook { topics, url, secret_file, allow } => {
            let mut webhook = WebhookOptions::new(url);
            webhook.timeout = topics.timeout;
            webhook.secret = secret_file.as_deref().map(secret).transpose()?;
            if !allow.is_empty() {
                webhook.allow = AddressPolicy::Allow(allow);
            }
            topics.register(builder, Arc::new(WebhookHandler::new(webhook)?))
        }
    };
    let consumer = builder.health(health.clone()).build().map_err(|error| match error {
        rowmq_consumer::Error::Setting { name, .. } => settings.refused(name, error),
        error => error.into(),
    })?;
    Ok(Prepared { located, consumer, pool })
}

impl Command {
    /// How many messages of several topics are handled at once; `None`: there is only one topic.
    fn shared_concurrency(&self) -> Option<NonZeroUsize> {
        match self {
            Self::Pool { topics, .. }
            | Self::Exec { topics, .. }
            | Self::Webhook { topics, .. } => {
                NonZeroUsize::new(topics.concurrency).filter(|_| !topics.also.is_empty())
            }
            Self::Forward { .. } => None,
        }
    }
}

impl ProgramArgs {
    fn options(self, timeout: Duration, hidden: Vec<PathBuf>) -> ExecOptions {
        let mut options = ExecOptions::new(self.argv);
        options.timeout = timeout;
        options.environment.pass.extend(self.pass_env);
        options.supervisor = Some(PathBuf::from("/proc/self/exe"));
        options.hidden = hidden;
        options
    }
}

pub(crate) fn secret(file: &Path) -> anyhow::Result<SecretString> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("Cannot read the secret from {}", file.display()))?;
    Ok(SecretString::from(text.trim_end().to_owned()))
}

impl TopicArgs {
    fn register<H>(self, mut builder: ConsumerBuilder, handler: H) -> ConsumerBuilder
    where
        H: RawHandler + Clone,
    {
        // The handler itself keeps the time limit, so that its program gets TERM before KILL.
        let options = TopicOptions {
            concurrency: self.concurrency,
            timeout: None,
            max_batch: self.max_batch,
            pause_on_errors: self.pause_on_errors,
            pause_for: self.pause_for,
            ..TopicOptions::default()
        };
        for WeightedTopic { topic, weight } in std::iter::once(self.topic).chain(self.also) {
            let options = TopicOptions { weight, ..options.clone() };
            builder = builder.raw_handler(topic, options, handler.clone());
        }
        builder
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

    #[test]
    fn a_topic_may_have_a_weight() {
        let read = |text: &str| {
            text.parse().map(|it: WeightedTopic| (it.topic.to_string(), it.weight.get()))
        };
        assert_eq!(read("mail").ok(), Some(("mail".to_owned(), 1)));
        assert_eq!(read("orders@billing=3").ok(), Some(("orders@billing".to_owned(), 3)));
        for wrong in ["mail=", "mail=0", "mail=-1", "mail=1=2", "=3", "a b=2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_topics_share_the_concurrency_and_one_has_its_own() {
        let shared = |line: &[&str]| {
            let line = [&["consumer", "pool", "mail=3"], line, &["--", "true"]].concat();
            let arguments = Arguments::try_parse_from(line).map_err(|error| error.to_string());
            arguments.expect("understood").command.shared_concurrency().map(NonZeroUsize::get)
        };
        assert_eq!(shared(&["--concurrency", "8"]), None);
        assert_eq!(shared(&["--concurrency", "8", "--also", "reports", "--also", "x=2"]), Some(8));
    }
}
