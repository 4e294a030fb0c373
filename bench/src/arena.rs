//! Where the loads run: a separate database on the server under test, and what the report says
//! about that server.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Value};
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::model::{Limits, Sampling, TopicSettings};
use rowmq_core::{NewMessage, Topic, enqueue_to, store};
use rowmq_test::TestDatabase;
use serde::{Deserialize, Serialize};

use crate::claimer::Claimer;

/// How long messages can be looked up, in the loads that measure lookups.
pub(crate) const SEARCHABLE: Duration = Duration::from_secs(3600);

/// Connections that fill a backlog, and rows of each of their statements.
const FILLERS: u64 = 4;
const FILL_ROWS: u64 = 1000;

/// A database with a topic.
#[derive(Debug)]
pub(crate) struct Arena {
    database: TestDatabase,
    /// The topic that the loads use.
    pub(crate) topic: Topic,
}

/// What the report says about the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerFacts {
    /// Product and version.
    pub(crate) version: String,
    /// Settings that decide how fast a durable commit is.
    pub(crate) settings: Vec<(String, String)>,
}

impl ServerFacts {
    /// Returns whether it writes a binary log.
    pub(crate) fn has_binlog(&self) -> bool {
        self.settings.iter().any(|(name, value)| name == "log_bin" && value == "ON")
    }
}

/// The settings of the report.
const SETTINGS: [&str; 6] = [
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_row_image",
    "innodb_buffer_pool_size",
    "innodb_autoinc_lock_mode",
];

/// The tables of the seeds, with only their syntax repaired and a body that takes bytes, and the
/// table of the raw INSERT.
const TABLES: [&str; 5] = [
    "CREATE TABLE IF NOT EXISTS bench_bare (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     body LONGBLOB NOT NULL) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS bench_001_msg (id BIGINT AUTO_INCREMENT, topic_name VARCHAR(255) NOT NULL, \
     physics_offset BIGINT UNSIGNED NOT NULL, json_body LONGBLOB, from_ip VARCHAR(255) NOT NULL, properties TEXT, \
     tags VARCHAR(255), create_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     update_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, \
     deleted TINYINT NOT NULL DEFAULT 0, PRIMARY KEY (id, topic_name, physics_offset), \
     UNIQUE (topic_name, physics_offset), KEY (create_time)) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS bench_001_log (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, topic_name VARCHAR(255) NOT NULL, \
     physics_offset BIGINT UNSIGNED NOT NULL, group_name VARCHAR(255) NOT NULL, client_id VARCHAR(255) NOT NULL, \
     state INT, error_msg TEXT, create_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     update_time DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, \
     deleted TINYINT NOT NULL DEFAULT 0, KEY (client_id), KEY (group_name), KEY (topic_name), \
     KEY (physics_offset)) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS bench_003 (id INT UNSIGNED NOT NULL AUTO_INCREMENT, biz INT DEFAULT NULL, \
     conn_id INT UNSIGNED DEFAULT 0, status ENUM('y','run','n') DEFAULT 'n', data_string BLOB, \
     times INT DEFAULT NULL, update_times INT DEFAULT NULL, PRIMARY KEY (id), \
     KEY biz (biz, conn_id, status)) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS bench_004 (id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, \
     status ENUM('unsent','claimed','sent'), owner INT UNSIGNED NOT NULL DEFAULT 0, \
     ts TIMESTAMP NULL, body BLOB, KEY (owner, status, ts)) ENGINE = InnoDB",
];

impl Arena {
    /// Creates the database on the server of `server`.
    pub(crate) async fn new(server: &ServerUrl) -> anyhow::Result<Self> {
        let database = TestDatabase::on(server).await;
        let topic = database.topic("bench").await;
        let arena = Self { database, topic };
        let mut conn = arena.raw().await?;
        for table in TABLES {
            conn.query_drop(table).await.context("Cannot make the tables of the references")?;
        }
        Ok(arena)
    }

    /// Returns the database.
    pub(crate) fn database(&self) -> &TestDatabase {
        &self.database
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> &ServerUrl {
        self.database.url()
    }

    /// Opens a connection of the bare driver: for the references, and for statements that are not
    /// the queue's.
    pub(crate) async fn raw(&self) -> anyhow::Result<Conn> {
        raw(self.url()).await
    }

    /// Removes every message and dead letter of an earlier load.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        let mut conn = self.raw().await?;
        let tables = [
            "queue_message",
            "queue_claim",
            "queue_floor",
            "queue_scheduled",
            "queue_archive",
            "queue_ledger",
            "queue_lookup",
            "queue_dedupe",
            "queue_unique",
            "queue_trace",
            "queue_limit",
            "queue_slot",
            "queue_share",
            "bench_bare",
            "bench_001_msg",
            "bench_001_log",
            "bench_003",
            "bench_004",
        ];
        for table in tables {
            conn.query_drop(format!("TRUNCATE TABLE {table}")).await?;
        }
        Ok(())
    }

    /// Sets whether messages of the topic can be looked up, and which leave a trace.
    pub(crate) async fn set_known(&self, searchable: bool, trace: Sampling) -> anyhow::Result<()> {
        let mut conn = connect(self.url(), SessionKind::Plain).await?;
        let searchable = searchable.then_some(SEARCHABLE);
        let settings = TopicSettings { searchable, trace, ..self.topic.settings.clone() };
        Ok(store::topic::set(&mut conn, &self.topic.name, &settings).await?)
    }

