//! A process that sends: through the producer's lanes, or in transactions.

mod transaction;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, Unique};
use rowmq_producer::{Producer, ProducerOptions, SendError, Sent, SpillOptions};
use rowmq_service::args::ServerArgs;
use rowmq_service::signals;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::transaction::{By, Transaction};
use super::Identity;
use crate::record::{Enqueued, Event, Record};
use crate::stream::{KIND, key_of, kind_of};
use crate::tag::Tag;
use crate::task::Task;

/// How long to wait for a silent server before the sender gives its connection up.
const LEASE: Duration = Duration::from_secs(10);

/// The longest delay of a delayed message, in milliseconds.
const DELAY_MS: u64 = 3000;

/// Sends messages until TERM, then waits for those in flight.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SenderArgs {
    #[command(flatten)]
    identity: Identity,
    /// The topic to send to.
    #[arg(long)]
    topic: TopicName,
    /// Messages a second.
    #[arg(long)]
    rate: f64,
    /// The most messages of one transaction.
    #[arg(long, default_value_t = 20)]
    batch: u64,
    /// The longest work of a handler, in milliseconds.
    #[arg(long)]
    work_ms: u64,
    /// Connections, each with one transaction at a time.
    #[arg(long, default_value_t = 4)]
    lanes: u32,
    /// Send in transactions that think for up to this long, and roll back now and then, instead of
    /// through the producer's lanes.
    #[arg(long)]
    think_ms: Option<u64>,
    /// Enqueue by `CALL queue_send` and `queue_send_all` in these transactions, instead of by
    /// the library.
    #[arg(long, requires = "think_ms")]
    by_sql: bool,
    /// Send through the lanes, with a journal in this directory.
    #[arg(long, conflicts_with = "think_ms")]
    spill_dir: Option<PathBuf>,
    /// Send to the stream: with keys, and neither delayed nor unique, so that the commits decide
    /// the order.
    #[arg(long)]
    stream: bool,
    /// For this many seconds at the start, every handler succeeds at its first try.
    #[arg(long, default_value_t = 0)]
    quiet_seconds: u64,
    /// The random seed.
    #[arg(long)]
    seed: u64,
    #[command(flatten)]
    server: ServerArgs,
}

/// Every n-th message sent by itself has a unique key, one of n.
const UNIQUE: u64 = 5;

/// Sends each message by itself, before the previous one is stored; some with a unique key, if
/// allowed.
async fn by_receipts(
    producer: Producer,
    topic: TopicName,
    first: Tag,
    messages: Vec<NewMessage>,
    unique: bool,
    record: Arc<Record>,
) -> std::io::Result<()> {
    let has_key = |seq: u64| unique && seq.is_multiple_of(UNIQUE);
    let mut receipts = Vec::with_capacity(messages.len());
    for (seq, mut message) in (first.seq..).zip(messages) {
        if has_key(seq) {
            let key = format!("key {}", seq / UNIQUE % UNIQUE);
            message = message.with_unique(Unique::until_done(key));
        }
        receipts.push(producer.send_async(&topic, message).await);
    }
    for (seq, receipt) in (first.seq..).zip(receipts) {
        let outcome = match receipt {
            Ok(receipt) => receipt.await,
            Err(error) => Err(error),
        };
        let outcome = match outcome.as_ref().map(Sent::enqueued) {
            // Another message holds its key.
            Ok(Some(there)) if !there.is_stored() => Enqueued::NotStored,
            // Another message may hold it when the journal is sent.
            Ok(None) if has_key(seq) => Enqueued::InDoubt,
            _ => enqueued(&outcome),
        };
        let first = Tag { seq, ..first };
        record.note(&Event::Enqueue { first, n: 1, outcome })?;
    }
    Ok(())
}

fn enqueued<T>(outcome: &Result<T, SendError>) -> Enqueued {
    match outcome {
        Ok(_) => Enqueued::Stored,
        Err(SendError::Refused { .. }) => Enqueued::NotStored,
        Err(_) => Enqueued::InDoubt,
    }
}

struct Sender {
    args: SenderArgs,
    url: ServerUrl,
    record: Arc<Record>,
    rng: SmallRng,
    next: u64,
    started: Instant,
}

