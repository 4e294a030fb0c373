use std::str::FromStr;

use clap::ArgGroup;
use queue_core::topic::{OnDone, RetryPolicy, TopicSettings};
use queue_core::{Error, TopicName};

use crate::units::{MaybeSize, MaybeTime, parse_size};

/// What can be set of a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {
    /// The largest body: bytes, KiB, MiB. New topics: 4MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    body_limit: Option<u32>,
    /// Failures after which a message becomes a dead letter. New topics: 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// Crashes of a worker that held the message alone after which it becomes a dead letter. New
    /// topics: 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_crashes: Option<u32>,
    /// How long a failed message waits: 'exponential 1s..1h' (the first wait, doubling, and the
    /// longest), 'ladder 10s 30s 1m' (the last step repeats) or 'fixed 30s'. New topics:
    /// exponential 1s..1h.
    #[arg(long, value_name = "POLICY")]
    retry: Option<RetryPolicy>,
    /// The longest run of a handler, or none. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    max_run_time: Option<MaybeTime>,
    /// How long handled messages are kept, or none: they are deleted at once. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    keep_done: Option<MaybeTime>,
    /// For how long the biz ids of handled messages are remembered, so that a message with one of
    /// them is not handled again, or none. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    ledger_window: Option<MaybeTime>,
    /// The topic that dead letters are enqueued in, or none: they stay where `queuectl dead` finds
    /// them. New topics: none.
    #[arg(long, value_name = "TOPIC|none")]
    dead_letter_topic: Option<MaybeTopic>,
    /// How long a stream keeps its messages, or none: for ever. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    retention: Option<MaybeTime>,
    /// How many bytes of messages a stream keeps, or none: any number. New topics: none.
    #[arg(long, value_name = "SIZE|none")]
    retention_size: Option<MaybeSize>,
    /// Whether a stream removes also what a group has not handled yet, which then is lost to the
    /// group and counted. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    retention_hard: Option<bool>,
    /// Whether a stream removes at once what every group has handled. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    prune_handled: Option<bool>,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

/// A topic's name, or `none`.
#[derive(Debug, Clone)]
struct MaybeTopic(Option<TopicName>);

impl FromStr for MaybeTopic {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|name| Self(Some(name))) }
    }
}

/// At least one of the settings must be named.
pub(crate) fn at_least_one() -> ArgGroup {
    ArgGroup::new("settings").required(true).multiple(true).args([
        "body_limit",
        "max_attempts",
        "max_crashes",
        "retry",
        "max_run_time",
        "keep_done",
        "dead_letter_topic",
        "ledger_window",
        "retention",
        "retention_size",
        "retention_hard",
        "prune_handled",
    ])
}

impl SettingsArgs {
    /// `settings`, with what was named in its place.
    pub(crate) fn laid_over(self, mut settings: TopicSettings) -> TopicSettings {
        settings.body_limit = self.body_limit.unwrap_or(settings.body_limit);
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
        settings.max_crashes = self.max_crashes.unwrap_or(settings.max_crashes);
        settings.retry = self.retry.unwrap_or(settings.retry);
        if let Some(MaybeTime(time)) = self.max_run_time {
            settings.max_run_time = time;
        }
        if let Some(MaybeTime(time)) = self.keep_done {
            settings.on_done = time.map_or(OnDone::Delete, OnDone::Keep);
        }
        if let Some(MaybeTopic(topic)) = self.dead_letter_topic {
            settings.dead_letter_topic = topic;
        }
        if let Some(MaybeTime(time)) = self.ledger_window {
            settings.ledger_window = time;
        }
        let retention = &mut settings.retention;
        if let Some(MaybeTime(time)) = self.retention {
            retention.time = time;
        }
        if let Some(MaybeSize(bytes)) = self.retention_size {
            retention.bytes = bytes;
        }
        retention.hard = self.retention_hard.unwrap_or(retention.hard);
        retention.handled = self.prune_handled.unwrap_or(retention.handled);
        settings
    }
}
