use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rowmq_core::model::RetryPolicy;
use rowmq_core::{Moment, Priority, TopicName};
use rowmq_producer::{ProducerOptions, ResendPolicy};
use rowmq_service::args::{ServerArgs, ServiceArgs};

use super::pace::Rate;
use crate::encode::EncodeArgs;
use crate::spill_args::SpillArgs;

/// Sends messages to a topic: bodies from the arguments, the lines of a file, or NDJSON.
///
/// Messages are stored in the order of the input. Exit status: 0 if all are stored, 1 if not,
/// 128 + the signal's number if a signal left something unsent.
#[derive(Debug, Args)]
#[command(override_usage = "rowmq-producer send [OPTIONS] TOPIC BODY...\n       \
    rowmq-producer send [OPTIONS] TOPIC --lines FILE [--null]\n       \
    rowmq-producer send [OPTIONS] TOPIC --ndjson FILE [--skip-bad]")]
#[command(group = clap::ArgGroup::new("input").required(true).args(["bodies", "lines", "ndjson"]))]
pub(crate) struct Arguments {
    /// Where the messages go.
    pub(super) topic: TopicName,
    /// A body each; bytes as the shell gives them. Put `--` before bodies that begin with `-`.
    #[arg(value_name = "BODY")]
    pub(super) bodies: Vec<OsString>,
    /// Each line of FILE (`-`: standard input) is a body, without its newline. Empty lines are
    /// empty bodies.
    #[arg(long, value_name = "FILE")]
    pub(super) lines: Option<PathBuf>,
    /// Lines end with NUL instead of a newline, as file names of `find -print0`.
    #[arg(long, requires = "lines")]
    pub(super) null: bool,
    /// Each line of FILE (`-`: standard input) is a JSON object: the body as `body` (text), `json`
    /// (any value, sent as it is written) or `body_base64`; optionally `msg_id`, `priority`,
    /// `key`, `biz_id` (or `key_base64`, `biz_id_base64`), `headers`, `deliver`, `expires`, and
    /// `unique` (a key, or `unique_base64`) with `unique_for` (a time), `on_conflict` (keep,
    /// replace, debounce) and `max_wait` (a time).
    #[arg(long, value_name = "FILE")]
    pub(super) ndjson: Option<PathBuf>,
    /// Go on after a line that is no message, or a message that the topic refuses. It is reported
    /// and counted as failed all the same.
    #[arg(long)]
    pub(super) skip_bad: bool,
    /// Priority, 0 (first) to 9 (last) [default: 5].
    #[arg(long, value_name = "0-9")]
    pub(super) priority: Option<Priority>,
    /// Ordering key.
    #[arg(long)]
    pub(super) key: Option<OsString>,
    /// When they become ready: a time from now (48h), or a moment (2026-12-24T18:00:00Z).
    #[arg(long, value_name = "WHEN")]
    pub(super) deliver: Option<Moment>,
    /// When they expire: no consumer begins to handle them after that.
    #[arg(long, value_name = "WHEN")]
    pub(super) expires: Option<Moment>,
    /// A header; may be given several times.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(super) headers: Vec<(String, String)>,
    /// How a failed message waits, in place of its topic's policy: 'exponential 1s..1h',
    /// 'ladder 10s 30s 1m' or 'fixed 30s'.
    #[arg(long, value_name = "POLICY")]
    pub(super) retry: Option<RetryPolicy>,
    /// Failures after which a message becomes a dead letter, in place of its topic's limit.
    #[arg(long, value_name = "N")]
    pub(super) max_attempts: Option<NonZeroU32>,
    #[command(flatten)]
    pub(super) encode: EncodeArgs,
    /// The most messages in one transaction.
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) batch: u32,
    /// The most messages a second [default: no limit].
    #[arg(long, value_name = "N/s")]
    pub(super) rate: Option<Rate>,
    /// How often a batch is tried again at most [default: as often as --give-up-after allows].
    #[arg(long, value_name = "N")]
    pub(super) max_resends: Option<u32>,
    /// For how long a batch is tried; with --spill-dir, for how long it waits for room there.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub(super) give_up_after: Duration,
    /// Create the topic if it does not exist.
    #[arg(long)]
    pub(super) auto_create_topics: bool,
    /// Print the summary as a JSON object.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) spill: SpillArgs,
    /// End as soon as everything is stored or in the spill journal, with status 0, instead of
    /// waiting until the journal is empty.
    #[arg(long)]
    pub(super) leave_spilled: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

impl Arguments {
    pub(super) fn producer_options(&self) -> ProducerOptions {
        let resend = ResendPolicy {
            max_resends: self.max_resends,
            give_up_after: self.give_up_after,
            ..ResendPolicy::default()
        };
        ProducerOptions {
            // Batches go one after the other, so that the order of the input is kept.
            lanes: NonZeroU32::MIN,
            auto_create_topics: self.auto_create_topics,
            resend,
            encoding: self.encode.encoding(),
            spill: self.spill.options(),
            ..ProducerOptions::default()
        }
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header looks like NAME=VALUE")?;
    if name.is_empty() {
        return Err("the header has no name".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}
