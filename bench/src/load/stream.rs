//! Streams: the sequencer alone, producers, and groups that read a log.

mod long_log;

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::{SessionKind, connect, transaction};
use rowmq_core::model::{OffsetSpec, Topic, TopicSettings};
use rowmq_core::store;
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::stream::{Contention, append, sequence};
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, enqueue_to};
use rowmq_producer::{Producer, ProducerOptions};
use serde::Serialize;
use tokio::time::Instant;

pub(super) use self::long_log::run as long_log;
pub(crate) use self::long_log::{LongLog, LongLogAsked};
use super::Drain;
use crate::actor::{Company, DrainTask, Task};
use crate::arena::{Arena, bytes};
use crate::figure::{Sample, rate};

/// Messages per statement of the filling.
const FILL_ROWS: u64 = 1000;

/// The sequencer, alone with a full inbox.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Sequencing {
    /// Messages before the start.
    pub(crate) backlog: u64,
    /// The most messages of one transaction.
    pub(crate) batch: u32,
    /// Partitions of the stream.
    pub(crate) partitions: u32,
    /// Bytes of a body.
    pub(crate) body: usize,
}

/// Producers of a stream, until everything they sent has its offset.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Appending {
    /// Lanes of the producer, each with a batch in flight.
    pub(crate) lanes: usize,
    /// Messages per send.
    pub(crate) batch: usize,
    /// Partitions of the stream.
    pub(crate) partitions: u32,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How long they send.
    #[serde(serialize_with = "super::seconds")]
    pub(crate) time: Duration,
}

/// The readers of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readers {
    /// This many groups, whose members share the messages.
    Groups(u32),
    /// One ordered group.
    Ordered,
    /// One broadcast group, each of whose members reads all messages.
    Broadcast,
}

/// Groups that read a log from its beginning.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Reading {
    /// Members of each group, and their batches. Its backlog is the length of the log.
    pub(crate) drain: Drain,
    /// The groups.
    pub(crate) readers: Readers,
    /// Partitions of the stream.
    pub(crate) partitions: u32,
    /// Whether the messages have their offsets before the start.
    pub(crate) sequenced: bool,
}

pub(super) async fn sequencing(arena: &Arena, load: Sequencing) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let stream = fill(&mut conn, load.backlog, load.body, load.partitions).await?;
    let start = Instant::now();
    let moved = sequence_all(&mut conn, &stream, load.batch).await?;
    let time = start.elapsed();
    ensure!(moved == load.backlog, "{moved} of {} messages got an offset", load.backlog);
    Ok(Sample::of([rate(moved, time)]))
}

pub(super) async fn appending(arena: &Arena, load: Appending) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let stream = fill(&mut conn, 0, load.body, load.partitions).await?;
    let lanes = u32::try_from(load.lanes).ok().and_then(NonZeroU32::new);
    let lanes = lanes.context("A load needs a lane")?;
    let options = ProducerOptions { lanes, ..ProducerOptions::default() };
    let producer = Producer::connect(arena.url().clone(), options).await?;
    let send = async || {
        let batch = (0..load.batch).map(|_| NewMessage::new(bytes(load.body))).collect();
        producer.send_all(&stream.name, batch).await.map(|_| load.batch as u64)
    };
    // Each lane opens with its first batch, which is not part of the measurement.
    try_join_all((0..load.lanes).map(|_| send())).await?;
    sequence_all(&mut conn, &stream, 1000).await?;
    let start = Instant::now();
    let loops = (0..load.lanes).map(|_| async {
        let mut messages = 0;
        while start.elapsed() < load.time {
            messages += send().await?;
        }
        anyhow::Ok(messages)
    });
    let messages: u64 = try_join_all(loops).await?.into_iter().sum();
    sequence_all(&mut conn, &stream, 1000).await?;
    let sample = Sample::of([rate(messages, start.elapsed())]);
    producer.close().await;
    Ok(sample)
}