    /// Sets the limits of the topic's claims.
    pub(crate) async fn set_limits(&self, limits: Limits) -> anyhow::Result<()> {
        let mut conn = connect(self.url(), SessionKind::Plain).await?;
        let settings = TopicSettings { limits, ..self.topic.settings.clone() };
        Ok(store::topic::set(&mut conn, &self.topic.name, &settings).await?)
    }

    /// Fills the backlog that `by` will drain, and lets the server write what is still in memory.
    pub(crate) async fn fill(&self, by: Claimer, messages: u64, body: usize) -> anyhow::Result<()> {
        let share = messages / FILLERS;
        let shares = (0..FILLERS).map(|n| share + u64::from(n < messages % FILLERS));
        match by {
            Claimer::Seed001 => {
                // Its offsets come from Redis; here a variable of the single connection counts
                // them.
                let sql = "INSERT INTO bench_001_msg (topic_name, from_ip, physics_offset, json_body) VALUES ";
                let row = "('bench', 'localhost', @offset := COALESCE(@offset, 0) + 1, ?)";
                self.fill_raw(sql, row, std::iter::once(messages), body).await
            }
            Claimer::Seed003 => {
                let sql = "INSERT INTO bench_003 (biz, times, data_string) VALUES ";
                self.fill_raw(sql, "(1000, UNIX_TIMESTAMP(), ?)", shares, body).await
            }
            Claimer::Seed004 | Claimer::Seed004ForUpdate => {
                let sql = "INSERT INTO bench_004 (status, body) VALUES ";
                self.fill_raw(sql, "('unsent', ?)", shares, body).await
            }
            _ => try_join_all(shares.map(|share| self.fill_queue(share, body, &|_| None)))
                .await
                .map(drop),
        }
    }

    /// Fills the topic over one connection, so that the messages are stored in this order; `key`
    /// gives the key of each.
    pub(crate) async fn fill_queue(
        &self,
        messages: u64,
        body: usize,
        key: &impl Fn(u64) -> Option<String>,
    ) -> anyhow::Result<()> {
        let mut conn = connect(self.url(), SessionKind::Plain).await?;
        let message = |n: u64| {
            let message = NewMessage::new(bytes(body));
            match key(n) {
                Some(key) => message.with_key(key),
                None => message,
            }
        };
        let mut left = messages;
        while left > 0 {
            let rows = left.min(FILL_ROWS);
            let from = messages - left;
            let batch: Vec<_> = (from..from + rows).map(message).collect();
            enqueue_to(&mut conn, &self.topic, &batch).await?;
            left -= rows;
        }
        Ok(())
    }

    async fn fill_raw(
        &self,
        sql: &str,
        row: &str,
        shares: impl Iterator<Item = u64>,
        body: usize,
    ) -> anyhow::Result<()> {
        let fill = |messages: u64| async move {
            let mut conn = self.raw().await?;
            let mut left = messages;
            while left > 0 {
                let rows = usize::try_from(left.min(FILL_ROWS))?;
                let bodies: Vec<Value> = (0..rows).map(|_| bytes(body).into()).collect();
                conn.exec_drop(format!("{sql}{}", vec![row; rows].join(", ")), bodies).await?;
                left -= left.min(FILL_ROWS);
            }
            anyhow::Ok(())
        };
        try_join_all(shares.map(fill)).await.map(drop)
    }

    /// Returns the id of the server's process, which runs on this machine.
    pub(crate) async fn server_process(&self) -> anyhow::Result<u32> {
        let file: Option<String> = self.raw().await?.query_first("SELECT @@pid_file").await?;
        let file = file.context("The server has no pid file")?;
        let id = std::fs::read_to_string(&file).with_context(|| format!("Cannot read {file}"))?;
        Ok(id.trim().parse()?)
    }

    /// Returns how many statements the server has received since it started.
    pub(crate) async fn statements(&self) -> anyhow::Result<u64> {
        self.status("Questions").await
    }

    /// Returns how many rows the server has read in the order of an index since it started.
    pub(crate) async fn rows_walked(&self) -> anyhow::Result<u64> {
        self.status("Handler_read_next").await
    }

    async fn status(&self, name: &str) -> anyhow::Result<u64> {
        let mut conn = self.raw().await?;
        let row: Option<(String, u64)> =
            conn.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'")).await?;
        Ok(row.with_context(|| format!("The server does not count {name}"))?.1)
    }
}

/// Opens a connection of the bare driver to the database of `url`.
pub(crate) async fn raw(url: &ServerUrl) -> anyhow::Result<Conn> {
    let opts = Opts::from_url(url.expose()).context("Cannot read the URL of the server")?;
    let opts = OptsBuilder::from_opts(opts)
        .prefer_socket(false)
        .wait_timeout(Some(Duration::from_secs(3600).as_secs().try_into()?));
    Conn::new(opts).await.context("Cannot connect to the server under test")
}

/// Returns what the report says about the server of `url`.
pub(crate) async fn facts(url: &ServerUrl) -> anyhow::Result<ServerFacts> {
    let mut conn = raw(url).await?;
    let version: Option<String> = conn.query_first("SELECT @@version").await?;
    let version = version.unwrap_or_default();
    let product = if version.contains("MariaDB") { "" } else { "MySQL " };
    let mut settings = Vec::new();
    for name in SETTINGS {
        let found: Option<(String, String)> =
            conn.exec_first("SHOW GLOBAL VARIABLES WHERE Variable_name = ?", (name,)).await?;
        settings.extend(found);
    }
    Ok(ServerFacts { version: format!("{product}{version}"), settings })
}

/// Returns a body that no server can compress.
pub(crate) fn bytes(n: usize) -> Vec<u8> {
    let mut body = vec![0; n];
    rand::fill(&mut body[..]);
    body
}
