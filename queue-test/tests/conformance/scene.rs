//! The base of the tests of every noun: a database with one topic, workers, and the database's own
//! answers to SQL queries.

use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Blob, Nullable, Text, Unsigned};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{OnDone, Settlement, TopicId, TopicSettings};
use rowmq_core::worker::{ClaimStrategy, SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{AsyncMysqlConnection, Delivery, NewMessage, Topic, enqueue_all};
use rowmq_test::{PATIENCE, TestDatabase, greeted, until};

/// The ways to claim; whatever holds for one must hold for the others.
pub(crate) const STRATEGIES: [ClaimStrategy; 3] =
    [ClaimStrategy::SkipLocked, ClaimStrategy::UpdateThenSelect, ClaimStrategy::UpdateLimit];

/// A database with the topic `t` in it.
pub(crate) struct Scene {
    pub(crate) conn: AsyncMysqlConnection,
    pub(crate) topic: Topic,
    pub(crate) db: TestDatabase,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(&TopicSettings::default()).await
    }

    pub(crate) async fn with(settings: &TopicSettings) -> Self {
        let db = TestDatabase::new().await;
        let topic = db.topic_with("t", settings).await;
        Self { conn: db.connect().await, topic, db }
    }

    /// Enqueues `n` messages with the bodies `0`, `1`, …
    pub(crate) async fn enqueue(&mut self, n: usize) -> Vec<NewMessage> {
        let messages: Vec<_> = (0..n).map(|i| NewMessage::new(i.to_string())).collect();
        enqueue_all(&mut self.conn, &self.topic.name, &messages).await.unwrap();
        messages
    }

    pub(crate) async fn worker(&self) -> Worker {
        self.worker_with(|_| {}).await
    }

    pub(crate) async fn worker_by(&self, strategy: ClaimStrategy) -> Worker {
        self.worker_with(|options| options.strategy = strategy).await
    }

    pub(crate) async fn worker_with(&self, change: impl FnOnce(&mut WorkerOptions)) -> Worker {
        let mut options = worker_options(self.db.url());
        change(&mut options);
        start_worker(options).await
    }

    pub(crate) async fn sql(&mut self, sql: &str) {
        self.conn.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn number(&mut self, query: &str) -> i64 {
        number(&mut self.conn, query).await
    }

    pub(crate) async fn text(&mut self, query: &str) -> String {
        text(&mut self.conn, query).await
    }

    /// Returns how many messages the hot table has, how many of them are claimed, and how many
    /// claims there are.
    pub(crate) async fn hot(&mut self) -> (i64, i64, i64) {
        (
            self.number("SELECT COUNT(*) FROM queue_message WHERE topic_id > 0").await,
            self.number("SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0").await,
            self.number("SELECT COUNT(*) FROM queue_claim").await,
        )
    }

    /// Returns the open transactions of this database's sessions, except this session's.
    pub(crate) async fn transactions(&mut self) -> Vec<Transaction> {
        let name = self.db.name().to_owned();
        transactions_of(&mut self.conn, &name).await
    }

    /// Returns how many sessions of this database wait for a row lock.
    pub(crate) async fn lock_waits(&mut self) -> usize {
        self.transactions().await.iter().filter(|transaction| transaction.waits).count()
    }

    /// Returns whether a producer's open transaction can delay a claim: on MariaDB an UPDATE of a
    /// range also locks the first row behind it.
    pub(crate) async fn waits_for_producers(&mut self, strategy: ClaimStrategy) -> bool {
        strategy == ClaimStrategy::UpdateLimit && self.is_mariadb().await
    }

    pub(crate) async fn is_mariadb(&mut self) -> bool {
        self.text("SELECT VERSION()").await.contains("MariaDB")
    }
}

/// Options with a lease so long that a busy server answers within half of it, as it must.
pub(crate) fn worker_options(url: &ServerUrl) -> WorkerOptions {
    let mut options = WorkerOptions::new(url.clone(), "conformance");
    options.lease = Duration::from_secs(60);
    options
}

/// Starts a worker, however long a busy server takes to greet.
pub(crate) async fn start_worker(options: WorkerOptions) -> Worker {
    greeted(async || Worker::start(options.clone()).await).await.unwrap()
}

/// Starts a worker on the server of `url`.
pub(crate) async fn worker_at(url: &ServerUrl) -> Worker {
    start_worker(worker_options(url)).await
}

/// A transaction that a session has open.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// Its session.
    pub(crate) thread: u64,
    /// Whether it waits for a lock.
    pub(crate) waits: bool,
    /// How many row locks it holds.
    pub(crate) row_locks: u64,
}

