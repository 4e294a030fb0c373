//! Jobs and their worker, as used in a user's own program.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod program;

use std::sync::{Arc, Mutex};

use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use rowmq::consumer::{Shutdown, TopicOptions};
use rowmq::core::handler::TxHandler;
use rowmq::core::model::{OffsetSpec, RetryPolicy, TopicSettings};
use rowmq::core::stream::group::{create_group, create_stream};
use rowmq::test::{TestDatabase, until};
use rowmq::{
    AsyncMysqlConnection, Context, HandlerError, Job, Run, ServerUrl, TopicName, Worker,
    ensure_topic,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Job)]
#[job(topic = "mail", kind = "welcome")]
struct Welcome {
    to: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Job)]
#[job(topic = "mail")]
struct Goodbye {
    name: String,
}

fn ada() -> Welcome {
    Welcome { to: "Ada".to_owned() }
}

/// What handlers have seen.
type Seen = Arc<Mutex<Vec<String>>>;

async fn welcome(job: Welcome, run: Run<Seen>) -> Result<(), HandlerError> {
    run.state.lock().expect("no panic").push(format!("welcome {}", job.to));
    Ok(())
}

async fn goodbye(job: Goodbye, run: Run<Seen>) -> Result<(), HandlerError> {
    run.state.lock().expect("no panic").push(format!("goodbye {}", job.name));
    Ok(())
}

struct Working {
    shutdown: Shutdown,
    task: JoinHandle<rowmq::Outcome>,
}

impl Working {
    fn start<S: Clone + Send + Sync + 'static>(worker: Worker<S>) -> Self {
        let shutdown = Shutdown::default();
        let task = tokio::spawn(worker.run_until(shutdown.clone()));
        Self { shutdown, task }
    }

    async fn stop(self) {
        self.shutdown.drain.cancel();
        self.task.await.expect("no panic").expect("stopped in order");
    }
}

