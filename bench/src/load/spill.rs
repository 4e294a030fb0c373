//! A producer with a spill journal, behind a proxy that cuts the server off.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use rowmq_core::NewMessage;
use rowmq_producer::{Producer, ProducerOptions, SpillOptions};
use rowmq_test::proxy::FaultProxy;

use super::{Enqueue, Way};
use crate::arena::{Arena, bytes};
use crate::figure::{Sample, rate};

pub(super) async fn run(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    // On the disk of the server's data, so that a sync costs both the same.
    let program = std::env::current_exe().context("Cannot find the benchmark's own program")?;
    let beside = program.parent().context("a program is in a folder")?;
    let folder = tempfile::tempdir_in(beside).context("Cannot make a directory")?;
    let mut spill = SpillOptions::new(folder.path().join("journal"));
    spill.after = Duration::ZERO;
    let options = ProducerOptions { spill: Some(spill), ..ProducerOptions::default() };
    if enqueue.way == Way::Journal {
        return super::enqueue::by_receipts(arena, enqueue, options).await;
    }
    let proxy = FaultProxy::start(arena.url()).await;
    let producer = Producer::connect(proxy.url(arena.url()), options).await?;
    proxy.refuse();
    let topic = &arena.topic.name;
    producer.send(topic, NewMessage::new("the first finds out that the server is away")).await?;
    let start = Instant::now();
    let loops = (0..enqueue.connections).map(|_| async {
        let mut messages = 0;
        while start.elapsed() < enqueue.time {
            producer.send(topic, NewMessage::new(bytes(enqueue.body))).await?;
            messages += 1;
        }
        anyhow::Ok(messages)
    });
    let spilled: u64 = try_join_all(loops).await?.into_iter().sum();
    let mut figure = rate(spilled, start.elapsed());
    if enqueue.way == Way::Refill {
        proxy.pass();
        let (left, start) = (producer.in_journal(), Instant::now());
        producer.drained().await?;
        figure = rate(left, start.elapsed());
    }
    producer.close().await;
    Ok(Sample::of([figure]))
}
