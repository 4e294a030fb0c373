use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use humantime::parse_duration;
use rowmq_core::model::MemberName;
use rowmq_core::worker::ClaimStrategy;

use crate::options::{ConsumerOptions, DoorbellMode};

/// A consumer process's settings as options, to flatten into a command line of your own.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Settings")]
pub struct SettingsArgs {
    /// After this silence the server drops a frozen consumer's sessions, and its claims run
    /// elsewhere. At least 2s.
    #[arg(
        long,
        global = true,
        env = "ROWMQ_CONSUMER_LEASE",
        value_name = "TIME",
        default_value = "10s"
    )]
    #[arg(value_parser = parse_duration)]
    lease: Duration,
    /// How often the consumer beats: at most a quarter of the lease.
    #[arg(
        long,
        global = true,
        env = "ROWMQ_CONSUMER_BEAT",
        value_name = "TIME",
        default_value = "2500ms"
    )]
    #[arg(value_parser = parse_duration)]
    beat: Duration,
    /// How long running handlers may go on after TERM.
    #[arg(
        long,
        global = true,
        env = "ROWMQ_CONSUMER_DRAIN",
        value_name = "TIME",
        default_value = "25s"
    )]
    #[arg(value_parser = parse_duration)]
    drain: Duration,
    /// How ready messages are claimed.
    #[arg(long, global = true, env = "ROWMQ_CONSUMER_CLAIM_STRATEGY", value_name = "HOW")]
    #[arg(default_value = "skip-locked", value_parser = strategy())]
    claim_strategy: ClaimStrategy,
    /// Create a topic that does not exist.
    #[arg(long, global = true, env = "ROWMQ_CONSUMER_AUTO_CREATE_TOPICS", value_name = "WHETHER")]
    #[arg(action = clap::ArgAction::Set, default_value_t, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    auto_create_topics: bool,
    /// Stand in for the janitor while there is none.
    #[arg(long, global = true, env = "ROWMQ_CONSUMER_SWEEP", value_name = "WHETHER")]
    #[arg(action = clap::ArgAction::Set, default_value_t = true)]
    sweep: bool,
    /// Wait for the sweeper's ring while idle, so that messages are claimed within milliseconds
    /// (auto), or only poll (off).
    #[arg(
        long,
        global = true,
        env = "ROWMQ_CONSUMER_DOORBELL",
        value_name = "WHETHER",
        value_enum
    )]
    #[arg(default_value = "auto")]
    doorbell: DoorbellMode,
    /// How often an idle consumer looks for messages all the same while the doorbell rings.
    #[arg(
        long,
        global = true,
        env = "ROWMQ_CONSUMER_SAFETY_POLL",
        value_name = "TIME",
        default_value = "5s"
    )]
    #[arg(value_parser = parse_duration)]
    safety_poll: Duration,
    /// The name of this member of a broadcast group: its position is kept under it, and it goes on
    /// there after a restart. One process at a time has it.
    #[arg(long, global = true, env = "ROWMQ_CONSUMER_MEMBER", value_name = "NAME")]
    member: Option<MemberName>,
}

fn strategy() -> impl TypedValueParser<Value = ClaimStrategy> {
    PossibleValuesParser::new(["skip-locked", "update-then-select", "update-limit"]).map(|word| {
        match word.as_str() {
            "update-then-select" => ClaimStrategy::UpdateThenSelect,
            "update-limit" => ClaimStrategy::UpdateLimit,
            _ => ClaimStrategy::SkipLocked,
        }
    })
}

impl SettingsArgs {
    /// Returns the settings as options of the consumer.
    #[must_use]
    pub fn options(&self) -> ConsumerOptions {
        ConsumerOptions {
            lease: self.lease,
            beat: self.beat,
            drain: self.drain,
            claim_strategy: self.claim_strategy,
            concurrency: None,
            auto_create_topics: self.auto_create_topics,
            sweep: self.sweep,
            doorbell: self.doorbell,
            safety_poll: self.safety_poll,
            member: self.member.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    #[test]
    fn nothing_said_gives_the_librarys_defaults() {
        let alone = Alone::try_parse_from(["consumer"]).expect("read");
        assert_eq!(alone.settings.options(), ConsumerOptions::default());
    }
}