pub(super) async fn reading(arena: &Arena, load: Reading) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let drain = load.drain;
    let stream = fill(&mut conn, drain.backlog, drain.body, load.partitions).await?;
    if load.sequenced {
        sequence_all(&mut conn, &stream, 1000).await?;
    }
    let settings = TopicSettings::default();
    let (groups, times) = match load.readers {
        Readers::Groups(groups) => (groups, u64::from(groups)),
        Readers::Ordered => (1, 1),
        Readers::Broadcast => (1, drain.consumers as u64),
    };
    let mut tasks = Vec::new();
    for n in 0..groups {
        let group = TopicName::of_group(&stream.name, &format!("g{n}"))?;
        match load.readers {
            Readers::Groups(_) | Readers::Ordered => {
                let ordered = load.readers == Readers::Ordered;
                create_group(&mut conn, &group, ordered, OffsetSpec::Earliest, &settings).await?;
            }
            Readers::Broadcast => {
                create_broadcast(&mut conn, &group, OffsetSpec::Earliest, &settings).await?;
            }
        }
        let task = DrainTask {
            by: drain.by,
            topic: group.as_str().to_owned(),
            concurrency: drain.concurrency,
            batch: drain.batch,
            first: 0,
            share: 0,
        };
        tasks.extend(vec![Task::Drain(task); drain.consumers]);
    }
    let company = Company::muster(arena.url(), tasks.into_iter()).await?;
    let (count, curve) = company.until(drain.backlog * times, drain.limit).await?;
    company.dismiss().await?;
    Ok(Sample { figures: count.figures(), curve, ..Sample::default() })
}

/// Creates a stream whose inbox has this many messages.
async fn fill(
    conn: &mut AsyncMysqlConnection,
    messages: u64,
    body: usize,
    partitions: u32,
) -> anyhow::Result<Topic> {
    let name = TopicName::new("stream")?;
    create_stream(conn, &name, partitions, &TopicSettings::default()).await?;
    let stream = store::topic::existing(conn, &name).await?;
    let mut left = messages;
    while left > 0 {
        let rows = left.min(FILL_ROWS);
        let batch: Vec<_> = (0..rows).map(|_| NewMessage::new(bytes(body))).collect();
        enqueue_to(conn, &stream, &batch).await?;
        left -= rows;
    }
    Ok(stream)
}

/// Fills the log directly, past the inbox.
async fn append_all(
    conn: &mut AsyncMysqlConnection,
    stream: &Topic,
    messages: u64,
    body: usize,
) -> anyhow::Result<()> {
    let mut left = messages;
    while left > 0 {
        let rows = left.min(FILL_ROWS);
        let batch: Vec<_> = (0..rows).map(|_| NewMessage::new(bytes(body))).collect();
        let append = async |conn: &mut _| append(conn, stream.id, &batch).await;
        let appended = transaction(conn, "append", append).await?;
        ensure!(appended.in_log, "somebody else is at work on the log");
        left -= rows;
    }
    Ok(())
}

async fn sequence_all(
    conn: &mut AsyncMysqlConnection,
    stream: &Topic,
    batch: u32,
) -> anyhow::Result<u64> {
    let mut moved = 0;
    loop {
        let turn = transaction(conn, "sequence", async |conn| {
            sequence(conn, stream.id, batch, Contention::Wait).await
        });
        let turn = turn.await?;
        moved += turn.messages as u64;
        if !turn.more {
            return Ok(moved);
        }
    }
}

/// Removes every stream of an earlier load.
pub(super) async fn clear(conn: &mut mysql_async::Conn) -> anyhow::Result<()> {
    for table in ["queue_log", "queue_partition", "queue_cursor", "queue_range", "queue_passed"] {
        conn.query_drop(format!("TRUNCATE TABLE {table}")).await?;
    }
    conn.query_drop("DELETE FROM queue_topic WHERE kind IN ('stream', 'group', 'broadcast')")
        .await?;
    Ok(())
}
