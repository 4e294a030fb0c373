use diesel_async::SimpleAsyncConnection;
use queue_core::connection::{ServerUrl, SessionKind, connect};
use queue_core::{AsyncMysqlConnection, Topic, TopicName, migration, store};
use uuid::Uuid;

/// What tests prefix their databases with.
const PREFIX: &str = "queue_test_";

/// A database of its own on the server of `QUEUE_URL`, migrated, dropped in the end.
pub struct TestDatabase {
    url: ServerUrl,
}

impl TestDatabase {
    /// Makes the database.
    ///
    /// # Panics
    /// Without a server: `QUEUE_URL` says where it is (`ops/test` starts one).
    #[allow(clippy::expect_used)]
    pub async fn new() -> Self {
        let server = std::env::var("QUEUE_URL")
            .expect("QUEUE_URL names the server to test on; run the tests by ./ops/test");
        let server = ServerUrl::new(&server).expect("QUEUE_URL is a database URL");
        let name = format!("{PREFIX}{}", Uuid::new_v4().simple());
        let mut conn = connect(&server, SessionKind::Plain).await.expect("the server answers");
        conn.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database is made");
        let url = server.with_database(&name).expect("the name stands in a URL");
        migration::run(&url).await.expect("migrations apply");
        Self { url }
    }
    /// Its URL.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }
    /// A connection to it.
    #[allow(clippy::expect_used)]
    pub async fn connect(&self) -> AsyncMysqlConnection {
        connect(&self.url, SessionKind::Plain).await.expect("the server answers")
    }
    /// A topic.
    #[allow(clippy::expect_used)]
    pub async fn topic(&self, name: &str) -> Topic {
        let mut conn = self.connect().await;
        let name = TopicName::new(name).expect("a topic name");
        store::topic::create(&mut conn, &name, &Default::default()).await.expect("created");
        store::topic::find(&mut conn, &name).await.expect("read").expect("there")
    }
}
