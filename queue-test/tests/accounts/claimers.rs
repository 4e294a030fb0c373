//! What the SQL contract promises to sessions that may call its procedures and nothing else.

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::account::Account;
use rowmq_core::migration;
use rowmq_core::model::{OffsetSpec, Sampling, TopicSettings};
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_test::{TestDatabase, until};

use crate::callers::{ENQUEUE, place, refused, row, run, session};
use crate::process::Process;

const LEFT: &str = "SELECT COUNT(*) FROM queue_message";

/// Claims one message; returns the name of its delivery.
async fn claim(conn: &mut Conn) -> Option<String> {
    let row: Option<mysql_async::Row> =
        conn.query_first("CALL queue_claim('t', 1, NULL)").await.expect("claimed");
    row.map(|row| row.get("delivery").expect("a delivery"))
}

fn settle(delivery: &str) -> String {
    format!("CALL queue_settle('{delivery}', 'ack', NULL, NULL)")
}

#[tokio::test]
async fn a_message_by_sql_exists_exactly_if_its_transaction_commits() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    for (end, stored) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        run(&mut caller, "START TRANSACTION").await;
        run(&mut caller, ENQUEUE).await;
        assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
        run(&mut caller, end).await;
        assert_eq!(row::<u64>(&mut own, LEFT).await, stored);
    }
}

