//! The classes of failure, each provoked for real: the driver drops the server's error numbers, so
//! the class is read from error texts, and texts change from version to version.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::{AsyncMysqlConnection, Error, Fault, TopicName, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use crate::scene::{Scene, failure, number};

async fn fault(conn: &mut AsyncMysqlConnection, sql: &str) -> Fault {
    let error = failure(conn, sql).await;
    println!("{sql:.80}: {error}");
    Fault::of(&error)
}

async fn refusal(url: &ServerUrl) -> Error {
    connect(url, SessionKind::Plain).await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_deadlock_is_a_deadlock() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let (mut a, mut b) = (scene.db.connect().await, scene.db.connect().await);
    // By the whole key: a scan would meet the other session's row at once.
    let lock = |body| {
        format!(
            "SELECT id FROM queue_message WHERE topic_id = 1 AND priority = 5 AND id = {} FOR UPDATE",
            body + 1
        )
    };
    for (conn, body) in [(&mut a, 0), (&mut b, 1)] {
        conn.batch_execute("SET innodb_lock_wait_timeout = 20; BEGIN").await.unwrap();
        conn.batch_execute(&lock(body)).await.unwrap();
    }
    let (own_a, own_b) = (lock(1), lock(0));
    let (a, b) = tokio::join!(a.batch_execute(&own_a), b.batch_execute(&own_b));
    // One is the victim, the other goes on.
    let victim = a.and(b).unwrap_err();
    assert_eq!(Fault::of(&victim), Fault::Deadlock, "{victim}");
    assert!(Fault::of(&victim).is_conflict());
}

/// 1205, and 3572 where the server has a number of its own for NOWAIT.
#[tokio::test]
async fn a_lock_wait_and_a_refused_wait_are_lock_waits() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut holder = scene.db.connect().await;
    holder.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
    let conn = &mut scene.conn;
    assert_eq!(fault(conn, "UPDATE queue_message SET conn_id = 1").await, Fault::LockWait);
    let nowait = "SELECT id FROM queue_message FOR UPDATE NOWAIT";
    assert_eq!(fault(conn, nowait).await, Fault::LockWait);
    assert!(Fault::LockWait.is_conflict() && Fault::LockWait.is_transient());
}

/// An operator's ALTER TABLE is in the way: a session waits for the metadata lock as long as
/// `lock_wait_timeout` says, 5 s on our connections.
#[tokio::test]
async fn a_table_locked_by_a_schema_change_is_a_lock_wait() {
    let mut scene = Scene::new().await;
    let mut holder = scene.db.connect().await;
    holder.batch_execute("LOCK TABLES queue_message WRITE").await.unwrap();
    let waited = fault(&mut scene.conn, "SELECT id FROM queue_message").await;
    assert_eq!(waited, Fault::LockWait);
}

/// H25, its class: 1020 of MariaDB 11.8. MySQL has no such conflict.
#[tokio::test]
async fn a_row_changed_since_it_was_read_is_a_deadlock() {
    let mut scene = Scene::new().await;
    if !scene.is_mariadb().await || scene.number("SELECT @@innodb_snapshot_isolation").await == 0 {
        return;
    }
    scene.enqueue(1).await;
    let mut conn = scene.db.connect().await;
    let read = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN; \
         SELECT conn_id FROM queue_message";
    conn.batch_execute(read).await.unwrap();
    scene.sql("UPDATE queue_message SET conn_id = 5").await;
    for write in ["UPDATE queue_message SET conn_id = 6", "SELECT id FROM queue_message FOR UPDATE"]
    {
        conn.batch_execute("ROLLBACK; BEGIN; SELECT conn_id FROM queue_message").await.unwrap();
        scene.sql("UPDATE queue_message SET conn_id = conn_id + 1").await;
        assert_eq!(fault(&mut conn, write).await, Fault::Deadlock);
    }
}

/// 1792; the server's own read-only modes are tried on a private server.
#[tokio::test]
async fn a_write_in_a_read_only_transaction_is_read_only() {
    let mut scene = Scene::new().await;
    let insert = "INSERT INTO queue_floor VALUES (1, 1, 1, 1)";
    scene.sql("SET SESSION TRANSACTION READ ONLY").await;
    assert_eq!(fault(&mut scene.conn, insert).await, Fault::ReadOnly);
    let name = scene.topic.name.clone();
    let message = rowmq_core::NewMessage::new("m");
    let refused = rowmq_core::enqueue(&mut scene.conn, &name, &message).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::ReadOnly, "{refused}");
    assert!(refused.is_transient(), "a failover ends it");
    let fresh = TopicName::new("fresh").unwrap();
    let refused = store::topic::create(&mut scene.conn, &fresh, &Default::default()).await;
    assert_eq!(refused.unwrap_err().fault(), Fault::ReadOnly);
}