/// Returns the open transactions of `database`'s sessions.
pub(crate) async fn transactions_of(
    conn: &mut AsyncMysqlConnection,
    database: &str,
) -> Vec<Transaction> {
    let threads = threads(conn).await;
    let of_this = |id| threads.iter().any(|it| it.id == id && it.database == database);
    let all = transactions(conn).await;
    all.into_iter().filter(|transaction| of_this(transaction.thread)).collect()
}

/// Returns those that stay open: another session's statement may be one for a moment.
pub(crate) async fn lasting_transactions_of(
    conn: &mut AsyncMysqlConnection,
    database: &str,
) -> Vec<Transaction> {
    let mut open = transactions_of(conn, database).await;
    for _ in 0..100 {
        if open.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        open = transactions_of(conn, database).await;
    }
    open
}

/// Returns every open transaction of the server. It reads the monitor's text, because
/// `information_schema.INNODB_TRX` returns stale rows to a session that reads it more often than
/// every 0.1 s.
async fn transactions(conn: &mut AsyncMysqlConnection) -> Vec<Transaction> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Blob, column_name = "Status")]
        status: Vec<u8>,
    }
    let rows: Vec<Row> = diesel::sql_query("SHOW ENGINE INNODB STATUS").load(conn).await.unwrap();
    // As bytes: the monitor cuts statements off in the middle of a character.
    let status = String::from_utf8_lossy(&rows[0].status);
    let blocks = status.split("---TRANSACTION ").skip(1);
    let open = blocks.filter(|block| block.lines().next().is_some_and(|l| l.contains("ACTIVE")));
    open.filter_map(|block| {
        let number_before = |word: &str| -> Option<u64> {
            let (before, _) = block.split_once(word)?;
            before.rsplit([' ', '\n']).next()?.parse().ok()
        };
        // "MySQL thread id 8, OS thread handle …", or MariaDB's.
        let (_, thread) = block.split_once(" thread id ")?;
        Some(Transaction {
            thread: thread.split(',').next()?.parse().ok()?,
            waits: block.contains("LOCK WAIT"),
            row_locks: number_before(" row lock(s)").unwrap_or(0),
        })
    })
    .collect()
}

/// A session of the server.
pub(crate) struct Thread {
    pub(crate) id: u64,
    pub(crate) database: String,
    /// Whether it runs a statement.
    pub(crate) busy: bool,
    /// Whether it waits for a name lock.
    pub(crate) in_line: bool,
    /// Whether it sleeps by SLEEP.
    pub(crate) sleeps: bool,
}

/// Returns every session of the server.
pub(crate) async fn threads(conn: &mut AsyncMysqlConnection) -> Vec<Thread> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>, column_name = "Id")]
        id: u64,
        #[diesel(sql_type = Nullable<Text>, column_name = "db")]
        database: Option<String>,
        #[diesel(sql_type = Text, column_name = "Command")]
        command: String,
        #[diesel(sql_type = Nullable<Text>, column_name = "State")]
        state: Option<String>,
    }
    let rows: Vec<Row> = diesel::sql_query("SHOW PROCESSLIST").load(conn).await.unwrap();
    let thread = |row: Row| Thread {
        id: row.id,
        database: row.database.unwrap_or_default(),
        busy: row.command != "Sleep",
        in_line: row.state.as_deref() == Some("User lock"),
        sleeps: row.state.as_deref() == Some("User sleep"),
    };
    rows.into_iter().map(thread).collect()
}

