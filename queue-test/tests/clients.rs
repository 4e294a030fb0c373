//! The client packages in other languages, each built and installed into an empty environment.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

use std::process::Command;
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rand::Rng;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{OffsetSpec, TopicId, TopicSettings};
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{AsyncMysqlConnection, NewMessage, enqueue_to, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase, until};

use crate::tool::{checkout, ops, said_meanwhile};

/// Runs `ops/client`; returns false where this machine lacks what it needs.
async fn client(arguments: &[&str], url: Option<&ServerUrl>) -> bool {
    let mut command = ops(&[&["client"], arguments].concat());
    command.envs(url.map(|url| ("ROWMQ_URL", url.expose())));
    said_meanwhile(command).await.is_some()
}

/// Returns a command that runs a program with the client, once `ops/client` has installed it; its
/// arguments follow.
fn interpreter(client: &str) -> Command {
    let folder = checkout().join("target/clients").join(client);
    let folder = folder.canonicalize().expect("it is installed");
    let (program, directory) = match client {
        "python" => (folder.join("venv/bin/python"), checkout().join("clients/python/tests")),
        "node" => ("node".into(), folder.join("project")),
        "php" | "laravel" => (folder.join("../../tools/bin/php"), folder.join("project")),
        "go" => (folder.join("programs/serve"), folder),
        _ => ("java".into(), folder),
    };
    let mut command = Command::new(program);
    command.current_dir(directory);
    command
}

/// A session by SQL that dies is rescued by a janitor.
fn janitor(database: &TestDatabase) -> Program {
    let mut janitor = Program::built("rowmq-janitor");
    Program::start(janitor.env("ROWMQ_URL", database.url().expose()))
}

async fn with_effects(topics: &[&str]) -> TestDatabase {
    let database = TestDatabase::new().await;
    // Nothing comes back while a test runs.
    let retry = "fixed 1h".parse().expect("a policy");
    let settings = TopicSettings { retry, ..TopicSettings::default() };
    for topic in topics {
        database.topic_with(topic, &settings).await;
    }
    let table = "CREATE TABLE effect (msg_id CHAR(36) NOT NULL, delivery_no INT) ENGINE = InnoDB; \
                 CREATE TABLE only_one (id INT PRIMARY KEY) ENGINE = InnoDB";
    database.connect().await.batch_execute(table).await.expect("made");
    database
}

/// The topics of a package's own tests.
const TOPICS: [&str; 24] = [
    "sending",
    "refusals",
    "unique",
    "many",
    "work",
    "verdicts",
    "release",
    "swallow",
    "commits",
    "term",
    "beats",
    "lost",
    "frameworks",
    "one",
    "other",
    "third",
    "fails",
    "silent",
    "held",
    "high",
    "low",
    "outcome",
    "limited",
    "checkpoints",
];

/// Runs a package's own tests.
async fn keeps_its_promises(arguments: &[&str]) {
    let database = with_effects(&TOPICS).await;
    let mut conn = database.connect().await;
    let name = |name: &str| name.parse().expect("a name");
    let settings = TopicSettings::default();
    create_stream(&mut conn, &name("events"), 1, &settings).await.expect("the stream is new");
    for (group, ordered) in [("events@all", false), ("events@ordered", true)] {
        let group_name = name(group);
        create_group(&mut conn, &group_name, ordered, OffsetSpec::Earliest, &settings)
            .await
            .expect("the group is new");
    }
    let _janitor = janitor(&database);
    client(arguments, Some(database.url())).await;
}

#[tokio::test]
async fn the_python_package_does_what_it_says() {
    keeps_its_promises(&["python", "clients/python/tests/test_rowmq.py"]).await;
}

#[tokio::test]
async fn the_node_package_does_what_it_says() {
    keeps_its_promises(&["node", "--test", "rowmq.test.mjs"]).await;
}

#[tokio::test]
async fn the_php_package_does_what_it_says() {
    keeps_its_promises(&["php", "phpunit", "RowmqTest.php"]).await;
}

#[tokio::test]
async fn the_laravel_package_does_what_it_says() {
    keeps_its_promises(&["laravel", "phpunit", "LaravelTest.php"]).await;
}

#[tokio::test]
async fn the_go_package_does_what_it_says() {
    keeps_its_promises(&["go", "send", "-test.v"]).await;
}

#[tokio::test]
async fn the_java_package_does_what_it_says() {
    keeps_its_promises(&["java", "Sends"]).await;
}

#[tokio::test]
async fn python_sends_on_connections_of_sqlalchemy_and_django() {
    keeps_its_promises(&["python", "clients/python/tests/test_frameworks.py"]).await;
}

#[tokio::test]
async fn the_types_of_the_packages_are_checked() {
    for name in ["python", "node", "php", "go"] {
        client(&[name, "--types"], None).await;
    }
}

