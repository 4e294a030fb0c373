//! Runs the examples of `examples/`. Those that enqueue store one order with its message, roll back
//! another, and are refused a third; those that consume handle one message, fail with one, and
//! dead-letter one.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

use std::path::Path;
use std::process::Command;

use diesel::QueryableByName;
use diesel::sql_types::{Integer, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::store::dead::{self, DeadFilter};
use rowmq_core::store::{inspect, worker};
use rowmq_core::{NewMessage, enqueue};
use rowmq_test::TestDatabase;

use crate::tool::{ops, said_meanwhile};

#[derive(Debug, PartialEq, Eq, QueryableByName)]
struct Order {
    #[diesel(sql_type = Integer)]
    id: i32,
    #[diesel(sql_type = Text)]
    email: String,
}

fn built(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test's path");
    let folder = test.parent().and_then(Path::parent).expect("target/debug/deps");
    Command::new(folder.join("examples").join(name))
}

fn fetched(name: &str) -> Command {
    ops(&["example", name])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what the program prints; `None` where this machine lacks what it needs.
async fn said(mut command: Command, database: &TestDatabase) -> Option<String> {
    command.env("ROWMQ_URL", database.url().expose());
    said_meanwhile(command).await
}

async fn run(command: Command) {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let mut conn = database.connect().await;
    let table = "CREATE TABLE orders (id INT PRIMARY KEY, email VARCHAR(255) NOT NULL)";
    conn.batch_execute(table).await.expect("made");
    let Some(said) = said(command, &database).await else { return };
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

/// Runs a consumer example on messages that it can handle; then on one more, one that fails, and
/// one that does not parse.
async fn consume(name: &str) {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let mut conn = database.connect().await;
    let table = "CREATE TABLE orders (id INT PRIMARY KEY, mailed INT NOT NULL) ENGINE = InnoDB; \
         INSERT INTO orders VALUES (1, 0), (3, 0), (4, 0)";
    conn.batch_execute(table).await.expect("made");
    let mut runs = Vec::new();
    for bodies in
        [&["{\"order\":3}", "{\"order\":4}"][..], &["{\"order\":1}", "{\"order\":2}", "no order"]]
    {
        for body in bodies {
            enqueue(&mut conn, &topic.name, &NewMessage::new(*body)).await.expect("enqueued");
        }
        let mut command = fetched(name);
        command.args(["consume", "--until-empty"]);
        let Some(said) = said(command, &database).await else { return };
        runs.push(said);
    }
    assert_eq!(runs[0].trim_end(), "order 3 is mailed\norder 4 is mailed");
    let lines: Vec<_> = runs[1].lines().collect();
    let [mailed, retried, dead] = lines[..] else { panic!("three lines: {}", runs[1]) };
    assert_eq!((mailed, retried), ("order 1 is mailed", "retry: there is no order 2"));
    assert!(dead.starts_with("dead-letter: the body is no order: "), "{dead}");

    let depth = inspect::depth(&mut conn, topic.id).await.expect("read");
    assert_eq!((depth.unsettled, depth.scheduled), (0, 1), "{depth:?}");
    let mailed = diesel::sql_query("SELECT id, CAST(mailed AS CHAR) AS email FROM orders");
    let orders: Vec<Order> = mailed.load(&mut conn).await.expect("read");
    let once = |id| Order { id, email: "1".to_owned() };
    assert_eq!(orders, [once(1), once(3), once(4)], "mailed once");
    let workers = worker::latest(&mut conn, 10).await.expect("read");
    let states: Vec<_> = workers.iter().map(|worker| worker.state.as_str()).collect();
    assert_eq!(states, ["stopped", "stopped"]);
    let window = dead::window(&mut conn, topic.id, &DeadFilter::default(), None).await;
    assert_eq!(window.expect("read").wanted.len(), 1);
}

#[tokio::test]
async fn python_consumes_with_its_work_in_one_transaction() {
    consume("python").await;
}

#[tokio::test]
async fn node_consumes_with_its_work_in_one_transaction() {
    consume("node").await;
}
