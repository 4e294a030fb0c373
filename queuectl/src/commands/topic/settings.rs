use std::time::Duration;

use anyhow::bail;
use clap::ArgGroup;
use queue_core::topic::{OnDone, TopicSettings};

use crate::units::{self, MaybeTime, parse_size, parse_time};

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
    /// How long a message waits after its first failure; it doubles with each. New topics: 1s.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    retry_base: Option<Duration>,
    /// The longest wait after a failure. New topics: 1h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    retry_cap: Option<Duration>,
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
}

/// At least one of the settings must be named.
pub(crate) fn at_least_one() -> ArgGroup {
    ArgGroup::new("settings").required(true).multiple(true).args([
        "body_limit",
        "max_attempts",
        "max_crashes",
        "retry_base",
        "retry_cap",
        "max_run_time",
        "keep_done",
        "ledger_window",
    ])
}

impl SettingsArgs {
    /// `settings`, with what was named in its place.
    ///
    /// # Errors
    /// One sentence if they do not fit together.
    pub(crate) fn laid_over(self, mut settings: TopicSettings) -> anyhow::Result<TopicSettings> {
        settings.body_limit = self.body_limit.unwrap_or(settings.body_limit);
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
        settings.max_crashes = self.max_crashes.unwrap_or(settings.max_crashes);
        settings.retry.base = self.retry_base.unwrap_or(settings.retry.base);
        settings.retry.cap = self.retry_cap.unwrap_or(settings.retry.cap);
        if let Some(MaybeTime(time)) = self.max_run_time {
            settings.max_run_time = time;
        }
        if let Some(MaybeTime(time)) = self.keep_done {
            settings.on_done = time.map_or(OnDone::Delete, OnDone::Keep);
        }
        if let Some(MaybeTime(time)) = self.ledger_window {
            settings.ledger_window = time;
        }
        let (base, cap) = (settings.retry.base, settings.retry.cap);
        if base > cap {
            bail!(
                "The first wait after a failure ({}) is longer than the longest ({}): set --retry-cap too.",
                units::time(base),
                units::time(cap)
            );
        }
        Ok(settings)
    }
}
