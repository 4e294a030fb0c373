//! What a run breaks: a server, a fleet of processes each behind a proxy of its own, and what the
//! harness itself does to them.

mod fleet;
mod hook;
mod member;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use queue_core::connection::{ServerUrl, SessionKind, connect};
use queue_core::topic::TopicSettings;
use queue_core::{AsyncMysqlConnection, MsgId, NewMessage, TopicName, enqueue, migration, store};
use tokio::sync::Mutex;

pub(crate) use self::fleet::{Fleet, Load};
pub(crate) use self::hook::Hook;
pub(crate) use self::member::Role;
pub(crate) use self::server::{Server, ServerKind};
use crate::check::Leftovers;
use crate::record::{Enqueued, Event, Record};
use crate::tag::{Actor, Tag};
use crate::task::Task;

/// The topic whose consumers the faults are aimed at.
pub(crate) const WORK: &str = "work";
/// Filled in transactions that think and roll back.
pub(crate) const LEDGER: &str = "ledger";
/// Handled by programs that the real `consumer exec` runs.
pub(crate) const PROGRAM: &str = "program";
/// Handled by a web service that the real `consumer webhook` calls.
pub(crate) const HOOK: &str = "hook";
/// Flooded by the fault that crashes a server under load.
pub(crate) const BURST: &str = "burst";

/// Every topic of a run.
pub(crate) const TOPICS: [&str; 5] = [WORK, LEDGER, PROGRAM, HOOK, BURST];

/// The account of every process of the fleet: no more than an application has.
const ACCOUNT: &str = "chaos_app";

/// How long the harness waits for a server it has started again.
const SERVER_PATIENCE: Duration = Duration::from_secs(120);

/// The harness's own number among the actors: it sends a message now and then.
const HARNESS: Actor = Actor(0);

/// The next number of a process.
static NEXT_ACTOR: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_actor() -> Actor {
    Actor(NEXT_ACTOR.fetch_add(1, Ordering::Relaxed))
}

/// See the module.
pub(crate) struct Arena {
    /// What is killed and frozen, unless it is a cluster.
    server: Option<Server>,
    pub(crate) fleet: Fleet,
    /// What the harness does and sends.
    pub(crate) record: Record,
    /// As root, past every proxy.
    pub(crate) root: ServerUrl,
    folder: PathBuf,
    next: AtomicU64,
    /// The harness sends one message at a time.
    sending: Mutex<()>,
}

impl Arena {
    /// Makes the queue's tables, the topics and the application's account on `server`.
    pub(crate) async fn prepare(
        server: Option<Server>,
        root: ServerUrl,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let url = root.clone();
        // The migrations run on a runtime of their own.
        tokio::task::spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(migration::run(&url))
        })
        .await??;
        let mut conn = connect(&root, SessionKind::Plain).await?;
        for topic in TOPICS {
            let settings = TopicSettings::default();
            store::topic::create(&mut conn, &TopicName::new(topic)?, &settings).await?;
        }
        let account = format!(
            "CREATE USER {ACCOUNT}@'%' IDENTIFIED BY 'app'; \
             GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {}.* TO {ACCOUNT}@'%'; \
             GRANT PROCESS ON *.* TO {ACCOUNT}@'%'",
            root.database()
        );
        conn.batch_execute(&account).await?;
        let app = account_url(&root, ACCOUNT, "app")?;
        let records = folder.join("records");
        std::fs::create_dir_all(&records)?;
        let record = Record::open(&records.join(format!("{HARNESS}-harness.log")))?;
        let fleet = Fleet::new(app, folder)?;
        Ok(Self {
            server,
            fleet,
            record,
            root,
            folder: folder.to_owned(),
            next: AtomicU64::new(0),
            sending: Mutex::new(()),
        })
    }

    /// The one server of this run.
    pub(crate) fn server(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().context("this fault is not for a cluster")
    }

    /// The folder of this run: `records/` and what the processes said.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A connection as root, past every proxy; waits for a server that is starting.
    pub(crate) async fn connect(&self) -> anyhow::Result<AsyncMysqlConnection> {
        let deadline = tokio::time::Instant::now() + SERVER_PATIENCE;
        loop {
            match connect(&self.root, SessionKind::Plain).await {
                Ok(conn) => return Ok(conn),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// One number as root.
    pub(crate) async fn number(&self, query: &str) -> anyhow::Result<u64> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            n: i64,
        }
        let mut conn = self.connect().await?;
        let query = format!("SELECT CAST(({query}) AS SIGNED) AS n");
        let rows: Vec<Row> = diesel::sql_query(query).load(&mut conn).await?;
        Ok(rows.iter().map(|row| row.n.unsigned_abs()).sum())
    }

    /// Enqueues one message of the harness's own and writes it down like any sender.
    pub(crate) async fn send(&self, topic: &str, task: Task) -> anyhow::Result<Tag> {
        let _one = self.sending.lock().await;
        let mut conn = self.connect().await?;
        let tag = Tag { sender: HARNESS, seq: self.next.fetch_add(1, Ordering::Relaxed) };
        let message = NewMessage::json(&task)?.with_msg_id(tag.msg_id());
        self.record.note(&Event::Invoke { first: tag, n: 1 })?;
        let outcome = match enqueue(&mut conn, &TopicName::new(topic)?, &message).await {
            Ok(_) => Enqueued::Stored,
            Err(_) => Enqueued::InDoubt,
        };
        self.record.note(&Event::Enqueue { first: tag, n: 1, outcome })?;
        Ok(tag)
    }

    /// What is in the tables now.
    pub(crate) async fn leftovers(&self) -> anyhow::Result<Leftovers> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Binary)]
            msg_id: Vec<u8>,
            #[diesel(sql_type = Binary)]
            body: Vec<u8>,
        }
        let mut conn = self.connect().await?;
        let mut leftovers = Leftovers::default();
        let unsettled = "SELECT msg_id, body FROM queue_message UNION ALL \
                         SELECT msg_id, body FROM queue_scheduled";
        for row in diesel::sql_query(unsettled).load::<Row>(&mut conn).await? {
            let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
            *leftovers.unsettled.entry(id.into()).or_default() += 1;
        }
        let dead = "SELECT msg_id, body FROM queue_dead";
        for row in diesel::sql_query(dead).load::<Row>(&mut conn).await? {
            let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
            let task: Task = serde_json::from_slice(&row.body)?;
            leftovers.dead.insert(id.into(), task.ending);
        }
        Ok(leftovers)
    }

    /// Whether nothing is left to do on any topic.
    pub(crate) async fn is_drained(&self) -> anyhow::Result<bool> {
        let left = "(SELECT COUNT(*) FROM queue_message) + (SELECT COUNT(*) FROM queue_scheduled) \
                    + (SELECT COUNT(*) FROM queue_claim)";
        Ok(self.number(left).await? == 0)
    }
}

/// The same server and database as another account.
pub(crate) fn account_url(
    url: &ServerUrl,
    user: &str,
    password: &str,
) -> anyhow::Result<ServerUrl> {
    Ok(url.with_account(user, password)?)
}
