//! The examples of `examples/` are run: each stores one order with its message, undoes another, and
//! is refused a third.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use diesel::QueryableByName;
use diesel::sql_types::{Integer, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use queue_core::store::inspect;
use queue_test::TestDatabase;

/// What `ops/example` ends with where the machine lacks what the example needs.
const UNAVAILABLE: i32 = 3;

#[derive(Debug, PartialEq, Eq, QueryableByName)]
struct Order {
    #[diesel(sql_type = Integer)]
    id: i32,
    #[diesel(sql_type = Text)]
    email: String,
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn built(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test's path");
    let folder = test.parent().and_then(Path::parent).expect("target/debug/deps");
    Command::new(folder.join("examples").join(name))
}

fn fetched(name: &str) -> Command {
    let mut command = Command::new(checkout().join("ops/example"));
    command.arg(name);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn run(mut command: Command) {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let mut conn = database.connect().await;
    let table = "CREATE TABLE orders (id INT PRIMARY KEY, email VARCHAR(255) NOT NULL)";
    conn.batch_execute(table).await.expect("made");
    command.env("QUEUE_URL", database.url().expose());
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    let Output { status, stdout, stderr } = ended.expect("the example is built: ops/test does");
    if status.code() == Some(UNAVAILABLE) {
        eprintln!("NOT RUN HERE: {}", text(&stderr));
        return;
    }
    assert!(status.success(), "{}{}", text(&stdout), text(&stderr));
    let said = text(&stdout);
    let lines: Vec<_> = said.lines().collect();
    let [stored, undone, refused] = lines[..] else { panic!("three lines: {said}") };

    let orders = diesel::sql_query("SELECT id, email FROM orders");
    let orders: Vec<Order> = orders.load(&mut conn).await.expect("read");
    assert_eq!(orders, [Order { id: 1, email: "ada@example.com".to_owned() }]);
    let messages = inspect::peek(&mut conn, topic.id, 10).await.expect("read");
    let [message] = &messages[..] else { panic!("one message: {messages:?}") };
    assert_eq!(text(&message.body), "{\"order\":1}");
    assert_eq!(message.biz_id.as_deref(), Some("order-1"));
    assert_eq!(stored, format!("order 1 is stored, and its message {}", message.msg_id));
    assert_eq!(undone, "order 2 is undone, and its message with it");
    assert!(refused.starts_with("order 3 is refused: "), "{refused}");
    assert!(refused.contains("no-such-topic") && refused.contains("topic create"), "{refused}");
}

#[tokio::test]
async fn diesel_enqueues_in_its_transaction() {
    run(built("enqueue_diesel")).await;
}

#[tokio::test]
async fn diesel_async_enqueues_in_its_transaction() {
    run(built("enqueue_diesel_async")).await;
}

#[tokio::test]
async fn mysql_async_enqueues_in_its_transaction() {
    run(built("enqueue_mysql_async")).await;
}

#[tokio::test]
async fn sqlx_enqueues_in_its_transaction() {
    run(fetched("sqlx")).await;
}

#[tokio::test]
async fn python_enqueues_in_its_transaction() {
    run(fetched("python")).await;
}

#[tokio::test]
async fn node_enqueues_in_its_transaction() {
    run(fetched("node")).await;
}
