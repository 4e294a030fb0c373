use std::str::FromStr as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlSslMode};
use sqlx::{ConnectOptions as _, MySqlConnection, MySqlPool, Row as _};

/// How long to wait for a statement to end: a server that is slow to obey a `KILL` must not delay
/// the program.
const ENDING: Duration = Duration::from_secs(5);

/// The pause between two looks at the process list.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The database of a run.
#[derive(Debug, Clone)]
pub struct Database {
    options: MySqlConnectOptions,
}

impl Database {
    /// The database of `--url`.
    ///
    /// # Errors
    ///
    /// The URL is none of a database.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let options = MySqlConnectOptions::from_str(url)
            .context("--url is no URL like mysql://user:password@host:port/database")?;
        anyhow::ensure!(options.get_database().is_some(), "--url names no database");
        // Without TLS, like the queue: by default sqlx uses TLS if the server offers it.
        Ok(Self { options: options.ssl_mode(MySqlSslMode::Disabled) })
    }

    /// The URL, for a peer that wants to connect by itself.
    #[must_use]
    pub fn url(&self) -> String {
        self.options.to_url_lossy().to_string()
    }

    /// Opens a pool with this many connections. The pool does not test a connection before each
    /// use, which would cost a round trip.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn pool(&self, connections: u32) -> anyhow::Result<MySqlPool> {
        MySqlPoolOptions::new()
            .min_connections(connections)
            .max_connections(connections)
            .test_before_acquire(false)
            .connect_with(self.options.clone())
            .await
            .context("Cannot connect to the server of --url")
    }

    /// Kills the sessions whose running statement begins with `beginning`, and returns when the
    /// server has rolled the statements back, or after five seconds.
    ///
    /// Sorting a large backlog takes seconds, so a statement that claims jobs outlives the program
    /// and would slow down the next measurement.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn end_statements(&self, beginning: &str) -> anyhow::Result<()> {
        let mut connection = self.options.connect().await?;
        let start = Instant::now();
        loop {
            let sessions = self.sessions_with(beginning, &mut connection).await?;
            if sessions.is_empty() || start.elapsed() > ENDING {
                return Ok(());
            }
            for id in sessions {
                // It may have ended just now.
                drop(sqlx::raw_sql(&format!("KILL {id}")).execute(&mut connection).await);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The sessions of this database whose running statement begins with `beginning`.
    async fn sessions_with(
        &self,
        beginning: &str,
        connection: &mut MySqlConnection,
    ) -> anyhow::Result<Vec<u64>> {
        let rows = sqlx::raw_sql("SHOW FULL PROCESSLIST").fetch_all(connection).await?;
        let mut sessions = Vec::new();
        for row in rows {
            let database: Option<String> = row.try_get_unchecked("db")?;
            let statement: Option<String> = row.try_get_unchecked("Info")?;
            let is_ours = database.as_deref() == self.options.get_database();
            if is_ours && statement.is_some_and(|text| text.trim_start().starts_with(beginning)) {
                sessions.push(row.try_get_unchecked("Id")?);
            }
        }
        Ok(sessions)
    }
}