#[tokio::test]
async fn a_second_row_of_one_key_is_a_duplicate() {
    let mut scene = Scene::new().await;
    scene.sql("INSERT INTO queue_floor VALUES (1, 1, 1, 1)").await;
    let again = "INSERT INTO queue_floor VALUES (1, 1, 1, 1)";
    assert_eq!(fault(&mut scene.conn, again).await, Fault::Duplicate);
    let name = scene.topic.name.clone();
    let exists = store::topic::create(&mut scene.conn, &name, &Default::default()).await;
    assert!(matches!(exists, Err(Error::TopicExists { .. })), "{exists:?}");
}

#[tokio::test]
async fn a_killed_or_timed_out_connection_is_gone() {
    let mut scene = Scene::new().await;
    let id = "SELECT CONNECTION_ID()";
    // Killed while idle.
    let mut conn = scene.db.connect().await;
    let idle = number(&mut conn, id).await;
    scene.sql(&format!("KILL {idle}")).await;
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone);
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone, "and stays so");
    // Killed in the middle of a statement.
    let mut conn = scene.db.connect().await;
    let busy = number(&mut conn, id).await;
    let kill = async {
        until("the statement runs", async || {
            let threads = crate::scene::threads(&mut scene.conn).await;
            threads.iter().any(|it| i64::try_from(it.id).unwrap() == busy && it.busy)
        })
        .await;
        scene.sql(&format!("KILL {busy}")).await;
    };
    let (fault_of_busy, ()) =
        tokio::join!(fault(&mut conn, "SELECT SLEEP(20) FROM queue_topic"), kill);
    assert_eq!(fault_of_busy, Fault::Gone);
    // Silent for longer than the server's timeout.
    let mut conn = scene.db.connect().await;
    let silent = number(&mut conn, id).await;
    conn.batch_execute("SET wait_timeout = 1").await.unwrap();
    until("the server has dropped it", async || {
        let threads = crate::scene::threads(&mut scene.conn).await;
        threads.iter().all(|it| i64::try_from(it.id).unwrap() != silent)
    })
    .await;
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone);
}

#[tokio::test]
async fn a_connection_cut_at_any_moment_is_gone() {
    let scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
    proxy.reset();
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone);
    let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
    proxy.drop_reply_after("SELECT 1");
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone);
    let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
    proxy.cut_before("SELECT 1");
    assert_eq!(fault(&mut conn, "SELECT 1").await, Fault::Gone);
    proxy.refuse();
    let refused = refusal(&url).await;
    assert_eq!(refused.fault(), Fault::Gone, "{refused}");
    let nobody = ServerUrl::new("mysql://queue:queue@127.0.0.1:1/queue").unwrap();
    let refused = refusal(&nobody).await;
    assert_eq!(refused.fault(), Fault::Gone, "{refused}");
    proxy.blackhole();
    let silent = refusal(&url).await;
    assert_eq!(silent.fault(), Fault::Gone, "{silent}");
    assert!(silent.to_string().contains("no answer within"), "{silent}");
}

#[tokio::test]
async fn a_killed_or_overlong_statement_is_interrupted() {
    let mut scene = Scene::new().await;
    let mut conn = scene.db.connect().await;
    let id = number(&mut conn, "SELECT CONNECTION_ID()").await;
    // A scan: on MySQL a killed SLEEP returns 1, and no error.
    scene.enqueue(500).await;
    let long = "SELECT COUNT(*) FROM queue_message a, queue_message b, queue_message c, \
         queue_message d WHERE SHA2(CONCAT(a.id, b.id, c.id, d.id), 512) = ''";
    let kill = async {
        until("the statement runs", async || {
            let threads = crate::scene::threads(&mut scene.conn).await;
            threads.iter().any(|it| i64::try_from(it.id).unwrap() == id && it.busy)
        })
        .await;
        scene.sql(&format!("KILL QUERY {id}")).await;
    };
    let (killed, ()) = tokio::join!(fault(&mut conn, long), kill);
    assert_eq!(killed, Fault::Interrupted);
    let (limit, short) = if scene.is_mariadb().await {
        ("max_statement_time", "0.1")
    } else {
        ("max_execution_time", "100")
    };
    conn.batch_execute(&format!("SET {limit} = {short}")).await.unwrap();
    assert_eq!(fault(&mut conn, long).await, Fault::Interrupted);
    assert!(Fault::Interrupted.is_transient());
    conn.batch_execute(&format!("SET {limit} = 0")).await.unwrap();
    // The connection is still good.
    assert_eq!(number(&mut conn, "SELECT CONNECTION_ID()").await, id);
}