/// Creates a database with the topic, whose retries come back at once.
async fn database() -> TestDatabase {
    let database = TestDatabase::new().await;
    let retry = RetryPolicy::Fixed(std::time::Duration::from_millis(10));
    let settings = TopicSettings { retry, max_attempts: 2, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    database
}

fn worker(url: &ServerUrl, seen: &Seen) -> Worker<Seen> {
    Worker::new(url.clone()).state(Arc::clone(seen)).job(welcome)
}

fn sorted(seen: &Seen) -> Vec<String> {
    let mut seen = seen.lock().expect("no panic").clone();
    seen.sort();
    seen
}

async fn saw(seen: &Seen, wanted: &[&str]) {
    until("the handlers have seen it", async || sorted(seen).len() >= wanted.len()).await;
    assert_eq!(sorted(seen), wanted);
}

async fn count(conn: &mut AsyncMysqlConnection, rows: &str) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Row {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        n: i64,
    }
    let query = diesel::sql_query(format!("SELECT COUNT(*) AS n FROM {rows}"));
    let rows: Vec<Row> = query.load(conn).await.expect("counted");
    rows[0].n
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a user's transaction is diesel-async's own")]
async fn a_job_is_handled_exactly_if_its_transaction_commits() {
    let (database, seen) = (database().await, Seen::default());
    let mut conn = database.connect().await;
    let undone = conn.transaction(async |conn| {
        ada().enqueue(conn).await.expect("enqueued");
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    });
    undone.await.expect_err("rolled back");
    Welcome { to: "Grace".to_owned() }.enqueue(&mut conn).await.expect("enqueued");
    let working = Working::start(worker(database.url(), &seen));
    saw(&seen, &["welcome Grace"]).await;
    working.stop().await;
    assert_eq!(sorted(&seen), ["welcome Grace"]);
    assert_eq!(count(&mut conn, "queue_message").await, 0);
}

#[tokio::test]
async fn jobs_of_one_topic_go_to_the_handlers_of_their_kinds() {
    let (database, seen) = (database().await, Seen::default());
    let mut conn = database.connect().await;
    ada().enqueue(&mut conn).await.expect("enqueued");
    Goodbye { name: "Bob".to_owned() }.enqueue(&mut conn).await.expect("enqueued");
    let other = rowmq::NewMessage::new("{}").with_kind("reminder");
    let topic = Welcome::topic().expect("a name");
    rowmq::enqueue(&mut conn, &topic, &other).await.expect("enqueued");
    let working = Working::start(worker(database.url(), &seen).job(goodbye));
    saw(&seen, &["goodbye Bob", "welcome Ada"]).await;
    // A job without a handler here is retried, and its kind is named in the end.
    let dead = "queue_dead WHERE last_error LIKE '%''reminder''%Goodbye, welcome%'";
    until("the other is a dead letter", async || count(&mut conn, dead).await == 1).await;
    working.stop().await;
}

#[tokio::test]
async fn a_message_without_a_kind_goes_to_the_only_handler_and_to_none_of_several() {
    let (database, seen) = (database().await, Seen::default());
    let mut conn = database.connect().await;
    let by_sql = r#"CALL queue_send('mail', '{"to":"Ada"}', NULL)"#;
    conn.batch_execute(by_sql).await.expect("enqueued");
    let working = Working::start(worker(database.url(), &seen));
    saw(&seen, &["welcome Ada"]).await;
    working.stop().await;
    let working = Working::start(worker(database.url(), &seen).job(goodbye));
    conn.batch_execute(by_sql).await.expect("enqueued");
    let dead = "queue_dead WHERE last_error LIKE '%no header queue-kind%'";
    until("it is a dead letter", async || count(&mut conn, dead).await == 1).await;
    working.stop().await;
    assert_eq!(sorted(&seen), ["welcome Ada"]);
}

#[tokio::test]
async fn a_closure_is_a_handler() {
    let (database, seen) = (database().await, Seen::default());
    let mut conn = database.connect().await;
    ada().enqueue(&mut conn).await.expect("enqueued");
    let names = Arc::clone(&seen);
    let worker = Worker::new(database.url().clone()).job(move |job: Welcome, _| {
        names.lock().expect("no panic").push(job.to);
        async { Ok(()) }
    });
    let working = Working::start(worker);
    saw(&seen, &["Ada"]).await;
    working.stop().await;
}

struct Count;

impl TxHandler for Count {
    type Payload = Welcome;

    async fn handle(
        &self,
        _: &Context,
        job: Welcome,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        diesel::sql_query("INSERT INTO visits VALUES (1)").execute(tx).await?;
        match job.to.as_str() {
            "a stranger" => Err(HandlerError::dead("there is no such person")),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn a_job_in_a_transaction_leaves_its_effects_exactly_if_it_is_acked() {
    let database = database().await;
    let mut conn = database.connect().await;
    conn.batch_execute("CREATE TABLE visits (id INT NOT NULL)").await.expect("made");
    ada().enqueue(&mut conn).await.expect("enqueued");
    Welcome { to: "a stranger".to_owned() }.enqueue(&mut conn).await.expect("enqueued");
    let working = Working::start(Worker::new(database.url().clone()).job_in_transaction(Count));
    until("both are settled", async || {
        count(&mut conn, "queue_message").await == 0 && count(&mut conn, "queue_dead").await == 1
    })
    .await;
    working.stop().await;
    assert_eq!(count(&mut conn, "visits").await, 1);
}

#[tokio::test]
async fn a_job_in_a_transaction_leaves_messages_of_another_kind_to_be_retried() {
    let database = database().await;
    let mut conn = database.connect().await;
    conn.batch_execute("CREATE TABLE visits (id INT NOT NULL)").await.expect("made");
    let other = rowmq::NewMessage::new(r#"{"to":"Ada"}"#).with_kind("reminder");
    rowmq::enqueue(&mut conn, &Welcome::topic().expect("a name"), &other).await.expect("enqueued");
    let working = Working::start(Worker::new(database.url().clone()).job_in_transaction(Count));
    let dead = "queue_dead WHERE failures = 2 AND last_error LIKE '%''reminder''%welcome%'";
    until("it is a dead letter", async || count(&mut conn, dead).await == 1).await;
    working.stop().await;
    assert_eq!(count(&mut conn, "visits").await, 0);
}

async fn refused<S: Clone + Send + Sync + 'static>(worker: Worker<S>) -> String {
    worker.run_until(Shutdown::default()).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn what_cannot_be_handled_as_it_is_registered_is_refused() {
    let database = database().await;
    let worker = || worker(database.url(), &Seen::default());
    let said = refused(worker().job_in_transaction(Count)).await;
    assert!(said.contains("'mail' has two handlers"), "{said}");
    let said = refused(worker().job(welcome)).await;
    assert!(said.contains("The kind 'welcome' of the topic 'mail' has two handlers"), "{said}");
    let said = refused(worker().topic("orders@billing", TopicOptions::default())).await;
    assert!(said.contains("'orders@billing' has options but no job"), "{said}");
    let said = refused(Worker::new(database.url().clone())).await;
    assert!(said.contains("No handler is registered"), "{said}");
}

/// A group's jobs have options under the group's name.
#[tokio::test]
async fn a_job_of_a_stream_is_handled_by_a_group() {
    let (database, seen) = (TestDatabase::new().await, Seen::default());
    let mut conn = database.connect().await;
    let settings = TopicSettings::default();
    let stream = Welcome::topic().expect("a name");
    create_stream(&mut conn, &stream, 2, &settings).await.expect("made");
    let group = TopicName::of_group(&stream, "greeters").expect("a name");
    create_group(&mut conn, &group, false, OffsetSpec::Earliest, &settings).await.expect("made");
    ada().enqueue(&mut conn).await.expect("enqueued");
    let one_at_a_time = TopicOptions { concurrency: 1, ..TopicOptions::default() };
    let worker = Worker::new(database.url().clone()).state(Arc::clone(&seen));
    let worker = worker.job_of(group.as_str(), welcome).topic(group.as_str(), one_at_a_time);
    let working = Working::start(worker);
    saw(&seen, &["welcome Ada"]).await;
    working.stop().await;
}

#[tokio::test]
async fn a_program_ensures_its_topic_at_each_start() {
    let database = TestDatabase::new().await;
    let mail = TopicName::new("mail").expect("a name");
    let settings = |max_attempts| TopicSettings { max_attempts, ..TopicSettings::default() };
    let (mut one, mut other) = (database.connect().await, database.connect().await);
    let (five, six) = (settings(5), settings(6));
    let (first, second) =
        tokio::join!(ensure_topic(&mut one, &mail, &five), ensure_topic(&mut other, &mail, &six));
    let (first, second) = (first.expect("ensured"), second.expect("ensured"));
    assert_eq!(first, second);
    let again = ensure_topic(&mut one, &mail, &settings(7)).await.expect("ensured");
    assert_eq!(again, first, "an existing topic keeps its settings");
    create_stream(&mut one, &TopicName::new("s").expect("a name"), 2, &five).await.expect("made");
    let stream = ensure_topic(&mut one, &TopicName::new("s").expect("a name"), &six).await;
    assert!(stream.expect("there").is_stream());
    let group = ensure_topic(&mut one, &TopicName::new("s@g").expect("a name"), &six).await;
    assert!(group.is_err(), "a group is created with its place");
}
