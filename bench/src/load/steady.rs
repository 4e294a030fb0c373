//! Messages that come and go at the same time, for long enough that work which the server defers
//! (purging, flushing) comes due.

use std::num::NonZeroU32;

use rowmq_core::NewMessage;
use rowmq_producer::{Producer, ProducerOptions};
use tokio::time::{Duration, Instant};

use super::{Steady, drain};
use crate::arena::{Arena, bytes};
use crate::figure::{Figure, Name, Sample, count};

/// The producer waits while more messages than this are in the queue, so that both sides set the
/// pace.
const AHEAD: u64 = 20_000;

/// Windows whose rates are compared.
const WINDOW: Duration = Duration::from_secs(1);

pub(super) async fn run(arena: &Arena, steady: Steady) -> anyhow::Result<Sample> {
    let company = drain::muster(arena, steady.drain).await?;
    let lanes = NonZeroU32::MIN;
    let options = ProducerOptions { lanes, ..ProducerOptions::default() };
    let producer = Producer::connect(arena.url().clone(), options).await?;
    let start = Instant::now();
    let (mut sent, mut windows, mut seen) = (0, Vec::new(), 0);
    let mut window = start;
    while start.elapsed() < steady.time {
        let settled = company.count().settled;
        if window.elapsed() >= WINDOW {
            windows.push(count(settled - seen) / window.elapsed().as_secs_f64());
            (window, seen) = (Instant::now(), settled);
        }
        if sent - settled > AHEAD {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        let batch = (0..steady.send).map(|_| NewMessage::new(bytes(steady.drain.body))).collect();
        producer.send_all(&arena.topic.name, batch).await?;
        sent += steady.send as u64;
    }
    producer.close().await;
    company.until(sent, steady.drain.limit).await?;
    company.dismiss().await?;
    // The first window includes the start.
    let rates: Vec<f64> = windows.into_iter().skip(1).collect();
    let whole = rates.iter().sum::<f64>() / count(rates.len().max(1) as u64);
    let last = rates.iter().rev().take(rates.len().div_ceil(4)).copied();
    let last: Vec<f64> = last.collect();
    let late = last.iter().sum::<f64>() / count(last.len().max(1) as u64);
    Ok(Sample::of([
        Figure { name: Name::Rate, value: whole },
        Figure { name: Name::LateRate, value: late },
    ]))
}
