use std::sync::atomic::{AtomicU32, Ordering};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::account::Account;
use rowmq_core::connection::{ServerUrl, Session};
use rowmq_core::model::TopicSettings;
use rowmq_core::{AsyncMysqlConnection, Topic, TopicName, migration, store};
use uuid::Uuid;

use crate::names::{PREFIX, account_stem};
use crate::patience::{PATIENCE, connected, greeted, session_at};
use crate::spare::{self, Made};
use crate::{aside, server};

/// A database on the server of `ROWMQ_URL` for one test, with the queue's tables in it. It is
/// dropped with this value, even while a failing test unwinds.
///
/// With `ROWMQ_TEST_REUSE=1` and `ROWMQ_SERVER_KIND=mysql` it is emptied for another test of the
/// process instead, and stays on the server in the end.
///
/// The account of `ROWMQ_URL` must be allowed to create and drop databases whose names begin with
/// `queue_test_`. Connections that still use the database when it is dropped are killed.
#[derive(Debug)]
pub struct TestDatabase {
    url: ServerUrl,
    /// What it was like before its test, if others may have it afterwards.
    made: Option<Made>,
    accounts: AtomicU32,
}

impl TestDatabase {
    /// Creates the database. Works on every kind of tokio runtime.
    ///
    /// # Panics
    /// Without a server: `ROWMQ_URL` says where it is (`ops/test` starts one).
    pub async fn new() -> Self {
        let server = std::env::var("ROWMQ_URL")
            .expect("ROWMQ_URL names the server to test on; run the tests by ./ops/test");
        let server = ServerUrl::new(&server).expect("ROWMQ_URL is a database URL");
        Self::on(&server).await
    }

    /// Creates the database on the server of `server`, which may be the test's own, to stop and
    /// reconfigure.
    ///
    /// # Panics
    /// If the server cannot be reached or the account may not create databases.
    pub async fn on(server: &ServerUrl) -> Self {
        let is_kept = spare::are_kept(server);
        if let Some(made) = if is_kept { spare::take().await } else { None } {
            return Self { url: made.url().clone(), made: Some(made), accounts: AtomicU32::new(0) };
        }
        let mut database = Self::empty_on(server).await;
        let migrated = greeted(async || migration::run(database.url()).await).await;
        migrated.expect("migrations apply");
        if is_kept {
            database.made = Some(Made::read(database.url()).await);
        }
        database
    }

    /// Creates a database without the queue's tables on the server of `server`, as [`on`](Self::on)
    /// does: for tests of the migrations.
    ///
    /// # Panics
    /// If the server cannot be reached or the account may not create databases.
    pub async fn empty_on(server: &ServerUrl) -> Self {
        let name = format!("{PREFIX}{}", Uuid::new_v4().simple());
        let url = server.with_database(&name).expect("the name stands in a URL");
        let mut conn = connected(server).await;
        server::sweep_once(&mut conn).await;
        conn.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database is made");
        Self { url, made: None, accounts: AtomicU32::new(0) }
    }

    /// Returns its URL, password included.
    #[must_use]
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.url.database()
    }

    /// Returns its URL for another account.
    ///
    /// # Panics
    /// If the URL names a socket and no host.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> ServerUrl {
        self.url.with_account(user, password).expect("another account leaves it a URL")
    }

    /// Creates an account that has only these grants, and returns the database's URL for it. Each
    /// grant has the form `EXECUTE ON PROCEDURE {}.queue_send` or `PROCESS ON *.*`, where `{}`
    /// stands for the database. The account is dropped with the database.
    ///
    /// # Panics
    /// If the account of `ROWMQ_URL` may not create or grant.
    pub async fn account(&self, grants: &[&str]) -> ServerUrl {
        let n = self.accounts.fetch_add(1, Ordering::Relaxed);
        let user = format!("{}{n}", account_stem(self.name()));
        let mut conn = self.connect().await;
        let create = format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'test'");
        conn.batch_execute(&create).await.expect("an account is made");
        for grant in grants {
            let grant = grant.replace("{}", self.name());
            conn.batch_execute(&format!("GRANT {grant} TO '{user}'@'%'")).await.expect("granted");
        }
        self.url_as(&user, "test")
    }

    /// Creates an account with exactly the grants of its file in `ops/deploy/grants`; returns the
    /// URL for it.
    ///
    /// # Panics
    /// If the account of `ROWMQ_URL` may not create or grant.
    pub async fn account_of(&self, account: Account) -> ServerUrl {
        let url = self.account(&[]).await;
        let n = self.accounts.load(Ordering::Relaxed) - 1;
        let name = format!("{}{n}", account_stem(self.name())).parse().expect("an account");
        let mut conn = self.connect().await;
        let statements = account.statements(&name);
        for grant in statements.lines().filter(|line| line.starts_with("GRANT ")) {
            conn.batch_execute(grant).await.unwrap_or_else(|error| panic!("{grant}: {error}"));
        }
        url
    }

    /// Connects to it, with a session set up as the queue's own are.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn connect(&self) -> AsyncMysqlConnection {
        connected(&self.url).await
    }

    /// Opens a session whose calls wait as long as a test does.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn session(&self) -> Session {
        session_at(&self.url, PATIENCE).await
    }

    /// Creates a topic with the default settings.
    ///
    /// # Panics
    /// If the name is invalid or taken.
    pub async fn topic(&self, name: &str) -> Topic {
        self.topic_with(name, &TopicSettings::default()).await
    }

    /// Creates a topic with these settings.
    ///
    /// # Panics
    /// If the name is invalid or taken.
    pub async fn topic_with(&self, name: &str, settings: &TopicSettings) -> Topic {
        let mut conn = self.connect().await;
        let name = TopicName::new(name).expect("a topic name");
        store::topic::create(&mut conn, &name, settings).await.expect("the topic is new");
        store::topic::find(&mut conn, &name)
            .await
            .expect("topics can be read")
            .expect("it is there")
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let url = self.url.clone();
        let made = self.made.take().filter(|_| !std::thread::panicking());
        let dropped = aside::run(async move || {
            let outside = url.with_database("information_schema").expect("a name for a URL");
            let mut conn = connected(&outside).await;
            let dropped = match made {
                Some(made) => made.leave(&mut conn).await,
                None => server::drop_database(&mut conn, url.database()).await,
            };
            dropped.expect("the database is dropped");
        });
        // The panic's own words are printed already. While a test unwinds, a second panic would
        // abort it; the next run sweeps what is left.
        assert!(dropped || std::thread::panicking(), "{} was not dropped", self.name());
    }
}