/// Finding P8.
#[tokio::test]
async fn an_enqueue_in_autocommit_is_whole_or_not_at_all() {
    let database = TestDatabase::new().await;
    let day = std::time::Duration::from_secs(86_400);
    let settings =
        TopicSettings { trace: Sampling::ALL, searchable: Some(day), ..TopicSettings::default() };
    let topic = database.topic_with("t", &settings).await;
    let mut own = session(database.url()).await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let call = ENQUEUE.replace("NULL", r#"'{"id":"019387e0-0000-7000-8000-000000000001"}'"#);
    // Another session locks its place in the lookup.
    run(&mut own, "START TRANSACTION").await;
    let lock = format!(
        "INSERT INTO queue_lookup (topic_id, msg_id, enqueued_at) \
         VALUES ({}, UNHEX('019387e0000070008000000000000001'), UTC_TIMESTAMP(6))",
        topic.id.0
    );
    run(&mut own, &lock).await;
    run(&mut caller, "SET innodb_lock_wait_timeout = 1").await;
    assert_eq!(refused(&mut caller, &call).await, 1205);
    run(&mut own, "ROLLBACK").await;
    let stored = "SELECT (SELECT COUNT(*) FROM queue_message), \
                  (SELECT COUNT(*) FROM queue_lookup), (SELECT COUNT(*) FROM queue_trace)";
    assert_eq!(row::<(u64, u64, u64)>(&mut own, stored).await, (0, 0, 0));
    run(&mut caller, &call).await;
    assert_eq!(row::<(u64, u64, u64)>(&mut own, stored).await, (1, 1, 1));
    // The caller's transaction stays open, and a COMMIT stores nothing of the failed call.
    run(&mut own, "START TRANSACTION").await;
    run(&mut own, &lock.replace("000001", "000002")).await;
    run(&mut caller, "START TRANSACTION").await;
    run(&mut caller, ENQUEUE).await;
    assert_eq!(refused(&mut caller, &call.replace("000001", "000002")).await, 1205);
    run(&mut caller, "COMMIT").await;
    run(&mut own, "ROLLBACK").await;
    assert_eq!(row::<(u64, u64, u64)>(&mut own, stored).await, (2, 2, 2));
}

#[tokio::test]
async fn a_refusal_changes_nothing_and_leaves_the_transaction_open() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    run(&mut caller, "START TRANSACTION").await;
    run(&mut caller, ENQUEUE).await;
    for (call, number) in [
        (ENQUEUE.replace("'t'", "'other'"), 31001),
        (ENQUEUE.replace("'m'", "NULL"), 31003),
        (ENQUEUE.replace("NULL", r#"'{"priority":10}'"#), 31005),
        (ENQUEUE.replace("NULL", r#"'{"id":"no id"}'"#), 31006),
    ] {
        assert_eq!(refused(&mut caller, &call).await, number, "{call}");
    }
    assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
    run(&mut caller, "COMMIT").await;
    assert_eq!(row::<u64>(&mut own, LEFT).await, 1);
}

#[tokio::test]
async fn a_key_is_held_by_one_message_however_often_it_is_asked_for() {
    let (database, mut own) = place().await;
    let mut keyed = session(&database.account_of(Account::Keyed).await).await;
    let hold = r#"CALL queue_send_unique('t', 'm', '{"unique":"k"}')"#;
    assert_eq!(refused(&mut keyed, hold).await, 31013);
    for duplicate in [0, 1, 1] {
        run(&mut keyed, "START TRANSACTION").await;
        run(&mut keyed, hold).await;
        assert_eq!(row::<u8>(&mut keyed, "SELECT @queue_duplicate").await, duplicate);
        run(&mut keyed, "COMMIT").await;
    }
    assert_eq!(row::<u64>(&mut own, LEFT).await, 1);
}

#[tokio::test]
async fn the_work_of_a_claimer_and_its_ack_commit_together() {
    let (database, mut own) = place().await;
    let mut claimer = session(&database.account_of(Account::Claimer).await).await;
    run(&mut own, "CREATE TABLE work (id INT)").await;
    let user: String = row(&mut claimer, "SELECT SUBSTRING_INDEX(USER(), '@', 1)").await;
    run(&mut own, &format!("GRANT INSERT ON work TO '{user}'@'%'")).await;
    run(&mut own, ENQUEUE).await;
    let delivery = claim(&mut claimer).await.expect("a message");
    let both = "SELECT (SELECT COUNT(*) FROM queue_message), (SELECT COUNT(*) FROM work)";
    for (end, left) in [("ROLLBACK", (1, 0)), ("COMMIT", (0, 1))] {
        run(&mut claimer, "START TRANSACTION").await;
        run(&mut claimer, "INSERT INTO work VALUES (1)").await;
        run(&mut claimer, &settle(&delivery)).await;
        run(&mut claimer, end).await;
        assert_eq!(row::<(u64, u64)>(&mut own, both).await, left, "{end}");
    }
}

#[tokio::test]
async fn a_claimer_reads_only_what_it_claims_and_settles_only_what_it_holds() {
    let (database, mut own) = place().await;
    let mut claimer = session(&database.account_of(Account::Claimer).await).await;
    let mut other = session(&database.account_of(Account::Claimer).await).await;
    run(&mut own, ENQUEUE).await;
    let delivery = claim(&mut claimer).await.expect("a message");
    assert_eq!(claim(&mut other).await, None);
    assert_eq!(refused(&mut other, &settle(&delivery)).await, 31015);
    for sql in ["SELECT body FROM queue_message", "SELECT name FROM queue_topic"] {
        assert_eq!(refused(&mut claimer, sql).await, 1142, "{sql}");
    }
    assert_eq!(refused(&mut claimer, ENQUEUE).await, 1370);
    run(&mut claimer, &settle(&delivery)).await;
    assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
}

#[tokio::test]
async fn a_claimer_keeps_checkpoints_of_what_it_holds_for_its_next_delivery() {
    let (database, mut own) = place().await;
    let mut first = session(&database.account_of(Account::Claimer).await).await;
    let mut second = session(&database.account_of(Account::Claimer).await).await;
    run(&mut own, ENQUEUE).await;
    let delivery = claim(&mut first).await.expect("a message");
    let save = format!("CALL queue_checkpoint('{delivery}', 'page 7', 40)");
    assert_eq!(refused(&mut second, &save).await, 31015);
    run(&mut first, &save).await;
    run(&mut first, &settle(&delivery).replace("ack", "release")).await;
    let delivery = claim(&mut second).await.expect("a message");
    let last = format!("CALL queue_last_checkpoint('{delivery}')");
    assert_eq!(refused(&mut first, &last).await, 31015);
    let kept: mysql_async::Row = second.query_first(&last).await.expect("read").expect("kept");
    assert_eq!(kept.get::<String, _>("state").as_deref(), Some("page 7"));
    run(&mut second, &settle(&delivery)).await;
    assert_eq!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_checkpoint").await, 0);
}

/// Finding SEC-H1.
#[tokio::test]
async fn a_claimer_whose_clock_is_set_is_refused() {
    let (database, mut own) = place().await;
    let mut claimer = session(&database.account_of(Account::Claimer).await).await;
    run(&mut own, ENQUEUE).await;
    let delivery = claim(&mut claimer).await.expect("a message");
    run(&mut claimer, "SET timestamp = UNIX_TIMESTAMP() + 3600").await;
    let settle = settle(&delivery);
    let save = format!("CALL queue_checkpoint('{delivery}', 'page 7', NULL)");
    let calls = ["CALL queue_claim('t', 1, NULL)", &settle, "CALL queue_beat()", &save];
    for call in calls.into_iter().chain(["CALL queue_leave()"]) {
        assert_eq!(refused(&mut claimer, call).await, 31026, "{call}");
    }
    run(&mut claimer, "SET timestamp = DEFAULT").await;
    run(&mut claimer, "CALL queue_beat()").await;
    run(&mut claimer, &save).await;
    run(&mut claimer, &settle).await;
    assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
}

#[tokio::test]
async fn a_claimer_without_a_row_for_the_restricted_verb_claims_nothing() {
    let (database, mut own) = place().await;
    database.topic("u").await;
    let mut claimer = session(&database.account_of(Account::Claimer).await).await;
    let user: String = row(&mut claimer, "SELECT SUBSTRING_INDEX(USER(), '@', 1)").await;
    run(&mut own, ENQUEUE).await;
    run(&mut own, &format!("INSERT INTO queue_access VALUES ('claim', '{user}', 'u')")).await;
    assert_eq!(refused(&mut claimer, "CALL queue_claim('t', 1, NULL)").await, 31028);
    run(&mut claimer, "CALL queue_claim('u', 1, NULL)").await;
    run(&mut own, "UPDATE queue_access SET topic = '*'").await;
    assert!(claim(&mut claimer).await.is_some());
}

/// Finding SEC-H2: `GET_LOCK` needs no privilege. Another login held every lock name it could
/// guess, and no process swept; it held the lock of a dead worker, which then counted as alive for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_takes_name_locks_holds_up_no_rescue() {
    const CLAIMED: &str = "SELECT COUNT(*) FROM queue_message WHERE worker_id > 0";
    let (database, mut own) = place().await;
    run(&mut own, ENQUEUE).await;
    let mut owner = session(&database.account_of(Account::Claimer).await).await;
    assert!(claim(&mut owner).await.is_some());
    let mut stranger = session(&database.account_of(Account::Caller).await).await;
    for office in ["sweep", "migrate"] {
        let guess = format!("CONCAT('queue:{office}:', LEFT(SHA2(DATABASE(), 256), 40))");
        assert_eq!(row::<u8>(&mut stranger, &format!("SELECT GET_LOCK({guess}, 0)")).await, 1);
    }
    let name = "SELECT CONCAT('queue:', LOWER(HEX(instance))) FROM queue_worker";
    let name = row::<String>(&mut own, name).await;
    drop(owner);
    // The login waits for the worker's lock, which the server frees when the session ends.
    assert_eq!(row::<u8>(&mut stranger, &format!("SELECT GET_LOCK('{name}', 60)")).await, 1);
    let janitor = database.account_of(Account::Janitor).await;
    let _janitor = Process::start(&janitor, "rowmq-janitor", &[]);
    let mut claimed = async || row::<u64>(&mut own, CLAIMED).await;
    until("taken back", async || claimed().await == 0).await;
    assert_eq!(migration::run(database.url()).await.expect("migrated"), []);
}

/// Returns whether the connection stands in line for a name lock. The table PROCESSLIST would fail
/// on MySQL (3854) while any session runs a statement that is not UTF-8.
async fn waits_for_a_lock(own: &mut Conn, id: u32) -> bool {
    let rows: Vec<mysql_async::Row> = own.query("SHOW PROCESSLIST").await.expect("listed");
    rows.iter().any(|row| {
        let state: Option<Option<String>> = row.get("State");
        row.get::<u64, _>("Id") == Some(id.into())
            && state.flatten().as_deref() == Some("User lock")
    })
}

#[tokio::test]
async fn claimers_keep_the_limits_of_a_topic() {
    let (database, mut own) = place().await;
    let account = database.account_of(Account::Claimer).await;
    let (mut one, mut other) = (session(&account).await, session(&account).await);
    for limits in [
        "max_running = 1",
        "max_running = NULL, max_running_per_key = 1",
        "max_running = 1, rate_messages = 1000, rate_period_ms = 1000",
    ] {
        run(&mut own, &format!("UPDATE queue_topic SET {limits}")).await;
        for _ in 0..2 {
            run(&mut own, &ENQUEUE.replace("NULL", r#"'{"key":"k"}'"#)).await;
        }
        let first = claim(&mut one).await.expect("there is room");
        assert_eq!(claim(&mut other).await, None, "{limits}");
        run(&mut one, &settle(&first)).await;
        let second = claim(&mut other).await.expect("there is room again");
        run(&mut other, &settle(&second)).await;
    }
    assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
}

#[tokio::test]
async fn a_claimer_consumes_groups_of_a_stream() {
    let (database, mut own) = place().await;
    let mut conn = database.connect().await;
    let name = |name: &str| name.parse().expect("a name");
    let settings = TopicSettings::default();
    create_stream(&mut conn, &name("s"), 2, &settings).await.expect("the stream is new");
    let account = database.account_of(Account::Claimer).await;
    for (group, ordered) in [("s@g", false), ("s@o", true)] {
        let group_name = name(group);
        create_group(&mut conn, &group_name, ordered, OffsetSpec::Latest, &settings)
            .await
            .expect("the group is new");
        for n in 0..6 {
            let send = format!("CALL queue_send('s', '{n}', '{{\"key\":\"k\"}}')");
            run(&mut own, &send).await;
        }
        let (mut one, mut other) = (session(&account).await, session(&account).await);
        let (mut got, mut held) = (Vec::new(), None);
        until("all are handled", async || {
            for conn in [&mut one, &mut other] {
                let call = format!("CALL queue_claim('{group}', 1, NULL)");
                let row: Option<mysql_async::Row> = conn.query_first(call).await.expect("claimed");
                let Some(row) = row else { continue };
                let body = String::from_utf8(row.get("body").expect("a body")).expect("UTF-8");
                if held.is_none() {
                    // An answer that never came: it is claimed again.
                    held = Some(body);
                    continue;
                }
                run(conn, &settle(&row.get::<String, _>("delivery").expect("a delivery"))).await;
                got.push(body);
            }
            got.len() == 6
        })
        .await;
        if !ordered {
            got.sort_unstable();
        }
        assert_eq!(got, ["0", "1", "2", "3", "4", "5"], "{group}");
    }
    assert_eq!(row::<u64>(&mut own, LEFT).await, 0);
    let caller = database.account_of(Account::Caller).await;
    let claim = "CALL queue_claim('s@g', 1, NULL)";
    assert_eq!(refused(&mut session(&caller).await, claim).await, 1370);
}

/// Fault F42: a login that waits for a worker's lock gets it as soon as the worker loses its
/// session, and keeps it. The worker can never again prove that its old session has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_lock_another_login_has_taken_registers_again() {
    let (database, mut own) = place().await;
    let janitor = database.account_of(Account::Janitor).await;
    let _janitor = Process::start(&janitor, "rowmq-janitor", &["--metrics", "0"]);
    let consumer = database.account_of(Account::Consumer).await;
    let _consumer = Process::consumer(&consumer, "t", &[]);
    let login = database.account_of(Account::Caller).await;
    let (mut strangers, mut former) = (Vec::new(), 0);
    for (session_of, suffix) in [("life_conn_id", ""), ("conn_id", ":work")] {
        let newer = format!("state = 'alive' AND conn_id <> 0 AND id > {former}");
        let newer = format!("FROM queue_worker WHERE {newer}");
        let registered = format!("SELECT COUNT(*) {newer}");
        until("registered", async || row::<u64>(&mut own, &registered).await == 1).await;
        former = row::<u64>(&mut own, &format!("SELECT id {newer}")).await;
        let worker = format!("FROM queue_worker WHERE id = {former}");
        let name = format!("SELECT CONCAT('queue:', LOWER(HEX(instance)), '{suffix}') {worker}");
        let name = row::<String>(&mut own, &name).await;
        let lost = row::<u64>(&mut own, &format!("SELECT {session_of} {worker}")).await;
        let mut stranger = session(&login).await;
        let waiting = format!("SELECT GET_LOCK('{name}', 60)");
        let id = stranger.id();
        let line = tokio::spawn(async move {
            assert_eq!(row::<u8>(&mut stranger, &waiting).await, 1);
            stranger
        });
        until("in line", async || waits_for_a_lock(&mut own, id).await).await;
        run(&mut own, &format!("KILL {lost}")).await;
        strangers.push(line.await.expect("the stranger has the lock"));
        // The session that it still has could handle the message.
        let newer = format!("SELECT COUNT(*) FROM queue_worker WHERE id > {former}");
        until("registered again", async || row::<u64>(&mut own, &newer).await == 1).await;
        run(&mut own, ENQUEUE).await;
        until("handled", async || row::<u64>(&mut own, LEFT).await == 0).await;
        let holder = row::<Option<u32>>(&mut own, &format!("SELECT IS_USED_LOCK('{name}')")).await;
        assert_eq!(holder, strangers.last().map(Conn::id));
    }
}