/// Returns the one number that `query` selects.
pub(crate) async fn number(conn: &mut AsyncMysqlConnection, query: &str) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<BigInt>)]
        n: Option<i64>,
    }
    let sql = format!("SELECT CAST(({query}) AS SIGNED) AS n");
    let rows: Vec<Row> =
        diesel::sql_query(sql).load(conn).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows[0].n.unwrap_or_else(|| panic!("NULL: {query}"))
}

/// Returns the one text that `query` selects; empty for NULL.
pub(crate) async fn text(conn: &mut AsyncMysqlConnection, query: &str) -> String {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<Text>)]
        t: Option<String>,
    }
    let sql = format!("SELECT CAST(({query}) AS CHAR) AS t");
    let rows: Vec<Row> =
        diesel::sql_query(sql).load(conn).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows[0].t.clone().unwrap_or_default()
}

/// Returns the error of a statement that must fail.
pub(crate) async fn failure(conn: &mut AsyncMysqlConnection, sql: &str) -> diesel::result::Error {
    match conn.batch_execute(sql).await {
        Ok(()) => panic!("{sql} did not fail"),
        Err(error) => error,
    }
}

/// Returns the bodies as text, in order.
pub(crate) fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect()
}

/// Returns the texts of these numbers, which [`Scene::enqueue`] uses as bodies.
pub(crate) fn numbers(range: impl IntoIterator<Item = usize>) -> Vec<String> {
    range.into_iter().map(|n| n.to_string()).collect()
}

/// Returns one settlement for all deliveries, on a topic that keeps nothing.
pub(crate) fn all<'d>(
    deliveries: impl IntoIterator<Item = &'d Delivery>,
    settlement: &Settlement,
) -> Vec<Settled> {
    let one = |delivery| Settled::new(delivery, settlement.clone(), OnDone::Delete);
    deliveries.into_iter().map(one).collect()
}

pub(crate) fn retry(delay: Duration) -> Settlement {
    Settlement::Retry { delay, error: "not yet".to_owned() }
}

/// Settles, and expects every delivery to be settled.
pub(crate) async fn settle(worker: &Worker, batch: Vec<Settled>) {
    let n = batch.len();
    assert_eq!(worker.settle(batch).await.unwrap(), vec![SettleOutcome::Settled; n]);
}

/// Lets a session wait for locks for as long as another session may hold them on a busy machine:
/// the library waits for a second.
pub(crate) async fn wait_for_locks(conn: &mut AsyncMysqlConnection) {
    let wait = "SET SESSION innodb_lock_wait_timeout = 60, SESSION lock_wait_timeout = 60";
    conn.batch_execute(wait).await.unwrap();
}

/// Claims until `n` messages have come, in any number of claims: a row below a mark is found only
/// by the next walk.
pub(crate) async fn claim_n(worker: &Worker, topic: TopicId, n: usize) -> Vec<Delivery> {
    let start = Instant::now();
    let mut deliveries = Vec::new();
    // A loop instead of `until`, so that the future can be spawned.
    while deliveries.len() < n {
        let limit = u32::try_from(n - deliveries.len()).unwrap();
        let claimed = match worker.claim(topic, limit).await {
            // Another session has held a lock for longer than a claim waits.
            Err(error) if error.fault().is_conflict() => Vec::new(),
            claimed => claimed.unwrap().deliveries,
        };
        if claimed.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} messages instead of {n}", deliveries.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        deliveries.extend(claimed);
    }
    deliveries
}

/// Claims suspects until one has come.
pub(crate) async fn claim_one_suspect(worker: &Worker, topic: TopicId) -> Delivery {
    let mut deliveries = Vec::new();
    until("a suspect is claimed", async || {
        deliveries = worker.claim_suspect(topic).await.unwrap().deliveries;
        !deliveries.is_empty()
    })
    .await;
    assert_eq!(deliveries.len(), 1);
    deliveries.remove(0)
}
