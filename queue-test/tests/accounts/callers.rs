//! What programs can and cannot do if they may only call the enqueue procedures.

use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Opts, OptsBuilder};
use rowmq_core::account::Account;
use rowmq_core::connection::{ServerUrl, transaction};
use rowmq_core::model::{Sampling, TopicSettings};
use rowmq_core::{NewMessage, TopicName, Unique, enqueue};
use rowmq_test::{TestDatabase, connected};

pub(crate) const ENQUEUE: &str = "CALL queue_send('t', 'm', NULL)";
const SEND_ALL: &str = r#"CALL queue_send_all('t', '[{"body":"m"},{"body":"m"}]')"#;
const HOLD: &str = r#"CALL queue_send_unique('t', 'm', '{"unique":"k","unique_for":"1h"}')"#;

pub(crate) async fn session(url: &ServerUrl) -> Conn {
    let opts = Opts::from_url(url.expose()).expect("a URL");
    Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await.expect("a session")
}

pub(crate) async fn run(conn: &mut Conn, sql: &str) {
    conn.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Returns the number of the error.
pub(crate) async fn refused(conn: &mut Conn, sql: &str) -> u16 {
    match conn.query_drop(sql).await {
        Err(mysql_async::Error::Server(error)) => error.code,
        other => panic!("{sql}: {other:?}"),
    }
}

pub(crate) async fn row<T: FromRow + Send + 'static>(conn: &mut Conn, sql: &str) -> T {
    conn.query_first(sql).await.expect("read").expect("a row")
}

/// Creates a database with the topic `t`, whose messages all leave a trace, and a session that sees
/// everything.
pub(crate) async fn place() -> (TestDatabase, Conn) {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { trace: Sampling::ALL, ..TopicSettings::default() };
    database.topic_with("t", &settings).await;
    let own = session(database.url()).await;
    (database, own)
}

/// Finding SEC-H1.
#[tokio::test]
async fn a_caller_whose_clock_is_set_is_refused() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let mut keyed = session(&database.account_of(Account::Keyed).await).await;
    run(&mut own, "UPDATE queue_topic SET max_depth = 1, backlog_full = 1, backlog_depth = 9")
        .await;
    let fresh = "UPDATE queue_topic SET backlog_at = UTC_TIMESTAMP(6)";
    run(&mut own, fresh).await;
    assert_eq!(refused(&mut caller, ENQUEUE).await, 31020);
    let later = r#"CALL queue_send('t', 'm', '{"deliver_in":0}')"#;
    for clock in ["UNIX_TIMESTAMP() + 60", "UNIX_TIMESTAMP() - 60", "1"] {
        for conn in [&mut caller, &mut keyed] {
            run(conn, "SET timestamp = DEFAULT").await;
            run(conn, &format!("SET timestamp = {clock}")).await;
        }
        run(&mut own, fresh).await;
        assert_eq!(refused(&mut caller, ENQUEUE).await, 31026, "{clock}");
        assert_eq!(refused(&mut caller, later).await, 31026, "{clock}");
        run(&mut caller, "START TRANSACTION").await;
        assert_eq!(refused(&mut caller, SEND_ALL).await, 31026, "{clock}");
        run(&mut caller, "ROLLBACK").await;
        assert_eq!(refused(&mut keyed, HOLD).await, 31026, "{clock}");
        let cancel = "CALL queue_cancel('t', '019387e0-0000-7000-8000-000000000001')";
        assert_eq!(refused(&mut keyed, cancel).await, 31026, "{clock}");
    }
    run(&mut caller, "SET timestamp = DEFAULT").await;
    run(&mut own, fresh).await;
    assert_eq!(refused(&mut caller, ENQUEUE).await, 31020);
    run(&mut own, "UPDATE queue_topic SET max_depth = NULL, backlog_full = 0").await;
    run(&mut caller, ENQUEUE).await;
    assert_eq!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_message").await, 1);
}

#[tokio::test]
async fn a_trigger_of_a_long_statement_may_enqueue() {
    let (_database, mut own) = place().await;
    run(&mut own, "CREATE TABLE orders (id INT)").await;
    // A trigger's clock stands at the start of its statement, 1.5 s ago.
    let trigger = format!(
        "CREATE TRIGGER orders_mail BEFORE INSERT ON orders FOR EACH ROW \
         BEGIN DO SLEEP(1.5); {ENQUEUE}; END"
    );
    run(&mut own, &trigger).await;
    run(&mut own, "INSERT INTO orders VALUES (1)").await;
    let stored = "SELECT (SELECT COUNT(*) FROM queue_message), (SELECT COUNT(*) FROM queue_trace)";
    assert_eq!(row::<(u64, u64)>(&mut own, stored).await, (1, 1));
    run(&mut own, "SET timestamp = UNIX_TIMESTAMP() + 60").await;
    assert_eq!(refused(&mut own, "INSERT INTO orders VALUES (2)").await, 31026);
}

