use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rowmq_core::model::{OnDone, Rate, RetryPolicy, Sampling, TopicSettings, WhenFull};
use rowmq_core::{Error, TopicName};

use crate::units::{MaybeTime, parse_large_size, parse_size, parse_time};

/// The settings of a topic that can be changed.
#[derive(Debug, Clone, clap::Args)]
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
    /// How long dead letters are kept, or none: until they are purged or redriven. New topics:
    /// none.
    #[arg(long, value_name = "TIME|none")]
    keep_dead: Option<MaybeTime>,
    /// For how long the biz ids of handled messages are remembered, so that a message with one of
    /// them is not handled again, or none. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    ledger_window: Option<MaybeTime>,
    /// For how long the ids that clients give their messages are remembered, so that a message
    /// with one of them is not stored again, or none. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    dedupe_window: Option<MaybeTime>,
    /// For how long after it was enqueued a message can be looked up by `rowmq find`: on (30
    /// days), a time, or off: it reads a bounded number of rows. New topics: off.
    #[arg(long, value_name = "on|off|TIME")]
    searchable: Option<Searchable>,
    /// The topic that dead letters are enqueued in, or none: they stay where `rowmq dead` finds
    /// them. New topics: none.
    #[arg(long, value_name = "TOPIC|none")]
    dead_letter_topic: Option<MaybeTopic>,
    /// How many messages, ready and claimed, make the topic full, or off. Approximate: they are
    /// counted about once a second. New topics: off.
    #[arg(long, value_name = "N|off")]
    max_depth: Option<MaybeLimit>,
    /// How many bytes of bodies and headers (64MiB, 10GiB) make the topic full, or off.
    /// Approximate: the bodies of some messages are measured. New topics: off.
    #[arg(long, value_name = "SIZE|off", value_parser = MaybeLimit::of_bytes)]
    max_bytes: Option<MaybeLimit>,
    /// What producers do while the topic is full: wait (block), or fail at once with an error
    /// (reject). New topics: block.
    #[arg(long, value_name = "WHAT", value_parser = when_full())]
    when_full: Option<WhenFull>,
    /// The most messages handled at a time, over all consumers, or off. New topics: off.
    #[arg(long, value_name = "N|off")]
    max_running: Option<MaybeCount>,
    /// The most messages of one key handled at a time, over all consumers, or off. New topics: off.
    #[arg(long, value_name = "N|off")]
    max_running_per_key: Option<MaybeCount>,
    /// How fast messages are claimed, over all consumers: 100/1s, 6000/1m (which lets 6000 through
    /// at once after a pause), or off. New topics: off.
    #[arg(long, value_name = "MESSAGES/TIME|off")]
    rate: Option<MaybeRate>,
    /// How long a stream keeps its messages, or none: for ever. New topics: none.
    #[arg(long, value_name = "TIME|none")]
    retention: Option<MaybeTime>,
    /// How many bytes of messages a stream keeps, or off: any number. New topics: off.
    #[arg(long, value_name = "SIZE|off", value_parser = MaybeLimit::of_bytes)]
    retention_size: Option<MaybeLimit>,
    /// Whether a stream also removes messages that a group has not handled yet; they are then lost
    /// to the group, and counted. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    retention_hard: Option<bool>,
    /// Whether a stream removes at once what every group has handled. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    prune_handled: Option<bool>,
    /// Which messages leave a trace that `rowmq trace` shows: off, all, per cent (1%) or a share
    /// (0.01). Of a stream: in all its groups. New topics: off.
    #[arg(long, value_name = "off|all|SHARE")]
    trace: Option<Sampling>,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

fn when_full() -> impl TypedValueParser<Value = WhenFull> {
    let all = [WhenFull::Block, WhenFull::Reject];
    PossibleValuesParser::new(all.map(WhenFull::word))
        .map(move |word| all.into_iter().find(|one| one.word() == word).unwrap_or_default())
}

/// A limit above zero, or `off`.
#[derive(Debug, Clone, Copy)]
struct MaybeLimit(Option<NonZeroU64>);

impl MaybeLimit {
    fn of_bytes(text: &str) -> Result<Self, String> {
        if text == "off" { Ok(Self(None)) } else { parse_large_size(text).map(|n| Self(Some(n))) }
    }
}

impl FromStr for MaybeLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self(None)),
            text => text
                .parse()
                .map(|n| Self(Some(n)))
                .map_err(|_| "a limit is a number of messages above 0, or `off`"),
        }
    }
}

/// A number of messages above zero, or `off`.
#[derive(Debug, Clone, Copy)]
struct MaybeCount(Option<NonZeroU32>);

impl FromStr for MaybeCount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self(None)),
            text => text
                .parse()
                .map(|n| Self(Some(n)))
                .map_err(|_| "a limit is a number of messages above 0, or `off`"),
        }
    }
}

/// A rate, or `off`.
#[derive(Debug, Clone, Copy)]
struct MaybeRate(Option<Rate>);

impl FromStr for MaybeRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|rate| Self(Some(rate))) }
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

/// For how long messages can be looked up, if no time is given.
const SEARCHABLE: Duration = Duration::from_secs(30 * 24 * 3600);

/// `on`, `off` or a time.
#[derive(Debug, Clone)]
struct Searchable(Option<Duration>);

impl FromStr for Searchable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text {
            "on" => Some(SEARCHABLE),
            "off" => None,
            time => Some(parse_time(time).map_err(|error| format!("on, off or a time: {error}"))?),
        }))
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
        "keep_dead",
        "dead_letter_topic",
        "ledger_window",
        "max_depth",
        "max_bytes",
        "when_full",
        "max_running",
        "max_running_per_key",
        "rate",
        "searchable",
        "dedupe_window",
        "retention",
        "retention_size",
        "retention_hard",
        "prune_handled",
        "trace",
    ])
}

impl SettingsArgs {
    /// `settings`, overridden by those that were given.
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
        if let Some(MaybeTime(time)) = self.keep_dead {
            settings.keep_dead = time;
        }
        if let Some(MaybeTopic(topic)) = self.dead_letter_topic {
            settings.dead_letter_topic = topic;
        }
        if let Some(Searchable(time)) = self.searchable {
            settings.searchable = time;
        }
        if let Some(MaybeTime(time)) = self.ledger_window {
            settings.ledger_window = time;
        }
        if let Some(MaybeTime(time)) = self.dedupe_window {
            settings.dedupe_window = time;
        }
        if let Some(MaybeLimit(limit)) = self.max_depth {
            settings.max_depth = limit;
        }
        if let Some(MaybeLimit(limit)) = self.max_bytes {
            settings.max_bytes = limit;
        }
        settings.when_full = self.when_full.unwrap_or(settings.when_full);
        let limits = &mut settings.limits;
        if let Some(MaybeCount(n)) = self.max_running {
            limits.max_running = n;
        }
        if let Some(MaybeCount(n)) = self.max_running_per_key {
            limits.max_running_per_key = n;
        }
        if let Some(MaybeRate(rate)) = self.rate {
            limits.rate = rate;
        }
        let retention = &mut settings.retention;
        if let Some(MaybeTime(time)) = self.retention {
            retention.time = time;
        }
        if let Some(MaybeLimit(bytes)) = self.retention_size {
            retention.bytes = bytes.map(NonZeroU64::get);
        }
        retention.hard = self.retention_hard.unwrap_or(retention.hard);
        retention.handled = self.prune_handled.unwrap_or(retention.handled);
        settings.trace = self.trace.unwrap_or(settings.trace);
        settings
    }
}
