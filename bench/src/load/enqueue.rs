//! Our producers in a loop.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Context;
use diesel_async::SimpleAsyncConnection;
use futures_util::future::try_join_all;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::model::Sampling;
use rowmq_core::{AsyncMysqlConnection, MsgId, NewMessage, Topic, Unique, enqueue_to};
use rowmq_producer::{Producer, ProducerOptions};

use super::{Enqueue, Way};
use crate::arena::{Arena, SEARCHABLE, bytes};
use crate::figure::{Sample, rate};

/// The dedupe window of a topic that has one.
const WINDOW: Duration = Duration::from_secs(3600);

/// Receipts that a task has open at a time.
const RECEIPTS: usize = 100;

pub(super) async fn run(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    arena.set_known(enqueue.searchable, enqueue.trace).await?;
    let sample = on(arena, enqueue).await;
    arena.set_known(false, Sampling::OFF).await?;
    sample
}

async fn on(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    match enqueue.way {
        Way::Lane | Way::Send => by_callers(arena, enqueue).await,
        Way::Receipts => by_receipts(arena, enqueue, ProducerOptions::default()).await,
        Way::Journal | Way::Spill | Way::Refill => super::spill::run(arena, enqueue).await,
        Way::Plain | Way::Transaction | Way::Given | Way::Unique => {
            on_connections(arena, enqueue).await
        }
        Way::Call => super::call::run(arena, enqueue).await,
    }
}

/// Callers that each wait for their messages: as many as connections.
async fn by_callers(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    let mut options = ProducerOptions::default();
    if enqueue.way == Way::Lane {
        let lanes = u32::try_from(enqueue.connections).ok().and_then(NonZeroU32::new);
        options.lanes = lanes.context("A load needs a connection")?;
    }
    let producer = Producer::connect(arena.url().clone(), options).await?;
    // Each lane opens with its first batch, which is not part of the measurement.
    let open = (0..enqueue.connections).map(|_| send(&producer, arena, enqueue));
    try_join_all(open).await?;
    let start = Instant::now();
    let loops = (0..enqueue.connections).map(|_| async {
        let mut messages = 0;
        while start.elapsed() < enqueue.time {
            messages += send(&producer, arena, enqueue).await?;
        }
        anyhow::Ok(messages)
    });
    let messages: u64 = try_join_all(loops).await?.into_iter().sum();
    let sample = Sample::of([rate(messages, start.elapsed())]);
    producer.close().await;
    Ok(sample)
}

pub(super) async fn by_receipts(
    arena: &Arena,
    enqueue: Enqueue,
    options: ProducerOptions,
) -> anyhow::Result<Sample> {
    let producer = Producer::connect(arena.url().clone(), options).await?;
    send(&producer, arena, enqueue).await?;
    let start = Instant::now();
    let loops = (0..enqueue.connections).map(|_| {
        let (producer, topic) = (producer.clone(), arena.topic.name.clone());
        tokio::spawn(async move {
            let (mut messages, mut open) = (0, VecDeque::with_capacity(RECEIPTS));
            while start.elapsed() < enqueue.time {
                if open.len() == RECEIPTS
                    && let Some(receipt) = open.pop_front()
                {
                    receipt.await?;
                }
                let message = NewMessage::new(bytes(enqueue.body));
                open.push_back(producer.send_async(&topic, message).await?);
                messages += 1;
            }
            for receipt in open {
                receipt.await?;
            }
            anyhow::Ok(messages)
        })
    });
    let mut messages = 0;
    for stored in try_join_all(loops).await? {
        messages += stored?;
    }
    let sample = Sample::of([rate(messages, start.elapsed())]);
    producer.close().await;
    Ok(sample)
}

async fn send(producer: &Producer, arena: &Arena, enqueue: Enqueue) -> anyhow::Result<u64> {
    let (topic, messages) = (&arena.topic.name, batch(enqueue));
    let n = messages.len() as u64;
    if enqueue.way == Way::Send {
        for message in messages {
            producer.send(topic, message).await?;
        }
    } else {
        producer.send_all(topic, messages).await?;
    }
    Ok(n)
}

async fn on_connections(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    let connections = (0..enqueue.connections).map(|_| connect(arena.url(), SessionKind::Plain));
    let connections = try_join_all(connections).await?;
    let start = Instant::now();
    let loops = connections.into_iter().map(|conn| {
        let mut topic = arena.topic.clone();
        topic.settings.trace = enqueue.trace;
        topic.settings.searchable = enqueue.searchable.then_some(SEARCHABLE);
        topic.settings.dedupe_window = (enqueue.way == Way::Given).then_some(WINDOW);
        tokio::spawn(async move { until(start, enqueue, conn, &topic).await })
    });
    let mut messages = 0;
    for enqueued in try_join_all(loops).await? {
        messages += enqueued?;
    }
    Ok(Sample::of([rate(messages, start.elapsed())]))
}

async fn until(
    start: Instant,
    enqueue: Enqueue,
    mut conn: AsyncMysqlConnection,
    topic: &Topic,
) -> anyhow::Result<u64> {
    let mut messages = 0;
    while start.elapsed() < enqueue.time {
        let batch = batch(enqueue);
        // The caller's transaction, as the caller's code makes it.
        if enqueue.way != Way::Plain {
            conn.batch_execute("BEGIN").await?;
        }
        enqueue_to(&mut conn, topic, &batch).await?;
        if enqueue.way != Way::Plain {
            conn.batch_execute("COMMIT").await?;
        }
        messages += batch.len() as u64;
    }
    Ok(messages)
}

fn batch(enqueue: Enqueue) -> Vec<NewMessage> {
    let message = |_| {
        let message = NewMessage::new(bytes(enqueue.body));
        let id = message.msg_id;
        match enqueue.way {
            Way::Given => message.with_msg_id(MsgId::new()),
            Way::Unique => message.with_unique(Unique::until_done(id.as_bytes())),
            _ => message,
        }
    };
    (0..enqueue.batch).map(message).collect()
}
