//! Takes the samples.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::AsyncMysqlConnection;
use tokio::time::{Instant, sleep_until};

use super::process::Holding;
use super::series::{Book, Key, Kind};
use super::verdict::{ALLOCATED, SERVER};
use crate::arena::{Arena, Member, ServerKind};
use crate::tag::Actor;

/// How often a sample is taken.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// The tables of the queue.
const TABLES: &str = "SELECT CAST(table_name AS CHAR) AS name FROM information_schema.tables \
     WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' \
     AND table_name LIKE 'queue\\_%' ORDER BY table_name";

/// How many transactions InnoDB has not purged.
const HISTORY: &str = "SELECT CAST(count AS SIGNED) AS n FROM information_schema.innodb_metrics \
     WHERE name = 'trx_rseg_history_len'";

/// What the server says that it has allocated, in kibibytes: without what its allocator keeps, and
/// so without fragmentation.
fn own_account(server: ServerKind) -> &'static str {
    match server {
        ServerKind::Mariadb => {
            "SELECT CAST(variable_value / 1024 AS SIGNED) AS n \
             FROM information_schema.global_status WHERE variable_name = 'MEMORY_USED'"
        }
        ServerKind::Mysql => {
            "SELECT CAST(SUM(current_number_of_bytes_used) / 1024 AS SIGNED) AS n \
             FROM performance_schema.memory_summary_global_by_event_name"
        }
    }
}

/// A process that lives as long as the run.
struct Lasting {
    member: Arc<Member>,
    actor: Actor,
    id: u32,
}

impl Lasting {
    fn new(member: &Arc<Member>) -> anyhow::Result<Self> {
        let id = member.id().context("a process of the fleet has ended at the beginning")?;
        Ok(Self { member: Arc::clone(member), actor: member.actor(), id })
    }

    fn holding(&self) -> anyhow::Result<Holding> {
        let role = self.member.role().word();
        let lives = self.member.actor() == self.actor;
        ensure!(lives, "the {role} that was to live as long as the run has ended");
        Holding::of(self.id).with_context(|| format!("the {role} that was to live"))
    }
}

/// Takes the samples; see the module.
pub(super) struct Sampler<'a> {
    arena: &'a Arena,
    conn: AsyncMysqlConnection,
    /// The id of its process.
    server: u32,
    kind: ServerKind,
    lasting: Vec<Lasting>,
    tables: Vec<String>,
}

impl<'a> Sampler<'a> {
    pub(super) async fn start(
        arena: &'a Arena,
        kind: ServerKind,
        lasting: &[Arc<Member>],
    ) -> anyhow::Result<Sampler<'a>> {
        let mut conn = arena.connect().await?;
        // A count of a table holds neither locks nor a view that would keep purge from its work.
        let settings = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
        conn.batch_execute(settings).await?;
        let tables = words(&mut conn, TABLES).await?;
        ensure!(!tables.is_empty(), "there are no tables of the queue");
        let file = words(&mut conn, "SELECT CAST(@@pid_file AS CHAR) AS name").await?;
        let file = file.as_slice().first().context("the server has no pid file")?;
        let server = std::fs::read_to_string(file)
            .with_context(|| format!("Cannot read {file}: the server must run on this machine"))?;
        let server = server.trim().parse().with_context(|| format!("{file} has no number"))?;
        let lasting = lasting.iter().map(Lasting::new).collect::<anyhow::Result<_>>()?;
        Ok(Self { arena, conn, server, kind, lasting, tables })
    }

    /// Returns the names of the numbers of a sample, in their order.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        let lasting = self.lasting.iter().map(|one| one.member.role().word());
        for of in std::iter::once(SERVER).chain(lasting) {
            keys.extend([Kind::Memory, Kind::Descriptors, Kind::Threads].map(|k| Key::new(k, of)));
        }
        keys.push(Key::new(Kind::Memory, ALLOCATED));
        keys.push(Key::new(Kind::Sessions, "fleet"));
        keys.push(Key::new(Kind::History, SERVER));
        keys.extend(self.tables.iter().map(|table| Key::new(Kind::Rows, table)));
        keys
    }

    /// Takes samples until `end`, and writes them down.
    pub(super) async fn run(
        &mut self,
        book: &mut Book,
        begun: Instant,
        end: Instant,
    ) -> anyhow::Result<()> {
        let mut at = begun;
        while at < end {
            sleep_until(at).await;
            let seconds = begun.elapsed().as_secs_f64();
            book.add(seconds, &self.sample().await?)?;
            // A sample that took long is followed by the next one in time, not by two at once.
            while at <= Instant::now() {
                at += EVERY;
            }
        }
        Ok(())
    }

    async fn sample(&mut self) -> anyhow::Result<Vec<f64>> {
        let mut holdings = vec![Holding::of(self.server).context("the server")?];
        for one in &self.lasting {
            holdings.push(one.holding()?);
        }
        let of = |it: Holding| [it.memory, f64::from(it.descriptors), f64::from(it.threads)];
        let mut values: Vec<f64> = holdings.into_iter().flat_map(of).collect();
        values.push(self.number(own_account(self.kind)).await? / 1024.0);
        values.push(f64::from(u32::try_from(self.arena.sessions().await?.len())?));
        values.push(self.number(HISTORY).await?);
        for table in self.tables.clone() {
            values.push(self.number(&format!("SELECT COUNT(*) AS n FROM {table}")).await?);
        }
        Ok(values)
    }

    async fn number(&mut self, query: &str) -> anyhow::Result<f64> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            n: i64,
        }
        let row: Row = diesel::sql_query(query).get_result(&mut self.conn).await?;
        Ok(f64::from(u32::try_from(row.n)?))
    }
}

async fn words(conn: &mut AsyncMysqlConnection, query: &str) -> anyhow::Result<Vec<String>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        name: String,
    }
    let rows: Vec<Row> = diesel::sql_query(query).load(conn).await?;
    Ok(rows.into_iter().map(|row| row.name).collect())
}