/// Finding SEC-H3.
#[tokio::test]
async fn a_caller_cannot_send_headers_beyond_64_kib() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let with = |bytes: u32| {
        // The server writes JSON with a space after a colon.
        let value = format!("REPEAT('x', {})", bytes - 9);
        format!("CALL queue_send('t', '', JSON_OBJECT('headers', JSON_OBJECT('a', {value})))")
    };
    for bytes in [65_537, 1 << 20] {
        assert_eq!(refused(&mut caller, &with(bytes)).await, 31027);
    }
    assert_eq!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_message").await, 0);
    run(&mut caller, &with(65_536)).await;
    let len: u64 = row(&mut own, "SELECT LENGTH(headers) FROM queue_message").await;
    assert_eq!(len, 65_536);
}

#[tokio::test]
async fn every_account_that_calls_may_ask_what_it_can_rely_on() {
    let (database, _own) = place().await;
    for account in [Account::Caller, Account::Keyed, Account::Claimer, Account::Operator] {
        let mut conn = session(&database.account_of(account).await).await;
        let (version, capabilities): (String, String) =
            row(&mut conn, "CALL queue_contract()").await;
        assert_eq!(version, "1.0-rc");
        let capabilities: Vec<String> = serde_json::from_str(&capabilities).expect("an array");
        assert!(capabilities.iter().any(|it| it == "send"), "{capabilities:?}");
    }
}

