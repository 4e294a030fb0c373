//! Changes that users make with `rowmq` are in the audit, and refused ones are not.

use diesel::sql_types::BigInt;
use diesel::{QueryableByName, sql_query};
use diesel_async::RunQueryDsl;
use rowmq_core::doctor::TABLES;
use rowmq_core::model::{DeadCause, OnDone, Settlement};
use rowmq_core::store::{self, audit};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{AsyncMysqlConnection, NewMessage, enqueue, enqueue_all};
use rowmq_test::{TestDatabase, until};
use serde_json::Value;

use crate::run::{Rowmq, cells};

/// Returns the newest entry: action, target, number of messages, and detail.
pub(crate) fn newest(rowmq: &Rowmq) -> (String, String, u64, String) {
    told(&rowmq.json(&["audit", "--limit", "1"])[0])
}

fn told(entry: &Value) -> (String, String, u64, String) {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    (text("action"), text("target"), entry["messages"].as_u64().expect("a number"), text("detail"))
}

fn count(rowmq: &Rowmq) -> usize {
    rowmq.json(&["audit", "-n", "1000"]).as_array().expect("entries").len()
}

/// Runs each command, given as words separated by spaces, and compares the one entry that it
/// leaves.
#[track_caller]
fn leave(rowmq: &Rowmq, commands: &[(&str, &str, &str, u64, &str)]) {
    for (command, action, target, messages, detail) in commands {
        let before = count(rowmq);
        let arguments: Vec<_> = command.split(' ').collect();
        rowmq.say(&arguments);
        assert_eq!(count(rowmq), before + 1, "{command}");
        let wanted = ((*action).to_owned(), (*target).to_owned(), *messages, (*detail).to_owned());
        assert_eq!(newest(rowmq), wanted, "{command}");
    }
}

#[tokio::test]
async fn every_change_of_topics_and_messages_leaves_its_entry() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    leave(
        &rowmq,
        &[
            ("topic create mail", "create-topic", "mail", 0, "queue"),
            (
                "topic create other --max-attempts 5",
                "create-topic",
                "other",
                0,
                "queue, max_attempts 5",
            ),
            (
                "topic set other --max-attempts 3 --keep-done 1h",
                "set-topic",
                "other",
                0,
                "max_attempts 3, on_done {\"keep\":\"1h\"}",
            ),
            ("topic set other --keep-done none", "set-topic", "other", 0, "on_done delete"),
            ("topic set other --max-attempts 3", "set-topic", "other", 0, ""),
            ("topic access mail denied", "set-access", "mail", 0, "denied"),
            ("topic resume mail --claim", "set-access", "mail", 0, "read-only"),
            ("topic pause mail", "set-access", "mail", 0, "denied"),
            ("topic resume mail", "set-access", "mail", 0, "read-write"),
            ("access read-only", "set-access-of-all", "", 0, "read-only"),
            ("access read-write", "set-access-of-all", "", 0, "read-write"),
        ],
    );
    let before = count(&rowmq);
    let later = rowmq.say(&["enqueue", "mail", "x", "--deliver", "1h"]);
    let again = rowmq.say(&["enqueue", "mail", "x", "--deliver", "1h"]);
    let ready = rowmq.say(&["enqueue", "mail", "x"]);
    let [later, again, ready] = [&later, &again, &ready].map(|id| id.trim());
    for _ in 0..600 {
        enqueue_one(&database).await;
    }
    for command in [&["access"][..], &["topic", "list"], &["stats"], &["drain", "none"]] {
        rowmq.run(command);
    }
    assert_eq!(count(&rowmq), before, "enqueueing and looking is no such change");
    leave(
        &rowmq,
        &[
            (
                &format!("scheduled reschedule mail {later} --deliver 2h"),
                "reschedule",
                "mail",
                1,
                &format!("{later}, due 2h"),
            ),
            (&format!("cancel mail {later}"), "cancel", "mail", 1, later),
            (&format!("cancel mail {again}"), "cancel", "mail", 1, again),
            (&format!("cancel mail {ready}"), "cancel", "mail", 1, ready),
            ("move mail other --yes", "move", "mail", 600, "to other"),
            ("purge other --yes", "purge", "other", 600, ""),
            ("topic delete other", "delete-topic", "other", 0, ""),
        ],
    );
    let before = count(&rowmq);
    let purge = "dead purge mail --cause handler --within 2h --yes";
    for command in ["dead redrive mail --all", purge, "purge mail --yes"] {
        rowmq.say(&command.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(count(&rowmq), before, "there was nothing to change");
    enqueue_one(&database).await;
    bury(&database).await;
    leave(&rowmq, &[("dead redrive mail --all", "redrive", "mail", 1, "all")]);
    bury(&database).await;
    leave(&rowmq, &[(purge, "purge-dead", "mail", 1, "cause handler, within 2h")]);
    enqueue_one(&database).await;
    rowmq.say(&["enqueue", "mail", "x", "--deliver", "1h"]);
    leave(&rowmq, &[("topic delete mail --purge --yes", "delete-topic", "mail", 3, "")]);
}

/// Dead-letters the ready messages of `mail`.
async fn bury(database: &TestDatabase) {
    let name = rowmq_core::TopicName::new("mail").expect("a name");
    let topic = store::topic::existing(&mut database.connect().await, &name).await.expect("there");
    let options = WorkerOptions::new(database.url().clone(), "test");
    let worker = Worker::start(options).await.expect("started");
    let claimed = worker.claim(topic.id, 10).await.expect("claimed").deliveries;
    let dead = |delivery| {
        let end = Settlement::DeadLetter { cause: DeadCause::Handler, error: "x".to_owned() };
        Settled::new(delivery, end, OnDone::Delete)
    };
    worker.settle(claimed.iter().map(dead).collect()).await.expect("settled");
    worker.stop().await.expect("stopped");
}

async fn enqueue_one(database: &TestDatabase) {
    let name = rowmq_core::TopicName::new("mail").expect("a name");
    let mut conn = database.connect().await;
    enqueue(&mut conn, &name, &NewMessage::new("x")).await.expect("enqueued");
}

#[tokio::test]
async fn every_change_of_schedules_streams_and_groups_leaves_its_entry() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    leave(
        &rowmq,
        &[
            ("topic create mail", "create-topic", "mail", 0, "queue"),
            (
                "cron set nightly mail --cron @daily --time-zone Europe/Berlin",
                "set-schedule",
                "nightly",
                0,
                "@daily Europe/Berlin, to mail",
            ),
            ("cron pause nightly", "pause-schedule", "nightly", 0, ""),
            ("cron resume nightly", "resume-schedule", "nightly", 0, ""),
            ("cron delete nightly", "delete-schedule", "nightly", 0, ""),
            (
                "topic create orders --kind stream --partitions 2",
                "create-topic",
                "orders",
                0,
                "stream, 2 partitions",
            ),
            (
                "group create orders@bill --ordered --max-attempts 4",
                "create-group",
                "orders@bill",
                0,
                "ordered, from earliest, max_attempts 4",
            ),
            (
                "group create orders@cache --broadcast",
                "create-group",
                "orders@cache",
                0,
                "broadcast, from latest",
            ),
            (
                "group set orders@bill --max-attempts 5",
                "set-group",
                "orders@bill",
                0,
                "max_attempts 5",
            ),
            (
                "group reset orders@bill --to latest --yes",
                "reset-group",
                "orders@bill",
                0,
                "to latest",
            ),
            ("topic delete orders@bill", "delete-topic", "orders@bill", 0, ""),
            ("topic delete orders@cache", "delete-topic", "orders@cache", 0, ""),
            ("topic delete orders", "delete-topic", "orders", 0, ""),
        ],
    );
}

