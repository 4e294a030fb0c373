//! A backlog that processes drain.

use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::Drain;
use crate::actor::{Company, DrainTask, Task};
use crate::arena::Arena;
use crate::figure::{Name, Sample};

pub(super) async fn run(arena: &Arena, drain: Drain) -> anyhow::Result<Sample> {
    arena.fill(drain.by, drain.backlog, drain.body).await?;
    let reader = if drain.long_reader { Some(hold_purge(arena).await?) } else { None };
    let company = muster(arena, drain).await?;
    let (count, curve) = company.until(drain.backlog, drain.limit).await?;
    company.dismiss().await?;
    drop(reader);
    let mut figures = count.figures();
    figures.retain(|figure| figure.name != Name::CpuOfEach || !drain.by.runs_programs());
    Ok(Sample { figures, curve, ..Sample::default() })
}

/// Starts the processes together.
pub(super) async fn muster(arena: &Arena, drain: Drain) -> anyhow::Result<Company> {
    let share = drain.backlog.div_ceil(drain.consumers as u64);
    let tasks = (0..drain.consumers as u64).map(|n| {
        Task::Drain(DrainTask {
            by: drain.by,
            topic: arena.topic.name.as_str().to_owned(),
            concurrency: drain.concurrency,
            batch: drain.batch,
            first: n * share,
            share,
        })
    });
    Company::muster(arena.url(), tasks).await
}

/// Opens a transaction with a snapshot of now: rows that are deleted from here on stay in the
/// tables until it ends.
async fn hold_purge(arena: &Arena) -> anyhow::Result<Conn> {
    let mut conn = arena.raw().await?;
    conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await?;
    conn.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").await?;
    Ok(conn)
}
