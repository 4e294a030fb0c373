//! Consumers that are killed while they hold messages: how long until another one runs these
//! messages.

use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::model::{OffsetSpec, TopicSettings};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, enqueue, enqueue_to, store};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Claimer;
use crate::actor::{Company, DrainTask, HoldTask, Task, now};
use crate::arena::{Arena, bytes};
use crate::figure::{Figure, Name, Sample, count, quantile};

/// Messages that the consumer holds when it is killed.
const HELD: u64 = 4;

/// Bytes of a body; the first eight say which consumer holds the message.
const BODY: usize = 200;

/// How long consumers may take to register, to begin a message, and to run it again.
const LIMIT: Duration = Duration::from_secs(30);

/// How often the load checks.
const LOOK: Duration = Duration::from_millis(5);

/// How long the consumers are left alone between losses.
const CALM: Duration = Duration::from_millis(300);

/// Messages of a statement of the busy processes' work.
const BUSY_BATCH: usize = 100;

/// Consumers that are killed, one after the other.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rescue {
    /// Where the messages come from.
    pub(crate) of: Source,
    /// How many consumers are killed.
    pub(crate) kills: u64,
    /// Consumers of another topic that are at work beside them.
    pub(crate) beside: usize,
}

/// A consumer that loses its connections while it holds messages.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Reconnect {
    /// How often it loses them.
    pub(crate) losses: u64,
    /// Consumers of another topic that are at work beside it.
    pub(crate) beside: usize,
}

/// Where messages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// A queue.
    Queue,
    /// A group of a stream.
    Group,
    /// An ordered group.
    OrderedGroup,
    /// A broadcast group: the next process takes over the member's name.
    Broadcast,
}

impl Source {
    /// Returns its name for a row.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Queue => "a queue",
            Self::Group => "a group",
            Self::OrderedGroup => "an ordered group",
            Self::Broadcast => "a broadcast group",
        }
    }

    /// How many of the messages a consumer has begun at once.
    fn begun(self) -> usize {
        if self == Self::OrderedGroup { 1 } else { usize::try_from(HELD).unwrap_or(usize::MAX) }
    }
}

pub(super) async fn run(arena: &Arena, load: Rescue) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let (to, from) = topics(arena, &mut conn, load.of).await?;
    let scene = Scene::set(arena, load.beside).await?;
    let is_member = load.of == Source::Broadcast;
    let mut raw = arena.raw().await?;
    let mut times = Histogram::new(3)?;
    let mut holder = start(arena, &from, 0, is_member).await?;
    registered(&mut raw, load.beside + 1).await?;
    for nth in 0..load.kills {
        send(&mut conn, &to, nth).await?;
        until("a consumer holds its messages", || holder.count().held() == load.of.begun()).await?;
        let next = start(arena, &from, nth + 1, is_member).await?;
        registered(&mut raw, load.beside + 2).await?;
        // The sweeper looks, and the other consumer polls, at any time after the kill.
        tokio::time::sleep(Duration::from_millis(50 + nth * 7 % 50)).await;
        let killed = holder.kill().await?;
        until("another consumer runs them", || next.count().settled >= HELD).await?;
        times.record(next.count().began().saturating_sub(killed))?;
        holder = next;
    }
    holder.kill().await?;
    scene.clear().await?;
    Ok(Sample::of([quantile(Name::P50, &times), quantile(Name::P99, &times)]))
}

/// Ends both sessions of a consumer that holds messages, again and again; measures how soon it has
/// a session again, and counts the messages that run again because it was declared dead.
pub(super) async fn reconnects(arena: &Arena, load: Reconnect) -> anyhow::Result<Sample> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let (to, from) = topics(arena, &mut conn, Source::Queue).await?;
    let scene = Scene::set(arena, load.beside).await?;
    let mut raw = arena.raw().await?;
    let (mut times, mut again, mut pair) = (Histogram::new(3)?, 0, None);
    for nth in 0..load.losses {
        let (holder, other, worker) = match pair.take() {
            Some(pair) => pair,
            None => {
                let holder = start(arena, &from, 0, false).await?;
                registered(&mut raw, load.beside + 1).await?;
                send(&mut conn, &to, 0).await?;
                until("it holds its messages", || holder.count().held() == Source::Queue.begun())
                    .await?;
                let worker = "SELECT MAX(id) FROM queue_worker WHERE state = 'alive'";
                let worker: Option<u64> = raw.query_first(worker).await?;
                let other = start(arena, &from, 1, false).await?;
                registered(&mut raw, load.beside + 2).await?;
                (holder, other, worker.context("The consumer is not registered")?)
            }
        };
        tokio::time::sleep(CALM + Duration::from_millis(nth * 7 % 50)).await;
        if let Some(time) = lose(&mut raw, worker).await? {
            times.record(u64::try_from(time.as_nanos())?)?;
            pair = Some((holder, other, worker));
        } else {
            again += HELD;
            holder.kill().await?;
            other.dismiss().await?;
        }
    }
    if let Some((holder, other, _)) = pair {
        holder.kill().await?;
        other.dismiss().await?;
    }
    scene.clear().await?;
    let again = Figure { name: Name::SecondRuns, value: count(again) };
    Ok(Sample::of([quantile(Name::P50, &times), quantile(Name::P99, &times), again]))
}

