//! The console in front of a backlog: how long its pages take, and what open pages cost the server.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use mysql_async::prelude::Queryable;
use reqwest::{Client, Response};
use rowmq_core::TopicName;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::model::{MsgId, OffsetSpec, TopicSettings};
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_test::Console as Program;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::{Beside, Pages, Viewers, backlog};
use crate::arena::Arena;
use crate::figure::{Figure, Name, Sample, count, quantile};

/// The pages that update themselves. The first page requires more statements than the look at the
/// server that all pages share.
const LIVE: [&str; 9] = [
    "/groups/bench-log@bench",
    "/",
    "/topics",
    "/topics/bench",
    "/dead",
    "/scheduled",
    "/groups",
    "/workers",
    "/janitor",
];

/// The pages that are read when a user requests them.
const ASKED: [&str; 9] = [
    "/messages",
    "/messages?topic=bench&state=ready",
    "/messages?topic=bench&state=dead",
    "/messages?topic=bench&state=dead&error=error+19",
    "/messages?topic=bench&biz_id=order-1",
    "/dead/bench",
    "/scheduled/bench",
    "/recurring",
    "/audit",
];

/// How long the first look at the server may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options for a proxy on this machine that signs users in. The file with its secret is added.
const SIGNED_IN_BY_A_PROXY: [&str; 6] = [
    "--trusted-proxy",
    "127.0.0.1",
    "--proxy-user-header",
    "x-user",
    "--proxy-role-header",
    "x-role",
];

/// The secret that the proxy sends with each request.
const PROXY_SECRET: &str = "the benchmark is the proxy";

/// The console, and a user whom its proxy has signed in.
struct Console {
    client: Client,
    program: Program,
}

impl Console {
    /// Starts the program that was built beside this one, and waits for its first look at the
    /// server.
    async fn start(arena: &Arena) -> anyhow::Result<Self> {
        stream(arena).await?;
        let program = std::env::current_exe().context("Cannot find this program again")?;
        let mut command = Command::new(program.with_file_name("rowmq-console"));
        let mut secret = NamedTempFile::new().context("Cannot make a file")?;
        secret.write_all(PROXY_SECRET.as_bytes()).context("Cannot write the proxy's secret")?;
        let file = secret.path().to_str().context("The directory's name is no text")?;
        let options = [&SIGNED_IN_BY_A_PROXY[..], &["--proxy-secret-file", file]].concat();
        // The console has read the secret once it serves, so the file may then be removed.
        let program = Program::start(&mut command, arena.url(), &options).await;
        // A provider may already be installed.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder().no_proxy().build()?;
        let console = Self { client, program };
        let end = Instant::now() + PATIENCE;
        while !console.text("/topics").await?.contains("bench") {
            ensure!(Instant::now() < end, "The console does not see the topic");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(console)
    }

    async fn get(&self, path: &str) -> anyhow::Result<Response> {
        let asked = self.client.get(format!("http://{}{path}", self.program.address()));
        let asked = asked.header("x-user", "bench").header("x-role", "admin");
        let asked = asked.header("queue-proxy-secret", PROXY_SECRET);
        asked.send().await?.error_for_status().with_context(|| format!("{path} was refused"))
    }

    async fn text(&self, path: &str) -> anyhow::Result<String> {
        Ok(self.get(path).await?.text().await?)
    }

    /// Keeps a page open until `end`, as a browser does: it is read again after each look.
    async fn view(&self, path: &str, end: Instant) -> anyhow::Result<()> {
        self.text(path).await?;
        let mut looks = self.get("/api/v1/live").await?;
        while Instant::now() < end {
            let look = looks.chunk().await?.context("The console has ended")?;
            if look.starts_with(b"event") {
                self.text(path).await?;
            }
        }
        Ok(())
    }
}

/// Creates a stream with a group, for their pages.
async fn stream(arena: &Arena) -> anyhow::Result<()> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    let (log, group) = (TopicName::new("bench-log")?, TopicName::new("bench-log@bench")?);
    let settings = TopicSettings::default();
    create_stream(&mut conn, &log, 2, &settings).await?;
    create_group(&mut conn, &group, false, OffsetSpec::Earliest, &settings).await?;
    Ok(())
}

/// Times the first byte of each page.
pub(super) async fn pages(arena: &Arena, load: Pages) -> anyhow::Result<Sample> {
    backlog::pile(arena, load.backlog, load.body).await?;
    backlog::beside(arena, Beside::Scheduled(load.others)).await?;
    backlog::beside(arena, Beside::Dead(load.others)).await?;
    backlog::flush(arena).await?;
    let console = Console::start(arena).await?;
    let mut conn = arena.raw().await?;
    let id: Option<Vec<u8>> = conn.query_first("SELECT msg_id FROM queue_dead LIMIT 1").await?;
    let id = id.and_then(|id| MsgId::from_bytes(&id)).context("No letter is dead")?;
    let message = format!("/messages/bench/{id}");
    let mut times = Histogram::<u64>::new(3)?;
    for page in LIVE.into_iter().chain(ASKED).chain([message.as_str()]) {
        for _ in 0..load.asks {
            let start = Instant::now();
            let mut answer = console.get(page).await?;
            answer.chunk().await?.context("A page is empty")?;
            times.record(u64::try_from(start.elapsed().as_nanos())?)?;
            while answer.chunk().await?.is_some() {}
        }
    }
    Ok(Sample::of([quantile(Name::P50, &times), quantile(Name::P99, &times)]))
}

/// Counts the statements that the server receives while pages are open.
pub(super) async fn viewers(arena: &Arena, load: Viewers) -> anyhow::Result<Sample> {
    backlog::pile(arena, load.backlog, load.body).await?;
    let console = Console::start(arena).await?;
    let (start, before) = (Instant::now(), arena.statements().await?);
    let end = start + load.time;
    let views = (0..load.viewers).map(|n| console.view(LIVE[n % LIVE.len()], end));
    try_join_all(views).await?;
    let statements = arena.statements().await? - before;
    let value = count(statements) / start.elapsed().as_secs_f64();
    Ok(Sample::of([Figure { name: Name::Statements, value }]))
}
