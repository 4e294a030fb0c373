//! Every process under its own account, which holds the grants of its file in `ops/deploy/grants`
//! and no others.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests: what cannot be set up has failed"
)]

mod callers;
mod claimers;
mod process;
mod upgrade;

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::account::Account;
use rowmq_core::connection::{ServerUrl, Session, transaction};
use rowmq_core::doctor::{Verdict, examine_as};
use rowmq_core::store::process_list::{self, Visibility};
use rowmq_core::store::{duty, inspect, worker};
use rowmq_core::{
    AsyncMysqlConnection, NewMessage, TopicName, Unique, cancel, enqueue, reschedule,
};
use rowmq_test::{PATIENCE, TestDatabase, connected, session_at, until};

use process::{Process, rowmq, run};

fn name(text: &str) -> TopicName {
    TopicName::new(text).expect("a name")
}

/// One database in which each process has its own account.
struct Fixture {
    database: TestDatabase,
    operator: ServerUrl,
    producer: ServerUrl,
    consumer: ServerUrl,
    janitor: ServerUrl,
}

impl Fixture {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        Self {
            operator: database.account_of(Account::Operator).await,
            producer: database.account_of(Account::Producer).await,
            consumer: database.account_of(Account::Consumer).await,
            janitor: database.account_of(Account::Janitor).await,
            database,
        }
    }

    /// Creates topics with every setting that makes processes touch more tables.
    fn topics(&self) {
        for line in [
            "topic create failed",
            "topic set failed --max-attempts 5",
            "topic pause failed",
            "topic resume failed",
            "topic create mail --retry 'exponential 100ms..100ms' --max-attempts 3 --keep-done 1h \
             --ledger-window 1h --searchable on --dedupe-window 1h --trace all --max-depth 100000 \
             --max-bytes 1GiB",
            "topic create repairs --dead-letter-topic failed --max-attempts 1 --trace all",
            "topic create --kind stream orders --partitions 2 --trace all --retention 1s",
            "group create orders@billing",
            "group create orders@strict --ordered",
            "group create orders@cache --broadcast",
            "cron set tick failed --cron '* * * * * *' --missed all --body tick",
        ] {
            rowmq(&self.operator, line);
        }
    }

    /// Sends messages of every kind, as the library and the program do.
    async fn send(&self) {
        let mut conn = connected(&self.producer).await;
        let id = rowmq_core::MsgId::new();
        for message in [
            NewMessage::new("fine").with_msg_id(id).with_biz_id("b"),
            NewMessage::new("fine").with_msg_id(id).with_biz_id("b"),
            NewMessage::new("fine").with_biz_id("b"),
            NewMessage::new("retry").with_key("k").with_header("a", "b"),
            NewMessage::new("dead"),
            NewMessage::new("fine").with_unique(Unique::until_done("once")),
            NewMessage::new("fine").with_unique(Unique::replacing("twice")),
            NewMessage::new("fine").with_unique(Unique::replacing("twice")),
            NewMessage::new("later")
                .with_delay(Duration::from_secs(1))
                .with_unique(Unique::debounced("calm", Some(Duration::from_secs(2)))),
        ] {
            send(&mut conn, "mail", &message).await;
        }
        send(&mut conn, "repairs", &NewMessage::new("retry")).await;
        send(&mut conn, "orders", &NewMessage::new("in the inbox").with_key("k")).await;
        let late = NewMessage::new("late").with_delay(Duration::from_secs(3600));
        let waiting = send(&mut conn, "mail", &late).await;
        let soon = rowmq_core::Moment::After(Duration::from_secs(1800));
        reschedule(&mut conn, &name("mail"), waiting, soon).await.expect("rescheduled");
        assert!(cancel(&mut conn, &name("mail"), waiting).await.expect("cancelled"));
        run(&self.producer, "rowmq-producer", &["send", "mail", "fine"]);
        run(&self.producer, "rowmq-producer", &["send", "orders", "appended"]);
        run(&self.producer, "rowmq-producer", &["send", "orders", "retry"]);
    }

    async fn number(&self, sql: &str) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Row {
            #[diesel(sql_type = diesel::sql_types::BigInt)]
            n: i64,
        }
        let mut conn = self.database.connect().await;
        let query = diesel::sql_query(format!("SELECT CAST(({sql}) AS SIGNED) AS n"));
        let rows: Vec<Row> =
            diesel_async::RunQueryDsl::load(query, &mut conn).await.expect("a number");
        rows[0].n
    }

    /// Returns whether every message has reached its end, and every group the end of the log.
    async fn is_handled(&self) -> bool {
        let open = "SELECT COUNT(*) FROM queue_message m JOIN queue_topic t ON t.id = m.topic_id \
             WHERE t.name <> 'failed'";
        let later = "SELECT COUNT(*) FROM queue_scheduled";
        let ahead = "SELECT COUNT(*) FROM queue_cursor c JOIN queue_topic t ON t.id = c.group_id \
             JOIN queue_partition p ON p.topic_id = t.stream_id \
             AND p.partition_no = c.partition_no WHERE c.next_offset < p.next_offset";
        let claimed = "SELECT COUNT(*) FROM queue_range";
        for sql in [open, later, ahead, claimed] {
            if self.number(sql).await > 0 {
                return false;
            }
        }
        true
    }
}

