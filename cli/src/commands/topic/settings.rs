use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rowmq_core::TopicName;
use rowmq_core::model::{OnDone, Rate, RetryPolicy, Sampling, TopicSettings, WhenFull};

use crate::units::{Maybe, maybe, parse_large_size, parse_size, parse_time};

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
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    max_run_time: Option<Maybe<Duration>>,
    /// How long handled messages are kept, or none: they are deleted at once. New topics: none.
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    keep_done: Option<Maybe<Duration>>,
    /// How long dead letters are kept, or none: until they are purged or redriven. New topics:
    /// none.
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    keep_dead: Option<Maybe<Duration>>,
    /// For how long the biz ids of handled messages are remembered, so that a message with one of
    /// them is not handled again, or none. New topics: none.
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    ledger_window: Option<Maybe<Duration>>,
    /// For how long the ids that clients give their messages are remembered, so that a message
    /// with one of them is not stored again, or none. New topics: none.
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    dedupe_window: Option<Maybe<Duration>>,
    /// For how long after it was enqueued a message can be looked up by `rowmq find`: on (30
    /// days), a time, or off: it reads a bounded number of rows. New topics: off.
    #[arg(long, value_name = "on|off|TIME", value_parser = maybe(parse_searchable))]
    searchable: Option<Maybe<Duration>>,
    /// The topic that dead letters are enqueued in, or none: they stay where `rowmq dead` finds
    /// them. New topics: none.
    #[arg(long, value_name = "TOPIC|none", value_parser = maybe(TopicName::from_str))]
    dead_letter_topic: Option<Maybe<TopicName>>,
    /// How many messages, ready and claimed, make the topic full, or off. Approximate: they are
    /// counted about once a second. New topics: off.
    #[arg(long, value_name = "N|off", value_parser = maybe(parse_depth))]
    max_depth: Option<Maybe<NonZeroU64>>,
    /// How many bytes of bodies and headers (64MiB, 10GiB) make the topic full, or off.
    /// Approximate: the bodies of some messages are measured. New topics: off.
    #[arg(long, value_name = "SIZE|off", value_parser = maybe(parse_large_size))]
    max_bytes: Option<Maybe<NonZeroU64>>,
    /// What producers do while the topic is full: wait (block), or fail at once with an error
    /// (reject). New topics: block.
    #[arg(long, value_name = "WHAT", value_parser = when_full())]
    when_full: Option<WhenFull>,
    /// The most messages handled at a time, over all consumers, or off. New topics: off.
    #[arg(long, value_name = "N|off", value_parser = maybe(parse_count))]
    max_running: Option<Maybe<NonZeroU32>>,
    /// The most messages of one key handled at a time, over all consumers, or off. New topics: off.
    #[arg(long, value_name = "N|off", value_parser = maybe(parse_count))]
    max_running_per_key: Option<Maybe<NonZeroU32>>,
    /// How fast messages are claimed, over all consumers: 100/1s, 6000/1m (which lets 6000 through
    /// at once after a pause), or off. New topics: off.
    #[arg(long, value_name = "MESSAGES/TIME|off", value_parser = maybe(Rate::from_str))]
    rate: Option<Maybe<Rate>>,
    /// How long a stream keeps its messages, or none: for ever. New topics: none.
    #[arg(long, value_name = "TIME|none", value_parser = maybe(parse_time))]
    retention: Option<Maybe<Duration>>,
    /// How many bytes of messages a stream keeps, or off: any number. New topics: off.
    #[arg(long, value_name = "SIZE|off", value_parser = maybe(parse_large_size))]
    retention_size: Option<Maybe<NonZeroU64>>,
    /// Whether a stream also removes messages that a group has not handled yet; they are then lost
    /// to the group, and counted. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    retention_hard: Option<bool>,
    /// Whether a stream removes at once what every group has handled. New topics: off.
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    prune_handled: Option<bool>,
    /// Which messages leave a trace that `rowmq trace` shows: off, all, per cent (1%) or a share
    /// (0.01). Of a stream: in all its groups. New topics: off.
    #[arg(long, value_name = "off|all|SHARE", value_parser = maybe(Sampling::from_str))]
    trace: Option<Maybe<Sampling>>,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "none" | "false" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

fn when_full() -> impl TypedValueParser<Value = WhenFull> {
    let all = [WhenFull::Block, WhenFull::Reject];
    PossibleValuesParser::new(all.map(WhenFull::word))
        .map(move |word| all.into_iter().find(|one| one.word() == word).unwrap_or_default())
}

fn parse_depth(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "a limit is a number of messages above 0")
}

fn parse_count(text: &str) -> Result<NonZeroU32, &'static str> {
    text.parse().map_err(|_| "a limit is a number of messages above 0")
}

/// For how long messages can be looked up, if no time is given.
const SEARCHABLE: Duration = Duration::from_secs(30 * 24 * 3600);

fn parse_searchable(text: &str) -> Result<Duration, String> {
    match text {
        "on" => Ok(SEARCHABLE),
        time => parse_time(time).map_err(|error| format!("on, off or a time: {error}")),
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
        if let Some(Maybe(time)) = self.max_run_time {
            settings.max_run_time = time;
        }
        if let Some(Maybe(time)) = self.keep_done {
            settings.on_done = time.map_or(OnDone::Delete, OnDone::Keep);
        }
        if let Some(Maybe(time)) = self.keep_dead {
            settings.keep_dead = time;
        }
        if let Some(Maybe(topic)) = self.dead_letter_topic {
            settings.dead_letter_topic = topic;
        }
        if let Some(Maybe(time)) = self.searchable {
            settings.searchable = time;
        }
        if let Some(Maybe(time)) = self.ledger_window {
            settings.ledger_window = time;
        }
        if let Some(Maybe(time)) = self.dedupe_window {
            settings.dedupe_window = time;
        }
        if let Some(Maybe(limit)) = self.max_depth {
            settings.max_depth = limit;
        }
        if let Some(Maybe(limit)) = self.max_bytes {
            settings.max_bytes = limit;
        }
        settings.when_full = self.when_full.unwrap_or(settings.when_full);
        let limits = &mut settings.limits;
        if let Some(Maybe(n)) = self.max_running {
            limits.max_running = n;
        }
        if let Some(Maybe(n)) = self.max_running_per_key {
            limits.max_running_per_key = n;
        }
        if let Some(Maybe(rate)) = self.rate {
            limits.rate = rate;
        }
        let retention = &mut settings.retention;
        if let Some(Maybe(time)) = self.retention {
            retention.time = time;
        }
        if let Some(Maybe(bytes)) = self.retention_size {
            retention.bytes = bytes.map(NonZeroU64::get);
        }
        retention.hard = self.retention_hard.unwrap_or(retention.hard);
        retention.handled = self.prune_handled.unwrap_or(retention.handled);
        if let Some(Maybe(trace)) = self.trace {
            settings.trace = trace.unwrap_or(Sampling::OFF);
        }
        settings
    }
}
