//! How long it takes to reset a group and to read its lag, beside a log of any length.

use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rowmq_core::TopicName;
use rowmq_core::connection::{SessionKind, connect, transaction};
use rowmq_core::model::{OffsetSpec, TopicSettings};
use rowmq_core::store;
use rowmq_core::store::stream::progress;
use rowmq_core::stream::group::{create_group, reset_group};
use serde::Serialize;
use tokio::time::Instant;

use super::{append_all, fill};
use crate::arena::Arena;
use crate::figure::{Name, Sample, quantile};

/// A group in front of a long log.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LongLog {
    /// Messages of the log.
    pub(crate) log: u64,
    /// Partitions of the stream.
    pub(crate) partitions: u32,
    /// What is timed.
    pub(crate) asked: LongLogAsked,
    /// How many times.
    pub(crate) asks: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
}

/// The timed operation on a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LongLogAsked {
    /// Its reset, in turn to the oldest message, to the newest, and to a time between them.
    Reset,
    /// Its lag, in messages and in seconds.
    Lag,
}

pub(in crate::load) async fn run(arena: &Arena, load: LongLog) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let stream = fill(&mut conn, 0, load.body, load.partitions).await?;
    let begun = store::topic::server_time(&mut conn).await?.and_utc();
    append_all(&mut conn, &stream, load.log, load.body).await?;
    let ended = store::topic::server_time(&mut conn).await?.and_utc();
    let name = TopicName::of_group(&stream.name, "g")?;
    let settings = TopicSettings::default();
    create_group(&mut conn, &name, false, OffsetSpec::Earliest, &settings).await?;
    let topic = store::topic::existing(&mut conn, &name).await?;
    let group = topic.group().context("The group is no group")?;
    let places =
        [OffsetSpec::Earliest, OffsetSpec::Latest, OffsetSpec::Time(begun + (ended - begun) / 2)];
    let mut times = Histogram::new(3)?;
    for ask in 0..load.asks {
        let start = Instant::now();
        match load.asked {
            LongLogAsked::Reset => {
                let to = places[ask % places.len()];
                let reset = async |conn: &mut _| reset_group(conn, &topic, to).await;
                transaction(&mut conn, "reset the group", reset).await?;
            }
            LongLogAsked::Lag => {
                let progress = progress::of_group(&mut conn, group).await?;
                let lag: u64 = progress.iter().map(|one| one.lag).sum();
                ensure!(lag == load.log, "the lag is {lag}, and not {}", load.log);
            }
        }
        times.record(u64::try_from(start.elapsed().max(Duration::from_nanos(1)).as_nanos())?)?;
    }
    Ok(Sample::of([quantile(Name::P50, &times), quantile(Name::P99, &times)]))
}
