//! The memory of a consumer that drains a backlog: whether it stays constant.

use std::time::Duration;

use anyhow::ensure;

use super::{Drain, drain};
use crate::arena::Arena;
use crate::figure::{Figure, Name, Sample};
use crate::process;

pub(super) async fn run(arena: &Arena, load: Drain) -> anyhow::Result<Sample> {
    arena.fill(load.by, load.backlog, load.body).await?;
    let company = drain::muster(arena, load).await?;
    let (mut halfway, mut whole) = (None, 0.0_f64);
    let end = tokio::time::Instant::now() + load.limit;
    while company.count().settled < load.backlog {
        ensure!(tokio::time::Instant::now() < end, "The backlog was not drained in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
        for id in company.ids() {
            whole = whole.max(process::peak_resident(id)?);
        }
        if halfway.is_none() && company.count().settled >= load.backlog / 2 {
            halfway = Some(whole);
        }
    }
    company.dismiss().await?;
    Ok(Sample::of([
        Figure { name: Name::Resident, value: whole },
        Figure { name: Name::ResidentHalfway, value: halfway.unwrap_or(whole) },
    ]))
}