async fn send(
    conn: &mut AsyncMysqlConnection,
    topic: &str,
    message: &NewMessage,
) -> rowmq_core::MsgId {
    let sent = transaction(conn, "send", async |conn| enqueue(conn, &name(topic), message).await);
    sent.await.unwrap_or_else(|error| panic!("{topic}: {error}")).msg_id()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_does_all_its_work_under_its_own_account() {
    let place = Fixture::new().await;
    place.topics();
    place.send().await;
    // Without a janitor, consumers stand in for it.
    let mut consumers = Vec::new();
    for topic in ["mail", "repairs", "orders@billing", "orders@strict"] {
        consumers.push(Process::consumer(&place.consumer, topic, &[]));
    }
    let member = ["--member", "a"];
    consumers.push(Process::consumer(&place.consumer, "orders@cache", &member));
    until("all of it is handled", async || place.is_handled().await).await;
    for body in ["tick", "retry"] {
        let came = format!("SELECT COUNT(*) FROM queue_message WHERE body = '{body}'");
        until("a tick has come, and what became of a dead letter", async || {
            place.number(&came).await > 0
        })
        .await;
    }
    // The victim holds messages when it is killed; a janitor with its own account takes them back.
    rowmq(&place.operator, "topic create slow");
    let mut victim = Process::victim(&place.consumer);
    let mut conn = connected(&place.producer).await;
    send(&mut conn, "slow", &NewMessage::new("sleep")).await;
    let claimed = "SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0";
    until("it holds the message", async || place.number(claimed).await == 1).await;
    consumers.clear();
    let janitor = Process::start(&place.janitor, "rowmq-janitor", &["--metrics", "0"]);
    let mut own = place.database.connect().await;
    until("the janitor sweeps", async || {
        let duties = duty::all(&mut own).await.expect("duties");
        ["rescue", "watch", "weigh", "depths", "retain", "prune"].into_iter().all(|name| {
            duties.iter().any(|duty| duty.name == name && !duty.holder.contains("worker"))
        })
    })
    .await;
    victim.kill();
    until("the message is taken back", async || place.number(claimed).await == 0).await;
    for process in [&victim, &janitor] {
        assert_eq!(process.denied(), Vec::<String>::new());
    }
    let ended = worker::latest(&mut own, 1).await.expect("workers");
    assert_eq!(ended[0].end_reason.as_deref(), Some("both sessions left the process list"));
    rowmq(&place.operator, "purge failed --yes");
    let audit = rowmq(&place.operator, "audit -n 1");
    assert!(audit.contains("purge"), "the entry counts what was purged: {audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_missing_and_nothing_beyond_in_any_account() {
    let database = TestDatabase::new().await;
    for account in Account::ALL {
        let url = database.account_of(account).await;
        let report = examine_as(&url, Some(account)).await.expect("a report");
        let failed: Vec<_> = report.failures().collect();
        assert!(failed.is_empty(), "{account}: {failed:?}");
        let grants = report.checks.iter().find(|check| check.name == "grants").expect("checked");
        assert_eq!(grants.verdict, Verdict::Ok, "{account}: {}", grants.detail);
        // One grant fewer, and one more.
        let other =
            if account == Account::Dashboard { Account::Caller } else { Account::Dashboard };
        let report = examine_as(&url, Some(other)).await.expect("a report");
        let grants = report.checks.iter().find(|check| check.name == "grants").expect("checked");
        let lacks = matches!(
            account,
            Account::Producer
                | Account::Caller
                | Account::Keyed
                | Account::Claimer
                | Account::Dashboard
        );
        let wanted = if lacks { Verdict::Failure } else { Verdict::Warning };
        assert_eq!(grants.verdict, wanted, "{account} as {other}: {}", grants.detail);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dashboard_sees_every_number_and_no_body() {
    let place = Fixture::new().await;
    place.topics();
    place.send().await;
    let dashboard = place.database.account_of(Account::Dashboard).await;
    for line in [
        "stats",
        "stats --largest",
        "topic list",
        "topic show mail",
        "group list",
        "group show orders@billing",
        "group show orders@cache",
        "workers --all",
        "janitor",
        "access",
    ] {
        rowmq(&dashboard, line);
    }
    let mut conn = connected(&dashboard).await;
    let mail = rowmq_core::store::topic::existing(&mut conn, &name("mail")).await.expect("read");
    inspect::depth(&mut conn, mail.id).await.expect("a depth");
    let refused = inspect::peek(&mut conn, mail.id, 1).await.expect_err("bodies");
    assert_eq!(refused.fault(), rowmq_core::Fault::Denied);
    for write in ["DELETE FROM queue_message", "UPDATE queue_topic SET claim_paused = 1"] {
        assert!(conn.batch_execute(write).await.is_err(), "{write}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_migrator_makes_the_tables_and_a_caller_calls_by_its_rights() {
    let url = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
    let server = ServerUrl::new(&url).expect("a URL");
    let empty = TestDatabase::empty_on(&server).await;
    let migrator = empty.account_of(Account::Migrator).await;
    rowmq(&migrator, "migrate");
    let operator = empty.account_of(Account::Operator).await;
    rowmq(&operator, "topic create mail");
    let caller = empty.account_of(Account::Keyed).await;
    let mut conn = connected(&caller).await;
    let calls = r#"CALL queue_send('mail', 'a', NULL);
        START TRANSACTION;
        CALL queue_send_unique('mail', 'b', '{"unique":"k"}');
        COMMIT;
        CALL queue_send('mail', 'c', '{"deliver_in":"1h"}');
        CALL queue_cancel('mail', @queue_msg_id)"#;
    conn.batch_execute(calls).await.expect("called");
    let mut own = empty.connect().await;
    let mail = rowmq_core::store::topic::existing(&mut own, &name("mail")).await.expect("read");
    let depth = inspect::depth(&mut own, mail.id).await.expect("a depth");
    assert_eq!((depth.unsettled, depth.scheduled), (2, 0));
    assert!(conn.batch_execute("SELECT * FROM queue_message").await.is_err());
    rowmq(&migrator, "migrate");
}

/// What the documentation promises of each account that an attacker gets hold of.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_cannot_go_beyond_its_file() {
    let place = Fixture::new().await;
    let caller = place.database.account_of(Account::Caller).await;
    let other = TestDatabase::new().await;
    let elsewhere = format!("SELECT * FROM {}.queue_topic", other.name());
    let console = place.database.account_of(Account::Console).await;
    let cases = [
        (&console, vec!["UPDATE queue_audit SET actor = 'x'", "DELETE FROM queue_audit"]),
        (&caller, vec!["SELECT id FROM queue_topic", "DELETE FROM queue_message"]),
        (
            &place.producer,
            vec![
                "SELECT body FROM queue_dead",
                "SELECT body FROM queue_log",
                "DELETE FROM queue_log",
                "UPDATE queue_topic SET body_limit = 1",
                "INSERT INTO queue_duty (name) VALUES ('x')",
            ],
        ),
        (
            &place.consumer,
            vec![
                "DELETE FROM queue_topic",
                "DELETE FROM queue_dead",
                "UPDATE queue_log SET body = ''",
                "INSERT INTO queue_schedule (name) VALUES ('x')",
                "UPDATE queue_switch SET claim_paused = 1",
            ],
        ),
        (
            &place.janitor,
            vec!["DELETE FROM queue_topic", "INSERT INTO queue_worker (version) VALUES ('x')"],
        ),
        (
            &place.operator,
            vec![
                "DROP TABLE queue_log",
                "GRANT SELECT ON queue_log TO a@b",
                "UPDATE queue_audit SET actor = 'x'",
                "DELETE FROM queue_audit",
            ],
        ),
    ];
    for (url, statements) in cases {
        let mut conn = connected(url).await;
        let all = statements.into_iter().chain([
            elsewhere.as_str(),
            "CREATE TABLE queue_more (id INT)",
            "SELECT * FROM mysql.user",
        ]);
        for statement in all {
            assert!(conn.batch_execute(statement).await.is_err(), "{statement}");
        }
    }
}

async fn visibility(url: &ServerUrl) -> (Session, Visibility) {
    let mut session = session_at(url, PATIENCE).await;
    let look = async |conn: &mut _| process_list::visibility(conn).await;
    let visibility = session.call("look around", look).await.expect("visibility");
    (session, visibility)
}

/// Without PROCESS the janitor sees the ids of connections in the view, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_view_of_connections_stands_in_for_process() {
    let place = Fixture::new().await;
    let janitor = place.janitor.expose().to_owned();
    let user = janitor.trim_start_matches("mysql://").split(':').next().expect("a user").to_owned();
    let mut own = place.database.connect().await;
    own.batch_execute(&format!("REVOKE PROCESS ON *.* FROM '{user}'@'%'")).await.expect("revoked");
    let (mut session, seen) = visibility(&place.janitor).await;
    assert!(!seen.process);
    let mut through = async || {
        let look = async |conn: &mut _| process_list::through_view(conn, &seen).await;
        session.call("look", look).await.expect("read")
    };
    assert_eq!(through().await, None, "there is no view yet");
    let definer = format!("{user}_v");
    let file = include_str!("../../../ops/deploy/grants/process-list.sql")
        .replace("queue_process_list", &definer)
        .replace("'queue_janitor'", &format!("'{user}'"));
    let statements: String = file.lines().filter(|line| !line.starts_with("--")).collect();
    let is_ours = |text: &&str| !text.trim().is_empty() && !text.contains("queue_consumer");
    for statement in statements.split(';').filter(is_ours) {
        own.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let (_stranger, stranger) = visibility(place.database.url()).await;
    let listed = through().await.expect("the view proves itself");
    assert!(listed.contains(&seen.conn) && listed.contains(&stranger.conn));
    let report = examine_as(&place.janitor, Some(Account::Janitor)).await.expect("a report");
    let check = report.checks.iter().find(|check| check.name == "process list").expect("checked");
    assert_eq!(check.verdict, Verdict::Ok, "{}", check.detail);
    // The janitor finds a killed consumer by its connections, not by its silence.
    rowmq(&place.operator, "topic create slow");
    let janitor = Process::start(&place.janitor, "rowmq-janitor", &["--metrics", "0"]);
    let mut victim = Process::victim(&place.consumer);
    let alive = "SELECT COUNT(*) FROM queue_worker WHERE state = 'alive' AND conn_id <> 0";
    until("it is there", async || place.number(alive).await == 1).await;
    victim.kill();
    until("it is declared dead", async || place.number(alive).await == 0).await;
    let ended = worker::latest(&mut own, 1).await.expect("workers");
    assert_eq!(ended[0].end_reason.as_deref(), Some("both sessions left the process list"));
    assert_eq!(janitor.denied(), Vec::<String>::new());
    // A view whose definer sees only its own connections proves nothing.
    let blind = format!(
        "REVOKE /*!80000 SELECT ON performance_schema.threads */ /*M!100600 PROCESS ON *.* */ \
         FROM '{definer}'@'localhost'"
    );
    own.batch_execute(&blind).await.expect("revoked");
    assert_eq!(through().await, None);
    own.batch_execute(&format!("DROP USER '{definer}'@'localhost'")).await.expect("dropped");
}