/// Ends both sessions of the worker; returns how long it has none, or `None` if it was declared
/// dead.
async fn lose(conn: &mut Conn, worker: u64) -> anyhow::Result<Option<Duration>> {
    let sessions = format!(
        "SELECT life_conn_id, conn_id FROM queue_worker WHERE id = {worker} AND state = 'alive'"
    );
    let lost: Option<(u64, u64)> = conn.query_first(&sessions).await?;
    let (life, work) = lost.context("The consumer is dead")?;
    let start = Instant::now();
    for session in [work, life] {
        // The work session is opened again only when it is needed.
        let killed = conn.query_drop(format!("KILL {session}")).await;
        ensure!(killed.is_ok() || session == work, "The life session is gone: {killed:?}");
    }
    loop {
        let now: Option<(u64, u64)> = conn.query_first(&sessions).await?;
        match now {
            None => return Ok(None),
            Some((now, _)) if now != life => return Ok(Some(start.elapsed())),
            Some(_) => ensure!(start.elapsed() < LIMIT, "The consumer does not come back"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What is there beside the consumers that are measured: a janitor, and busy processes.
struct Scene {
    janitor: Company,
    beside: Company,
    work: JoinHandle<anyhow::Result<()>>,
}

impl Scene {
    async fn set(arena: &Arena, beside: usize) -> anyhow::Result<Self> {
        let janitor = Company::muster(arena.url(), std::iter::once(Task::Sweep)).await?;
        let work = keep_busy(arena.url().clone(), arena.topic.name.clone(), beside);
        let beside = Company::muster(arena.url(), busy(arena, beside)).await?;
        Ok(Self { janitor, beside, work: tokio::spawn(work) })
    }

    async fn clear(self) -> anyhow::Result<()> {
        self.work.abort();
        self.beside.dismiss().await?;
        self.janitor.dismiss().await?;
        Ok(())
    }
}

/// Starts a consumer that holds the messages with this number.
async fn start(
    arena: &Arena,
    topic: &TopicName,
    holds: u64,
    member: bool,
) -> anyhow::Result<Company> {
    let task = HoldTask { topic: topic.as_str().to_owned(), holds, member };
    Company::muster(arena.url(), std::iter::once(Task::Hold(task))).await
}

/// Sends messages with this number.
async fn send(conn: &mut AsyncMysqlConnection, to: &TopicName, number: u64) -> anyhow::Result<()> {
    let mut body = bytes(BODY);
    body.iter_mut().zip(number.to_be_bytes()).for_each(|(byte, of)| *byte = of);
    for _ in 0..HELD {
        enqueue(conn, to, &NewMessage::new(body.clone())).await?;
    }
    Ok(())
}

/// Makes the topics; returns the one to send to, and the one to consume.
async fn topics(
    arena: &Arena,
    conn: &mut AsyncMysqlConnection,
    of: Source,
) -> anyhow::Result<(TopicName, TopicName)> {
    if of == Source::Queue {
        let queue = arena.database().topic(&format!("held-{}", now())).await.name;
        return Ok((queue.clone(), queue));
    }
    // Those of earlier rounds are still there.
    let stream = TopicName::new(format!("holding-{}", now()))?;
    create_stream(conn, &stream, 1, &TopicSettings::default()).await?;
    let (group, from) = (TopicName::of_group(&stream, "g")?, OffsetSpec::Earliest);
    if of == Source::Broadcast {
        create_broadcast(conn, &group, from, &broadcast_settings()).await?;
    } else {
        let ordered = of == Source::OrderedGroup;
        create_group(conn, &group, ordered, from, &TopicSettings::default()).await?;
    }
    Ok((stream, group))
}

/// The tasks of the busy processes.
fn busy(arena: &Arena, processes: usize) -> impl Iterator<Item = Task> {
    let topic = arena.topic.name.as_str().to_owned();
    std::iter::repeat_n(topic, processes).map(|topic| {
        Task::Drain(DrainTask {
            by: Claimer::Consumer,
            topic,
            concurrency: 4,
            batch: BUSY_BATCH,
            first: 0,
            share: 0,
        })
    })
}

/// Sends to the busy processes' topic without a pause.
async fn keep_busy(url: ServerUrl, topic: TopicName, processes: usize) -> anyhow::Result<()> {
    if processes == 0 {
        return Ok(());
    }
    let mut conn = connect(&url, SessionKind::Plain).await?;
    let topic = store::topic::existing(&mut conn, &topic).await?;
    loop {
        let batch: Vec<_> = (0..BUSY_BATCH).map(|_| NewMessage::new(bytes(BODY))).collect();
        enqueue_to(&mut conn, &topic, &batch).await?;
    }
}

/// Waits until this many consumers are registered and alive.
async fn registered(conn: &mut Conn, consumers: usize) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let sql = "SELECT COUNT(*) FROM queue_worker WHERE state = 'alive' AND conn_id <> 0";
        let alive: Option<usize> = conn.query_first(sql).await?;
        if alive == Some(consumers) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{alive:?} of {consumers} consumers are registered");
        tokio::time::sleep(LOOK).await;
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        ensure!(Instant::now() < end, "Not within {} s: {what}", LIMIT.as_secs());
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