#[tokio::test]
async fn a_caller_can_neither_read_nor_cancel_nor_use_keys() {
    let (database, _own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let cancel = "CALL queue_cancel('t', '019387e0-0000-7000-8000-000000000001')";
    for call in [HOLD, cancel, "CALL queue_claim('t', 1, NULL)", "CALL queue_refuse_clock()"] {
        assert_eq!(refused(&mut caller, call).await, 1370, "{call}");
    }
    let mut keyed = session(&database.account_of(Account::Keyed).await).await;
    for conn in [&mut caller, &mut keyed] {
        for sql in ["SELECT name FROM queue_topic", "DELETE FROM queue_message"] {
            assert_eq!(refused(conn, sql).await, 1142, "{sql}");
        }
    }
}

/// What a session shows of its last call: id, duplicate, replaced.
type LastCall = (Option<String>, u8, u8);

async fn keyed(conn: &mut Conn, body: &str, choice: &str, wait: &str) -> LastCall {
    run(conn, "START TRANSACTION").await;
    let options =
        format!(r#"{{"unique":"invoice-42","on_conflict":"{choice}","deliver_in":{wait}}}"#);
    let call = format!("CALL queue_send_unique('t', '{body}', '{options}')");
    run(conn, &call).await;
    let left = row(conn, "SELECT @queue_msg_id, @queue_duplicate, @queue_replaced").await;
    run(conn, "COMMIT").await;
    left
}

async fn cancelled(conn: &mut Conn, id: &str) -> u8 {
    run(conn, &format!("CALL queue_cancel('t', '{id}')")).await;
    row(conn, "SELECT @queue_cancelled").await
}

const HOUR: &str = r#""1h""#;

/// Finding SEC-H4.
#[tokio::test]
async fn an_account_cannot_change_take_back_or_learn_the_message_of_another() {
    let (database, mut own) = place().await;
    let mut owner = session(&database.account_of(Account::Keyed).await).await;
    let mut other = session(&database.account_of(Account::Keyed).await).await;
    for (choice, wait) in [("replace", "null"), ("replace", HOUR), ("debounce", HOUR)] {
        let (id, duplicate, _) = keyed(&mut owner, "of the owner", choice, wait).await;
        assert_eq!(duplicate, 0);
        let id = id.expect("an id");
        for theirs in ["replace", "keep"] {
            assert_eq!(keyed(&mut other, "forged", theirs, "null").await, (None, 1, 0));
        }
        assert_eq!(cancelled(&mut other, &id).await, 0);
        let again = keyed(&mut owner, "changed", choice, wait).await;
        assert_eq!(again, (Some(id.clone()), 1, 1));
        let bodies = "SELECT GROUP_CONCAT(body) FROM (SELECT body FROM queue_message \
                      UNION ALL SELECT body FROM queue_scheduled) b";
        assert_eq!(row::<String>(&mut own, bodies).await, "changed");
        if wait == HOUR {
            assert_eq!(cancelled(&mut owner, &id).await, 1);
        }
        run(&mut own, "DELETE FROM queue_message").await;
        run(&mut own, "DELETE FROM queue_unique").await;
    }
    let traced = "SELECT GROUP_CONCAT(event ORDER BY id) FROM queue_trace";
    let all = ["enqueued,replaced", "enqueued,replaced,cancelled", "enqueued,replaced,cancelled"];
    assert_eq!(row::<String>(&mut own, traced).await, all.join(","));
}

/// A key whose message is being handled passes to the next message, even to one that the library
/// enqueues for another account.
#[tokio::test]
async fn the_account_of_a_key_is_that_of_the_message_that_has_taken_it_over() {
    let (database, mut own) = place().await;
    let mut owner = session(&database.account_of(Account::Keyed).await).await;
    assert_eq!(keyed(&mut owner, "first", "replace", "null").await.1, 0);
    run(&mut own, "UPDATE queue_message SET worker_id = 1, claim_no = 1").await;
    let producer = database.account_of(Account::Producer).await;
    let mut producer = connected(&producer).await;
    let second = NewMessage::new("second").with_unique(Unique::replacing("invoice-42"));
    let topic = TopicName::new("t").expect("a name");
    transaction(&mut producer, "enqueue", async |conn| enqueue(conn, &topic, &second).await)
        .await
        .expect("stored");
    assert_eq!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_message").await, 2);
    assert_eq!(keyed(&mut owner, "forged", "replace", "null").await, (None, 1, 0));
}

#[tokio::test]
async fn accounts_that_an_operator_lets_share_keys_do() {
    let (database, mut own) = place().await;
    let mut owner = session(&database.account_of(Account::Keyed).await).await;
    let url = database.account_of(Account::Keyed).await;
    let mut other = session(&url).await;
    let user: String = row(&mut other, "SELECT SUBSTRING_INDEX(USER(), '@', 1)").await;
    let allow = format!("INSERT INTO queue_access VALUES ('others', '{user}', 't')");
    let mut operator = session(&database.account_of(Account::Operator).await).await;
    run(&mut operator, &allow).await;
    let (id, ..) = keyed(&mut owner, "first", "replace", HOUR).await;
    assert_eq!(keyed(&mut other, "second", "replace", HOUR).await, (id.clone(), 1, 1));
    assert_eq!(cancelled(&mut other, &id.expect("an id")).await, 1);
    // A retry, and a message enqueued before accounts were recorded.
    for (account, done) in [("'another'", 0), ("NULL", 1)] {
        let (id, ..) = keyed(&mut owner, "third", "replace", HOUR).await;
        run(&mut own, &format!("UPDATE queue_scheduled SET account = {account}")).await;
        assert_eq!(cancelled(&mut owner, &id.expect("an id")).await, done, "{account}");
        run(&mut own, "DELETE FROM queue_unique").await;
    }
}

/// Finding SEC-M9.
#[tokio::test]
async fn an_account_without_a_row_for_a_restricted_verb_is_refused() {
    let (database, mut own) = place().await;
    database.topic("u").await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    let mut keyed = session(&database.account_of(Account::Keyed).await).await;
    run(&mut caller, ENQUEUE).await;
    let user: String = row(&mut caller, "SELECT SUBSTRING_INDEX(USER(), '@', 1)").await;
    let mut operator = session(&database.account_of(Account::Operator).await).await;
    let allow = format!("INSERT INTO queue_access VALUES ('enqueue', '{user}', 't')");
    run(&mut operator, &allow).await;
    run(&mut caller, ENQUEUE).await;
    assert_eq!(refused(&mut caller, &ENQUEUE.replace("'t'", "'u'")).await, 31028);
    run(&mut keyed, "START TRANSACTION").await;
    for call in [ENQUEUE, HOLD, SEND_ALL] {
        assert_eq!(refused(&mut keyed, call).await, 31028);
    }
    run(&mut keyed, "COMMIT").await;
    // Cancelling does not report that no row matched.
    run(&mut keyed, "CALL queue_cancel('t', '019387e0-0000-7000-8000-000000000001')").await;
    run(&mut operator, "UPDATE queue_access SET topic = '*'").await;
    run(&mut caller, &ENQUEUE.replace("'t'", "'u'")).await;
    assert_eq!(row::<u64>(&mut own, "SELECT COUNT(*) FROM queue_message").await, 3);
    let wrong = "INSERT INTO queue_access VALUES ('enqeue', 'a', '*')";
    assert!(matches!(refused(&mut operator, wrong).await, 3819 | 4025));
}

#[tokio::test]
async fn a_batch_of_a_caller_is_stored_with_its_transaction_or_not_at_all() {
    let (database, mut own) = place().await;
    let mut caller = session(&database.account_of(Account::Caller).await).await;
    database.topic("u").await;
    let stored = "SELECT (SELECT COUNT(*) FROM queue_message), (SELECT COUNT(*) FROM queue_trace)";
    assert_eq!(refused(&mut caller, SEND_ALL).await, 31013, "no transaction is open");
    // The one topic leaves traces, the other does not: singly, and by one INSERT.
    for (topic, traces) in [("'t'", 2), ("'u'", 0)] {
        let call = SEND_ALL.replace("'t'", topic);
        let wrong = call.replace("}]", "},{\"body\":\"m\",\"id\":\"none\"}]");
        for (end, messages, traces) in [("ROLLBACK", 0, 0), ("COMMIT", 2, traces)] {
            run(&mut caller, "START TRANSACTION").await;
            run(&mut caller, &call).await;
            assert_eq!(
                refused(&mut caller, &wrong).await,
                31006,
                "it leaves the first batch alone"
            );
            run(&mut caller, end).await;
            assert_eq!(row::<(u64, u64)>(&mut own, stored).await, (messages, traces), "{call}");
        }
        run(&mut own, "DELETE FROM queue_message").await;
        run(&mut own, "DELETE FROM queue_trace").await;
    }
}
