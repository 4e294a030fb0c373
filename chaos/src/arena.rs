//! The target of a run's faults: a server, a fleet of processes each behind its own proxy, and what
//! the harness itself does to them.

mod accounts;
mod fleet;
mod hook;
mod member;
mod server;
mod sessions;
mod tables;
mod tool;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::{ServerUrl, SessionKind, connect, connect_to_any};
use rowmq_core::model::{Limits, OnDone, Rate, Sampling, TopicSettings};
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, enqueue, migration, store};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

pub(crate) use self::fleet::{Client, Fleet, Load, SenderLoad};
pub(crate) use self::hook::Hook;
pub(crate) use self::member::{Member, Role};
pub(crate) use self::server::{Server, ServerKind};
use crate::record::{Enqueued, Event, Record};
use crate::stream::{self, KIND, STREAM, key_of, kind_of};
use crate::tag::{Actor, Tag};
use crate::task::Task;
use crate::topics::{CALLS, EFFECTS, LEDGER, PROGRAM, TOPICS, URGENT, max_running};

/// Topics with a limit that they sometimes reach even without a fault: 400 ms of incoming messages.
/// Their senders are refused, or wait.
const LIMITED: [(&str, NonZeroU64); 2] =
    [(LEDGER, NonZeroU64::MIN.saturating_add(11)), (EFFECTS, NonZeroU64::MIN.saturating_add(11))];
/// The topics whose messages can be looked up. Every message with an effect is in one of them.
const SEARCHABLE: [&str; 4] = [EFFECTS, CALLS, URGENT, PROGRAM];

/// The table of the naive queue: rows are deleted when they are handled.
const NAIVE_TABLE: &str = "CREATE TABLE naive_queue ( \
     id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     status ENUM('unsent', 'claimed') NOT NULL DEFAULT 'unsent', \
     owner BIGINT UNSIGNED NOT NULL DEFAULT 0, \
     ts TIMESTAMP NULL, \
     tries INT UNSIGNED NOT NULL DEFAULT 0, \
     msg_id BINARY(16) NOT NULL, \
     body LONGBLOB NOT NULL, \
     KEY (owner, status, ts)) ENGINE = InnoDB";

/// The table of the transactional handlers' effects. A message may be in it twice, so that a
/// duplicate is seen.
const EFFECT_TABLE: &str = "CREATE TABLE chaos_effect ( \
     id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     msg_id BINARY(16) NOT NULL) ENGINE = InnoDB";

/// How long the harness waits for a server it has restarted: longer than `ops/dev-server` does
/// (120 s), whose error shows the end of the server's log.
const SERVER_PATIENCE: Duration = Duration::from_secs(150);

/// The harness's own number among the actors: it sends a message now and then.
const HARNESS: Actor = Actor(0);

/// The number of the next process.
static NEXT_ACTOR: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_actor() -> Actor {
    Actor(NEXT_ACTOR.fetch_add(1, Ordering::Relaxed))
}

/// The queue to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Ours.
    Product,
    /// The naive queue that most people write first.
    Naive,
}

/// The run's server and fleet; see the module.
pub(crate) struct Arena {
    pub(crate) queue: Queue,
    /// The server to kill and freeze, unless it is a cluster.
    server: Option<Server>,
    pub(crate) fleet: Fleet,
    /// The record of what the harness does and sends.
    pub(crate) record: Record,
    /// Connects as root, past every proxy.
    pub(crate) root: ServerUrl,
    /// The library that gives a process a wrong clock, where available.
    pub(crate) clock_library: Option<PathBuf>,
    folder: PathBuf,
    next: AtomicU64,
    /// The harness sends one message at a time.
    sending: Mutex<()>,
    /// Sessions of another login, which end with the run.
    pub(crate) strangers: Mutex<JoinSet<()>>,
    /// The harness resets one group at a time.
    pub(crate) rewinding: Mutex<()>,
}

impl Arena {
    /// Creates the queue's tables, the topics and the application's account on `server`.
    pub(crate) async fn prepare(
        queue: Queue,
        server: Option<Server>,
        root: ServerUrl,
        clock_library: Option<PathBuf>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        migration::run(&root).await?;
        let mut conn = connect(&root, SessionKind::Plain).await?;
        for topic in TOPICS {
            let settings = settings(topic);
            store::topic::create(&mut conn, &TopicName::new(topic)?, &settings).await?;
        }
        stream::create(&mut conn).await?;
        conn.batch_execute(EFFECT_TABLE).await?;
        accounts::create(&mut conn, queue).await?;
        let records = folder.join("records");
        std::fs::create_dir_all(&records)?;
        let record = Record::open(&records.join(format!("{HARNESS}-harness.log")))?;
        let fleet = Fleet::new(root.clone(), queue, folder)?;
        if queue == Queue::Naive {
            conn.batch_execute(NAIVE_TABLE).await?;
        }
        Ok(Self {
            queue,
            server,
            fleet,
            record,
            root,
            clock_library,
            folder: folder.to_owned(),
            next: AtomicU64::new(0),
            sending: Mutex::new(()),
            strangers: Mutex::default(),
            rewinding: Mutex::new(()),
        })
    }