#[tokio::test]
async fn what_the_account_may_not_is_denied() {
    let scene = Scene::new().await;
    let url = scene.db.account(&["SELECT ON {}.queue_topic"]).await;
    let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
    for denied in [
        "SELECT id FROM queue_message",
        "UPDATE queue_topic SET body_limit = 1",
        "CREATE TABLE queue_other (id INT)",
        "CREATE DATABASE queue_test_other",
        "CALL queue_send('t', 'b', NULL)",
        "SET GLOBAL max_connections = 1",
        "KILL 1",
    ] {
        let error = failure(&mut conn, denied).await;
        // An account without any rights may not even learn that a procedure or another session
        // exists.
        let hidden = denied.starts_with("KILL") || denied.starts_with("CALL");
        let fault = Fault::of(&error);
        assert!(fault == Fault::Denied || hidden, "{denied}: {fault:?}, {error}");
        assert!(!fault.is_transient(), "{denied}: {error}");
    }
    let name = scene.topic.name.clone();
    let refused = rowmq_core::enqueue(&mut conn, &name, &rowmq_core::NewMessage::new("m")).await;
    assert_eq!(refused.unwrap_err().fault(), Fault::Denied);

    let refused = refusal(&scene.db.url_as("queue", "wrong")).await;
    assert_eq!(refused.fault(), Fault::Denied, "{refused}");
    assert!(refused.to_string().contains("check the account"), "{refused}");
    let elsewhere = url.with_database("mysql").unwrap();
    assert_eq!(refusal(&elsewhere).await.fault(), Fault::Denied);
}

#[tokio::test]
async fn what_is_missing_is_the_schemas_fault() {
    let mut scene = Scene::new().await;
    for missing in [
        "SELECT 1 FROM queue_nothing",
        "SELECT nothing FROM queue_topic",
        "CALL queue_nothing()",
        "INSERT INTO queue_topic (nothing) VALUES (1)",
        "SELECT 1 FROM queue_test_nowhere.queue_topic",
        "SELECT queue_nothing(1)",
    ] {
        assert_eq!(fault(&mut scene.conn, missing).await, Fault::Schema, "{missing}");
    }
    let nowhere = scene.db.url().with_database("queue_test_nowhere").unwrap();
    let refused = refusal(&nowhere).await;
    assert_eq!(refused.fault(), Fault::Schema, "{refused}");
    assert!(refused.to_string().contains("create the database"), "{refused}");
    scene.sql("DROP TABLE queue_message").await;
    let name = scene.topic.name.clone();
    let refused =
        rowmq_core::enqueue(&mut scene.conn, &name, &rowmq_core::NewMessage::new("m")).await;
    assert_eq!(refused.unwrap_err().fault(), Fault::Schema);
}

/// 1226; 1040 and 1203 need a private server.
#[tokio::test]
async fn an_account_out_of_connections_is_busy() {
    let mut scene = Scene::new().await;
    let url = scene.db.account(&["SELECT ON {}.*"]).await;
    let user = url.expose().split(['/', ':']).nth(3).unwrap().to_owned();
    scene.sql(&format!("ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 1")).await;
    let _first = connect(&url, SessionKind::Plain).await.unwrap();
    let refused = refusal(&url).await;
    assert_eq!(refused.fault(), Fault::Busy, "{refused}");
    assert!(refused.is_transient());
    assert!(!refused.to_string().contains("test@") && !refused.to_string().contains(":test"));
    let pool = rowmq_core::connection::Pool::new(url, 1, Duration::from_secs(5)).unwrap();
    let refused = pool.call("ask", async |conn| store::topic::all(conn).await).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Busy, "{refused}");
}

#[tokio::test]
async fn what_exceeds_the_packet_is_too_large() {
    let mut scene = Scene::new().await;
    let packet = scene.number("SELECT @@max_allowed_packet").await;
    scene.sql("CREATE TABLE large (body LONGBLOB)").await;
    let insert = format!("INSERT INTO large VALUES (REPEAT('x', {}))", packet + 1);
    let error = failure(&mut scene.conn, &insert).await;
    assert_eq!(Fault::of(&error), Fault::TooLarge, "{error}");
}

#[tokio::test]
async fn a_full_table_is_full() {
    let mut scene = Scene::new().await;
    scene.sql("SET max_heap_table_size = 16384").await;
    scene.sql("CREATE TEMPORARY TABLE small (body VARBINARY(2000)) ENGINE = MEMORY").await;
    let fill =
        "INSERT INTO small SELECT REPEAT('x', 2000) FROM information_schema.COLUMNS LIMIT 500";
    let error = failure(&mut scene.conn, fill).await;
    assert_eq!(Fault::of(&error), Fault::Full, "{error}");
    assert!(Fault::Full.is_transient());
}

/// An unknown error is not called transient, so that no caller retries it for ever.
#[tokio::test]
async fn nonsense_is_of_no_class_and_not_transient() {
    let mut scene = Scene::new().await;
    for nonsense in ["SELEC 1", "INSERT INTO queue_floor VALUES (NULL, 1, 1, 1)", "SELECT 1 +"] {
        let error = failure(&mut scene.conn, nonsense).await;
        assert!(!Fault::of(&error).is_transient(), "{nonsense}: {error}");
    }
}