pub(crate) async fn run(args: SenderArgs) -> anyhow::Result<ExitCode> {
    let shutdown = signals::shutdown_on_signals()?;
    let mut sender = Sender {
        url: args.server.url()?,
        record: Arc::new(Record::open(&args.identity.record)?),
        // The process that follows a killed one gets its own seed.
        rng: SmallRng::seed_from_u64(args.seed ^ args.identity.actor.0),
        next: 0,
        started: Instant::now(),
        args,
    };
    if sender.args.stream {
        let sender_no = sender.args.identity.actor;
        sender.record.note(&Event::Stream { sender: sender_no })?;
    } else {
        let topic = sender.args.topic.to_string();
        sender.record.note(&Event::Queue { topic })?;
    }
    match sender.args.think_ms {
        None => sender.through_lanes(&shutdown.drain).await?,
        Some(think_ms) => sender.in_transactions(think_ms, &shutdown.drain).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Sender {
    async fn through_lanes(&mut self, drain: &CancellationToken) -> anyhow::Result<()> {
        let lanes = NonZeroU32::new(self.args.lanes).context("--lanes is 1 or more")?;
        let spill = self.args.spill_dir.as_ref().map(SpillOptions::new);
        let options = ProducerOptions { lanes, spill, ..Default::default() };
        let producer = Producer::connect(self.url.clone(), options).await?;
        let topic = self.args.topic.clone();
        // A few batches wait for a lane; more would only measure how fast memory is.
        let most = usize::try_from(self.args.lanes)? * 2;
        let record = Arc::clone(&self.record);
        let mut sends = JoinSet::new();
        while !drain.is_cancelled() {
            while sends.len() >= most {
                if let Some(sent) = sends.join_next().await {
                    sent??;
                }
            }
            let n = self.rng.random_range(1..=self.args.batch);
            let (first, messages) = self.messages(n)?;
            record.note(&Event::Invoke { first, n })?;
            let (producer, topic, record) = (producer.clone(), topic.clone(), Arc::clone(&record));
            if self.rng.random() {
                sends.spawn(async move {
                    let outcome = enqueued(&producer.send_all(&topic, messages).await);
                    record.note(&Event::Enqueue { first, n, outcome })
                });
            } else {
                let unique = !self.args.stream;
                sends.spawn(by_receipts(producer, topic, first, messages, unique, record));
            }
            self.pace(n).await;
        }
        while let Some(sent) = sends.join_next().await {
            sent??;
        }
        // A message that was reported to be in the journal must not be lost.
        producer.drained().await?;
        producer.close().await;
        Ok(())
    }

    async fn in_transactions(
        &mut self,
        think_ms: u64,
        drain: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut conn = None;
        while !drain.is_cancelled() {
            let open: &mut AsyncMysqlConnection = match &mut conn {
                Some(open) => open,
                None => match connect(&self.url, SessionKind::Leased(LEASE)).await {
                    Ok(open) => conn.insert(open),
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        continue;
                    }
                },
            };
            let n = self.rng.random_range(1..=3);
            let (first, messages) = self.messages(n)?;
            let by = if self.args.by_sql { By::Sql } else { By::Library };
            let transaction = Transaction::random(by, think_ms, &mut self.rng);
            self.record.note(&Event::Invoke { first, n })?;
            let inserted = || {
                let topic = self.args.topic.to_string();
                self.record.note(&Event::Inserted { first, n, topic })
            };
            // A transaction may have been cut off in this connection, so the connection is dropped
            // too.
            let outcome = match tokio::time::timeout(
                LEASE,
                transaction.run(open, &self.args.topic, &messages, inserted),
            )
            .await
            {
                Ok(outcome) => outcome,
                Err(_) => Enqueued::InDoubt,
            };
            self.record.note(&Event::Enqueue { first, n, outcome })?;
            if outcome == Enqueued::InDoubt {
                conn = None;
            }
            self.pace(n).await;
        }
        Ok(())
    }

    fn messages(&mut self, n: u64) -> anyhow::Result<(Tag, Vec<NewMessage>)> {
        let first = Tag { sender: self.args.identity.actor, seq: self.next };
        self.next += n;
        let quiet = self.started.elapsed() < Duration::from_secs(self.args.quiet_seconds);
        let message = |tag: Tag| {
            let task = Task::random(&mut self.rng, self.args.work_ms, quiet);
            let mut message = NewMessage::json(&task)?.with_msg_id(tag.msg_id());
            if self.args.stream {
                if let Some(key) = key_of(tag) {
                    message = message.with_key(key);
                }
                if let Some(kind) = kind_of(tag) {
                    message = message.with_header(KIND, kind);
                }
            } else if !self.args.by_sql && self.rng.random_ratio(1, 8) {
                let delay = Duration::from_millis(self.rng.random_range(0..DELAY_MS));
                message = message.with_delay(delay);
            }
            Ok(message)
        };
        let tags = (0..n).map(|i| Tag { seq: first.seq + i, ..first });
        let messages: anyhow::Result<Vec<_>> = tags.map(message).collect();
        Ok((first, messages?))
    }

    async fn pace(&self, n: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        tokio::time::sleep(Duration::from_secs_f64(n as f64 / self.args.rate)).await;
    }
}