    /// Returns the one server of this run.
    pub(crate) fn server(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().context("this fault is not for a cluster")
    }

    /// Returns the folder of this run: `records/` and the output of the processes.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Connects as root, past every proxy; waits for a server that is starting.
    pub(crate) async fn connect(&self) -> anyhow::Result<AsyncMysqlConnection> {
        let deadline = tokio::time::Instant::now() + SERVER_PATIENCE;
        loop {
            // Connects even to a server that is read-only for a time.
            match connect_to_any(&self.root, SessionKind::Plain).await {
                Ok(conn) => return Ok(conn),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Runs statements as root, and repeats them until the server has answered all of them.
    pub(crate) async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + SERVER_PATIENCE;
        loop {
            match self.connect().await?.batch_execute(sql).await {
                Ok(()) => return Ok(()),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Creates an account with only these privileges on the queue's database, and returns its URL.
    pub(crate) async fn account(&self, user: &str, grants: &str) -> anyhow::Result<ServerUrl> {
        let database = self.root.database();
        let sql = format!(
            "CREATE USER IF NOT EXISTS {user}@'%' IDENTIFIED BY 'app'; \
             GRANT {grants} ON {database}.* TO {user}@'%'"
        );
        self.execute(&sql).await?;
        account_url(&self.root, user, "app")
    }

    /// Enqueues one message of the harness and records it like any sender.
    pub(crate) async fn send(&self, topic: &str, task: Task) -> anyhow::Result<Tag> {
        self.send_padded(topic, task, 0).await
    }

    /// Enqueues one message with this many bytes of padding.
    pub(crate) async fn send_padded(
        &self,
        topic: &str,
        task: Task,
        padding: usize,
    ) -> anyhow::Result<Tag> {
        let _one = self.sending.lock().await;
        let mut conn = self.connect().await?;
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let sender = if topic == STREAM { next_actor() } else { HARNESS };
        if topic == STREAM {
            self.record.note(&Event::Stream { sender })?;
        }
        let tag = Tag { sender, seq };
        let message = NewMessage::json(&task)?
            .with_msg_id(tag.msg_id())
            .with_header("padding", "x".repeat(padding));
        let message = match key_of(tag) {
            Some(key) => message.with_key(key),
            None => message,
        };
        let message = match kind_of(tag).filter(|_| topic == STREAM) {
            Some(kind) => message.with_header(KIND, kind),
            None => message,
        };
        self.record.note(&Event::Invoke { first: tag, n: 1 })?;
        let outcome = match enqueue(&mut conn, &TopicName::new(topic)?, &message).await {
            Ok(_) => Enqueued::Stored,
            Err(_) => Enqueued::InDoubt,
        };
        self.record.note(&Event::Enqueue { first: tag, n: 1, outcome })?;
        Ok(tag)
    }
}

/// Four topics are searchable: one of them keeps handled messages, the other three leave traces.
fn settings(topic: &str) -> TopicSettings {
    let day = Duration::from_secs(24 * 3600);
    let searchable = SEARCHABLE.contains(&topic).then_some(day);
    let on_done = if topic == PROGRAM { OnDone::Keep(day) } else { OnDone::Delete };
    let max_depth = LIMITED.iter().find(|(name, _)| *name == topic).map(|(_, n)| *n);
    let traced = [EFFECTS, CALLS, URGENT].contains(&topic);
    let trace = if traced { Sampling::ALL } else { Sampling::OFF };
    // A number alone is dealt to the workers in shares. With a rate, claims pass the topic's gate.
    let rate = Rate::new(NonZeroU32::MIN.saturating_add(999), Duration::from_secs(1));
    let rate = rate.ok().filter(|_| topic == CALLS);
    let limits = Limits { max_running: max_running(topic), rate, ..Limits::default() };
    TopicSettings { searchable, on_done, max_depth, trace, limits, ..TopicSettings::default() }
}

/// Returns the same server and database with another account.
pub(crate) fn account_url(
    url: &ServerUrl,
    user: &str,
    password: &str,
) -> anyhow::Result<ServerUrl> {
    Ok(url.with_account(user, password)?)
}
