//! `rowmq-consumer forward`: where a topic is sent on to.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use rowmq_consumer::forward::{Ended, Forward, RedisStream, RedisStreamOptions, Stdout, Webhook};
use rowmq_consumer::webhook::{AddressPolicy, Allowed, WebhookOptions};
use rowmq_consumer::{ConsumerBuilder, TopicOptions};
use rowmq_core::TopicName;
use rowmq_service::signals::Shutdown;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::secret;

#[derive(Subcommand)]
pub(crate) enum Destination {
    /// To standard output, a line of JSON for each message.
    Stdout {
        #[command(flatten)]
        source: Source,
    },
    /// To a URL, in POST requests of a line of JSON for each message.
    Webhook {
        #[command(flatten)]
        source: Source,
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
        /// The longest time of one request.
        #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
        timeout: Duration,
    },
    /// To a Redis stream, an entry for each message.
    Redis {
        #[command(flatten)]
        source: Source,
        /// Where to: redis://HOST:PORT/DATABASE, or rediss:// for TLS. A URL that holds a password
        /// is better given by the environment.
        #[arg(env = "ROWMQ_REDIS_URL", hide_env_values = true)]
        url: SecretString,
        /// The key of the stream. Without it the topic's name.
        #[arg(long, value_name = "NAME")]
        stream: Option<String>,
        /// About how many entries the stream keeps. Without it all of them.
        #[arg(long, value_name = "N")]
        max_len: Option<NonZeroU64>,
    },
}

#[derive(Args)]
pub(crate) struct Source {
    /// The topic.
    topic: TopicName,
    /// The most messages that are sent at once.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
}

impl Destination {
    pub(super) fn register(
        self,
        builder: ConsumerBuilder,
        shutdown: &Shutdown,
        ended: &Ended,
    ) -> anyhow::Result<ConsumerBuilder> {
        Ok(match self {
            Self::Stdout { source } => source.register(builder, Stdout, shutdown, ended),
            Self::Webhook { source, url, secret_file, allow, timeout } => {
                let mut webhook = WebhookOptions::new(url);
                webhook.timeout = timeout;
                webhook.secret = secret_file.as_deref().map(secret).transpose()?;
                if !allow.is_empty() {
                    webhook.allow = AddressPolicy::Allow(allow);
                }
                source.register(builder, Webhook::new(webhook)?, shutdown, ended)
            }
            Self::Redis { source, url, stream, max_len } => {
                let url = url.expose_secret().to_owned();
                let stream = stream.unwrap_or_else(|| source.topic.to_string());
                let options = RedisStreamOptions { url, stream, max_len };
                source.register(builder, RedisStream::new(options)?, shutdown, ended)
            }
        })
    }
}

impl Source {
    /// Registers one batch at a time, so that the order is kept.
    fn register(
        self,
        builder: ConsumerBuilder,
        to: impl rowmq_consumer::forward::Destination,
        shutdown: &Shutdown,
        ended: &Ended,
    ) -> ConsumerBuilder {
        tracing::info!(topic.name = %self.topic, destination = to.name(), "Forwarding.");
        // No pause on errors: a forward waits for its receiver by itself.
        let options =
            TopicOptions { concurrency: 1, max_batch: self.batch, ..TopicOptions::default() };
        let forward = Forward::new(to, shutdown.clone(), ended.clone());
        builder.raw_batch_handler(self.topic, options, self.batch as usize, forward)
    }
}