#[tokio::test]
async fn what_is_refused_leaves_no_entry() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    for topic in ["mail", "closed"] {
        rowmq.say(&["topic", "create", topic]);
    }
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    rowmq.say(&["group", "create", "orders@bill"]);
    rowmq.say(&["topic", "access", "closed", "denied"]);
    enqueue_one(&database).await;
    let nobody = rowmq_core::MsgId::new();
    let before = count(&rowmq);
    for command in [
        "topic create mail",
        "topic create mail@x --kind stream",
        "topic set none --max-attempts 2",
        "topic set mail --dead-letter-topic none-such",
        "topic pause none",
        "topic delete none",
        "topic delete mail",
        "topic delete orders --purge --yes",
        "move mail closed --yes",
        "move mail mail --yes",
        "purge mail",
        "dead redrive closed --all",
        "dead purge mail --all",
        &format!("cancel mail {nobody}"),
        &format!("erase orders {nobody} --yes"),
        &format!("erase mail {nobody} --yes"),
        &format!("scheduled reschedule mail {nobody} --deliver 1h"),
        "cron set nightly none --cron @daily",
        "cron pause none",
        "cron delete none",
        "group create orders@bill",
        "group reset orders@bill --to 99 --yes",
        "group reset orders@bill --to latest",
        "group replay orders@none --from earliest",
        "group forget-member orders@bill a",
    ] {
        let arguments: Vec<_> = command.split(' ').collect();
        rowmq.refuse(&arguments);
        assert_eq!(count(&rowmq), before, "{command}");
    }
    rowmq.say(&["group", "replay", "orders@bill", "--from", "earliest"]);
    assert_eq!(count(&rowmq), before, "nothing was there to replay");
}