#[derive(QueryableByName)]
struct Effects {
    #[diesel(sql_type = BigInt)]
    all: i64,
    #[diesel(sql_type = BigInt)]
    messages: i64,
    /// Of messages that had been delivered before, to a worker that was killed.
    #[diesel(sql_type = BigInt)]
    again: i64,
}

/// How many messages are sent at once: more than the three workers claim at once.
const MESSAGES: i64 = 500;

/// How many kills there are: `ROWMQ_KILLS`.
fn kills() -> usize {
    match std::env::var("ROWMQ_KILLS") {
        Ok(kills) => kills.parse().expect("ROWMQ_KILLS is a number"),
        Err(_) => 4,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_workers_that_are_killed_have_each_effect_exactly_once() {
    has_each_effect_once("python", "effects.py", "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_workers_that_are_killed_have_each_effect_exactly_once() {
    has_each_effect_once("node", "effects.mjs", "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn php_workers_that_are_killed_have_each_effect_exactly_once() {
    has_each_effect_once("php", "effects.php", "x").await;
}

/// What Laravel sends for a job without properties.
const SLOW: &str = concat!(
    r#"{"displayName":"Slow","job":"Illuminate\\Queue\\CallQueuedHandler@call","#,
    r#""data":{"commandName":"Slow","command":"O:4:\"Slow\":0:{}"}}"#,
);

#[tokio::test(flavor = "multi_thread")]
async fn laravel_workers_that_are_killed_have_each_effect_exactly_once() {
    has_each_effect_once("laravel", "effects.php", SLOW).await;
}

/// Kills workers while they handle messages.
async fn has_each_effect_once(name: &str, program: &str, body: &str) {
    if !client(&[name, "--get"], None).await {
        return;
    }
    let database = with_effects(&[]).await;
    let settings = TopicSettings { max_crashes: 1000, ..TopicSettings::default() };
    let topic = database.topic_with("work", &settings).await;
    let mut conn = database.connect().await;
    let start = || {
        let mut worker = interpreter(name);
        Program::start(worker.arg(program).env("ROWMQ_URL", database.url().expose()))
    };
    let _janitor = janitor(&database);
    let mut workers = [start(), start(), start()];
    let mut sent = 0;
    let mut killed = 0;
    // A kill may find its worker idle; one of them must not.
    while killed < kills() || effects(&mut conn).await.again == 0 {
        assert!(killed < 10 * kills(), "no kill found a worker at work");
        let before = effects(&mut conn).await.all;
        // A busy machine handles few of them between two kills.
        if before + MESSAGES > sent {
            let messages: Vec<_> = (0..MESSAGES).map(|_| NewMessage::new(body)).collect();
            enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
            sent += MESSAGES;
        }
        until("the workers are at work", async || effects(&mut conn).await.all > before).await;
        let pause = rand::rng().random_range(0..100);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let victim = &mut workers[killed % 3];
        victim.kill();
        *victim = start();
        killed += 1;
    }
    while is_left(&mut conn, topic.id).await {
        let before = effects(&mut conn).await.all;
        until("another one is handled", async || {
            effects(&mut conn).await.all > before || !is_left(&mut conn, topic.id).await
        })
        .await;
    }
    let effects = effects(&mut conn).await;
    assert_eq!((effects.all, effects.messages), (sent, sent));
}

async fn is_left(conn: &mut AsyncMysqlConnection, topic: TopicId) -> bool {
    let depth = store::inspect::depth(conn, topic).await.expect("a depth");
    depth.unsettled + depth.claimed + depth.scheduled > 0
}

async fn effects(conn: &mut AsyncMysqlConnection) -> Effects {
    let count = "SELECT COUNT(*) AS `all`, COUNT(DISTINCT msg_id) AS messages, \
                 COUNT(IF(delivery_no > 1, 1, NULL)) AS again FROM effect";
    diesel::sql_query(count).get_result(conn).await.expect("read")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_outlives_a_dead_network_and_ends_on_one() {
    outlives_a_dead_network("python", "effects.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_worker_outlives_a_dead_network_and_ends_on_one() {
    outlives_a_dead_network("node", "effects.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_php_worker_outlives_a_dead_network_and_ends_on_one() {
    outlives_a_dead_network("php", "effects.php").await;
}

/// Makes the bytes of the worker's connection vanish, twice.
async fn outlives_a_dead_network(name: &str, program: &str) {
    if !client(&[name, "--get"], None).await {
        return;
    }
    let database = with_effects(&[]).await;
    let topic = database.topic("work").await;
    let mut conn = database.connect().await;
    let proxy = FaultProxy::start(database.url()).await;
    let _janitor = janitor(&database);
    let mut worker = interpreter(name);
    // The proxy reads what passes.
    let url = format!("{}?ssl-mode=disabled", proxy.url(database.url()).expose());
    worker.arg(program).env("ROWMQ_URL", url).env("LEASE", "3");
    let mut worker = Program::start(&mut worker);
    for handled in 1..=2 {
        enqueue_to(&mut conn, &topic, &[NewMessage::new("x")]).await.expect("enqueued");
        until("it is handled", async || effects(&mut conn).await.all == handled).await;
        proxy.ports().into_iter().for_each(|port| proxy.darken(port));
    }
    Command::new("kill").arg(worker.id().to_string()).status().expect("it runs");
    assert_eq!(worker.said_or_ended("no line has this").await, None);
    assert!(worker.ended().success());
}

/// A handler that prints, fails, and gives each verdict.
const SERVED_BY_PYTHON: &str = r#"
import os, subprocess, rowmq

def handle(message):
    print("handling", message.text)
    # These have neither the frames to read nor the answers to write to.
    subprocess.run(["cat"], check=True)
    subprocess.run(["echo", "by a child"], check=True)
    os.write(1, b"by a descriptor\n")
    if message.text == "discard":
        raise rowmq.Discard("old")
    if message.text == "dead":
        return rowmq.DeadLetter("broken")
    if message.text == "error":
        raise TypeError("odd")
    with open(os.environ["LOG"], "a") as log:
        print(message.id, os.getpid(), message.key.decode(), file=log)

rowmq.serve(handle, max_messages=20)
"#;

/// The same.
const SERVED_BY_NODE: &str = r#"
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import * as rowmq from 'rowmq';

await rowmq.serve((message) => {
  console.log('handling', message.text);
  // These have neither the frames to read nor the answers to write to.
  spawnSync('cat', { stdio: 'inherit' });
  spawnSync('echo', ['by a child'], { stdio: 'inherit' });
  fs.writeSync(1, 'by a descriptor\n');
  if (message.text === 'discard') throw new rowmq.Discard('old');
  if (message.text === 'dead') return new rowmq.DeadLetter('broken');
  if (message.text === 'error') throw new TypeError('odd');
  fs.appendFileSync(process.env.LOG, `${message.id} ${process.pid} ${message.key}\n`);
}, { maxMessages: 20 });
"#;

/// The same.
const SERVED_BY_PHP: &str = r#"
require 'vendor/autoload.php';

Rowmq\serve(function (Rowmq\Message $message): ?Rowmq\Verdict {
    echo "handling {$message->body}\n";
    // These have neither the frames to read nor the answers to write to.
    proc_close(proc_open('cat; echo by a child', [], $pipes));
    file_put_contents('php://fd/1', "by a descriptor\n");
    match ($message->body) {
        'discard' => throw new Rowmq\Discard('old'),
        'error' => throw new TypeError('odd'),
        default => null,
    };
    if ($message->body === 'dead') {
        return new Rowmq\DeadLetter('broken');
    }
    file_put_contents(getenv('LOG'), "{$message->id} " . getmypid() . " {$message->key}\n", FILE_APPEND);
    return null;
}, maxMessages: 20);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_python_programs_is_served() {
    serves("python", &["-c", SERVED_BY_PYTHON]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_node_programs_is_served() {
    serves("node", &["--input-type=module", "-e", SERVED_BY_NODE]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_php_programs_is_served() {
    serves("php", &["-r", SERVED_BY_PHP]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_go_programs_is_served() {
    serves("go", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_java_programs_is_served() {
    serves("java", &["-cp", "classes:../../tools/java/usr/share/java/gson.jar", "Serves"]).await;
}

/// Passes messages to a pool of the program.
async fn serves(name: &str, arguments: &[&str]) {
    if !client(&[name, "--get"], None).await {
        return;
    }
    let database = TestDatabase::new().await;
    let topic = database.topic("work").await;
    let mut conn = database.connect().await;
    let mut messages: Vec<_> =
        (0..60).map(|n| NewMessage::new(format!("{n}\u{2028}")).with_key("ü")).collect();
    messages.extend(["discard", "dead", "error"].map(NewMessage::new));
    enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let program = interpreter(name);
    let mut pool = Program::built("rowmq-consumer");
    pool.args(["pool", "work", "--concurrency", "2", "--pass-env", "LOG", "--"])
        .arg(program.get_program())
        .args(arguments)
        .current_dir(program.get_current_dir().expect("it has one"))
        .env("ROWMQ_URL", database.url().expose())
        .env("LOG", &log);
    let pool = Program::start(&mut pool);
    until("one message is left, for later", async || {
        let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
        (depth.unsettled + depth.claimed, depth.scheduled) == (0, 1)
    })
    .await;
    let log = std::fs::read_to_string(log).expect("a log");
    let lines: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 60);
    assert!(lines.iter().all(|line| line[2] == "ü"), "{log}");
    let mut processes: Vec<&str> = lines.iter().map(|line| line[1]).collect();
    processes.sort_unstable();
    processes.dedup();
    // 63 messages, and 20 to a process.
    assert!((3..=5).contains(&processes.len()), "{processes:?}");
    assert_eq!(pool.lines("handling error").len(), 1);
    assert_eq!(pool.lines("by a child").len(), 63);
    assert_eq!(pool.lines("TypeError: odd").len(), 2, "in the traceback, and as the failure");
}
