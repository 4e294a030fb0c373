use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, stdin};
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ArgGroup;
use rowmq_core::model::RetryPolicy;
use rowmq_core::{
    Enqueued, Moment, MsgId, NewMessage, OnConflict, Priority, Topic, TopicName, Unique, enqueue_to,
};
use serde::Serialize;

use super::scheduled::refuse_past;
use super::topic::find;
use crate::invocation::Invocation;
use crate::packet;
use crate::units::{parse_header, parse_time, size};

/// Enqueue one message and print its id, or that of the existing message.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("content").required(true).args(["body", "file"])))]
pub(crate) struct Enqueue {
    topic: TopicName,
    /// The body; - reads it from standard input.
    body: Option<OsString>,
    /// Read the body from this file.
    #[arg(long, short)]
    file: Option<PathBuf>,
    /// 0 (handled first) to 9 (last).
    #[arg(long, default_value_t)]
    priority: Priority,
    /// Ordering key.
    #[arg(long)]
    key: Option<OsString>,
    /// Business idempotency key.
    #[arg(long)]
    biz_id: Option<OsString>,
    /// A header; may be given several times.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// When it becomes ready: a time from now (48h), or a moment (2026-12-24T18:00:00Z).
    #[arg(long, value_name = "WHEN")]
    deliver: Option<Moment>,
    /// When it expires: no consumer begins to handle it after that.
    #[arg(long, value_name = "WHEN")]
    expires: Option<Moment>,
    /// How the message waits if it fails, in place of its topic's policy: 'exponential 1s..1h',
    /// 'ladder 10s 30s 1m' or 'fixed 30s'.
    #[arg(long, value_name = "POLICY")]
    retry: Option<RetryPolicy>,
    /// Failures after which it becomes a dead letter, in place of its topic's limit.
    #[arg(long, value_name = "N")]
    max_attempts: Option<NonZeroU32>,
    /// Do not store it if the topic has a message with this key.
    #[arg(long, value_name = "KEY")]
    unique: Option<OsString>,
    /// For how long the key is held [default: until the message is done].
    #[arg(long, value_name = "TIME", requires = "unique", value_parser = parse_time)]
    unique_for: Option<Duration>,
    /// What becomes of the existing message: keep, replace, or debounce, which also restarts its
    /// wait (with --deliver).
    #[arg(long, value_name = "CHOICE", requires = "unique")]
    on_conflict: Option<OnConflict>,
    /// How long a debounced message waits at the longest.
    #[arg(long, value_name = "TIME", requires = "unique", value_parser = parse_time)]
    max_wait: Option<Duration>,
    /// Message id, a UUID; a new UUIDv7 unless given.
    #[arg(long, value_name = "UUID")]
    msg_id: Option<MsgId>,
}

#[derive(Debug, Serialize)]
struct Answer {
    msg_id: MsgId,
    outcome: &'static str,
}

impl Enqueue {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        refuse_past(&mut session, "--deliver", self.deliver).await?;
        refuse_past(&mut session, "--expires", self.expires).await?;
        let message = self.message(&topic)?;
        packet::check(&mut session, "The message", message.body.len()).await?;
        let messages = [message];
        let enqueued = session
            .transaction("enqueue", async |conn| enqueue_to(conn, &topic, &messages).await)
            .await?;
        let [message] = messages;
        let enqueued = enqueued.first().copied().unwrap_or(Enqueued::Stored(message.msg_id));
        let (msg_id, outcome) = (enqueued.msg_id(), enqueued.word());
        let text = match enqueued {
            Enqueued::Stored(_) => msg_id.to_string(),
            Enqueued::Duplicate(_) | Enqueued::Replaced(_) => format!("{msg_id} {outcome}"),
        };
        invocation.output.report(&Answer { msg_id, outcome }, &text)
    }

    fn message(self, topic: &Topic) -> anyhow::Result<NewMessage> {
        let body = match (self.body, self.file) {
            (_, Some(file)) => {
                let name = file.display().to_string();
                let content = File::open(&file).with_context(|| format!("Cannot read {name}"))?;
                read(content, &name, topic)?
            }
            (Some(body), None) if body == OsStr::new("-") => {
                read(stdin().lock(), "standard input", topic)?
            }
            (Some(body), None) => body.into_vec(),
            (None, None) => bail!("There is no body: give one, --file FILE, or - to read it"),
        };
        let mut message = NewMessage::new(body).with_priority(self.priority);
        message.msg_id = self.msg_id.unwrap_or(message.msg_id);
        message.key = self.key.map(OsStringExt::into_vec);
        message.biz_id = self.biz_id.map(OsStringExt::into_vec);
        message.headers = self.headers.into_iter().collect();
        (message.deliver, message.expires) = (self.deliver, self.expires);
        let key = self.unique.map(OsStringExt::into_vec);
        message.unique =
            Unique::from_options(key, self.unique_for, self.on_conflict, self.max_wait)?;
        self.retry.iter().for_each(|policy| message.headers.set_retry(policy));
        self.max_attempts.iter().for_each(|attempts| message.headers.set_max_attempts(*attempts));
        Ok(message)
    }
}

/// Reads only as much as the topic accepts, however much there is.
fn read(content: impl Read, name: &str, topic: &Topic) -> anyhow::Result<Vec<u8>> {
    let limit = topic.settings.body_limit;
    let mut body = Vec::new();
    content
        .take(u64::from(limit) + 1)
        .read_to_end(&mut body)
        .with_context(|| format!("Cannot read {name}"))?;
    if body.len() > limit as usize {
        bail!(
            "The body from {name} is too large for the topic '{topic}', which takes {limit}: raise it with `rowmq topic set {topic} --body-limit`, or keep the content elsewhere and send a reference.",
            topic = topic.name,
            limit = size(limit),
        );
    }
    Ok(body)
}