#[tokio::test]
async fn an_account_that_may_not_write_the_audit_changes_nothing() {
    let database = TestDatabase::new().await;
    let own = Rowmq::on(&database);
    own.say(&["topic", "create", "mail"]);
    own.say(&["topic", "create", "other"]);
    own.say(&["cron", "set", "nightly", "mail", "--cron", "@daily"]);
    enqueue_one(&database).await;
    bury(&database).await;
    enqueue_one(&database).await;
    let waiting = own.say(&["enqueue", "mail", "x", "--deliver", "1h"]);
    let others = TABLES.iter().filter(|table| **table != "queue_audit");
    let grants: Vec<_> =
        others.map(|table| format!("SELECT, INSERT, UPDATE, DELETE ON {{}}.{table}")).collect();
    let grants: Vec<_> = grants.iter().map(String::as_str).collect();
    let rowmq = Rowmq::at(&database.account(&grants).await);
    let all = || {
        ["topic list", "stats", "cron list", "access", "audit", "scheduled list mail"]
            .map(|command| own.json(&command.split(' ').collect::<Vec<_>>()))
            .map(|mut told| {
                // This field changes by itself.
                for row in told.as_array_mut().into_iter().flatten() {
                    if let Some(row) = row.as_object_mut() {
                        row.remove("oldest_age_ms");
                    }
                }
                told
            })
    };
    let before = all();
    for command in [
        "topic create new",
        "topic set mail --max-attempts 2",
        "topic pause mail",
        "topic delete mail --purge --yes",
        "access denied",
        "move mail other --yes",
        "purge mail --yes",
        "dead redrive mail --all",
        &format!("cancel mail {}", waiting.trim()),
        "cron pause nightly",
        "cron set nightly mail --cron @hourly",
    ] {
        let arguments: Vec<_> = command.split(' ').collect();
        let sentence = rowmq.refuse(&arguments);
        assert!(sentence.starts_with("A change is made only with its entry in the audit ("));
        assert!(sentence.contains("INSERT command denied to user"), "{command}: {sentence}");
        assert!(
            sentence.ends_with(
                "grant the account SELECT, INSERT, UPDATE (messages) ON queue_audit, as \
                 `rowmq grants operator` shows."
            ),
            "{command}: {sentence}"
        );
        assert_eq!(all(), before, "{command}");
    }
}

/// The messages that are gone are always those that the audit has counted: checked while they are
/// purged, and after the command was killed half-way.
#[tokio::test]
async fn a_purge_that_is_killed_has_told_what_it_has_deleted() {
    const N: i64 = 8_000;
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let messages: Vec<_> = (0..N).map(|n| NewMessage::new(n.to_string())).collect();
    let mut conn = database.connect().await;
    enqueue_all(&mut conn, &topic.name, &messages).await.expect("enqueued");
    let rowmq = Rowmq::on(&database);
    let mut purge = rowmq.command(&["purge", "mail", "--yes"]).spawn().expect("it starts");
    let mut told = 0;
    until("some are deleted", async || {
        let (left, counted) = left_and_counted(&mut conn).await;
        assert_eq!(left + counted, N);
        told = counted;
        counted > 0
    })
    .await;
    purge.kill().expect("killed");
    purge.wait().expect("it has ended");
    let (left, counted) = left_and_counted(&mut conn).await;
    assert_eq!((left + counted, counted >= told), (N, true));
}

/// Returns how many messages are left and how many the audit has counted, at one moment.
async fn left_and_counted(conn: &mut AsyncMysqlConnection) -> (i64, i64) {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        left_there: i64,
        #[diesel(sql_type = BigInt)]
        counted: i64,
    }
    let look = "SELECT (SELECT COUNT(*) FROM queue_message) AS left_there, \
         CAST((SELECT COALESCE(SUM(messages), 0) FROM queue_audit) AS SIGNED) AS counted";
    let rows: Vec<Row> = sql_query(look).load(conn).await.expect("read");
    (rows[0].left_there, rows[0].counted)
}

#[tokio::test]
async fn the_audit_is_a_table_for_people_page_by_page() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.say(&["audit"]).starts_with("Nothing has been changed by hand"));
    let run = |name: &str, command: &str| {
        let mut command = rowmq.command(&command.split(' ').collect::<Vec<_>>());
        let status = command.env("SUDO_USER", name).env("USER", "root").status().expect("it runs");
        assert!(status.success());
    };
    run("ada", "topic create mail");
    run("\u{1b}[31mgrace", "topic pause mail");
    run("", "topic resume mail");
    let table = rowmq.say(&["audit"]);
    assert!(table.starts_with("NO  WHEN"), "{table}");
    let rows = cells(&table);
    let who: Vec<_> = rows.iter().map(|row| row[2]).collect();
    assert_eq!(who, ["root", "\\u{1b}[31mgrace", "ada"]);
    let mut conn = database.connect().await;
    let account = audit::account(&mut conn).await.expect("read");
    let origin = rows[0][3].strip_prefix("rowmq@").expect("the program and its host");
    assert_eq!(origin.rsplit_once(" as ").expect("the account").1, account);
    assert_eq!(rows[0][4..], ["set-access", "mail", "0", "read-write"]);
    let first = rowmq.json(&["audit", "--limit", "2"]);
    let last = first[1]["no"].as_u64().expect("a number").to_string();
    let rest = rowmq.json(&["audit", "--before", &last]);
    assert_eq!(
        (rest.as_array().map(Vec::len), &rest[0]["action"]),
        (Some(1), &"create-topic".into())
    );
    assert_eq!(rest[0]["name"], "ada");
    assert!(rest[0]["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{rest}");
    rowmq.run(&["audit", "-n", "0"]).refused(2);
}
