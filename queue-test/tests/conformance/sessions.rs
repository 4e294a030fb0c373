//! Connections, sessions, pools and transactions: what a broken, cancelled or conflicting call
//! leaves behind.

use std::cell::Cell;
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::{Link, Pool, SessionKind, connect, transaction};
use rowmq_core::model::TopicId;
use rowmq_core::store::doctor::connection_ids;
use rowmq_core::{AsyncMysqlConnection, Error, Fault, NewMessage, enqueue, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{PATIENCE, connected, greeted, session_at, until};

use crate::scene::{Scene, failure, number, text, threads, wait_for_locks};

/// Returns the server's side of a session, for statements outside the store.
fn server(link: &mut Link) -> &mut AsyncMysqlConnection {
    let Link::Server(conn) = link else { panic!("a session of a simulation") };
    conn
}

/// Connects to the scene's database, however long the server takes to greet.
async fn connected_as(scene: &Scene, kind: SessionKind) -> AsyncMysqlConnection {
    greeted(async || connect(scene.db.url(), kind).await).await.unwrap()
}

async fn own_id(conn: &mut AsyncMysqlConnection) -> rowmq_core::Result<u64> {
    let (bare, inner) = connection_ids(conn).await?;
    assert_eq!(bare, inner, "a reply to another question");
    Ok(inner.0)
}

/// Runs `sql` as a call does: a failure has its name and class.
async fn run(conn: &mut AsyncMysqlConnection, sql: &str) -> rowmq_core::Result<()> {
    conn.batch_execute(sql).await.map_err(|error| Error::Database {
        operation: "test",
        fault: Fault::of(&error),
        message: error.to_string(),
    })
}

/// H8: each session has all three timeouts, or one that is frozen half-way outlives its lease.
#[tokio::test]
async fn a_leased_session_has_all_three_timeouts_and_a_plain_one_the_servers_own() {
    let scene = Scene::new().await;
    let mut leased = connected_as(&scene, SessionKind::Leased(Duration::from_secs(100))).await;
    let mut plain = connected_as(&scene, SessionKind::Plain).await;
    for variable in ["wait_timeout", "net_read_timeout", "net_write_timeout"] {
        assert_eq!(number(&mut leased, &format!("SELECT @@{variable}")).await, 100, "{variable}");
        let own = number(&mut plain, &format!("SELECT @@GLOBAL.{variable}")).await;
        assert_eq!(number(&mut plain, &format!("SELECT @@{variable}")).await, own, "{variable}");
    }
}

#[tokio::test]
async fn every_session_is_set_up_as_the_protocol_needs_it() {
    let scene = Scene::new().await;
    for kind in [SessionKind::Plain, SessionKind::Leased(Duration::from_secs(9))] {
        let mut conn = connected_as(&scene, kind).await;
        assert_eq!(number(&mut conn, "SELECT @@innodb_lock_wait_timeout").await, 1);
        assert_eq!(number(&mut conn, "SELECT @@autocommit").await, 1);
        assert_eq!(text(&mut conn, "SELECT @@transaction_isolation").await, "READ-COMMITTED");
        assert_eq!(text(&mut conn, "SELECT @@time_zone").await, "+00:00");
        assert_eq!(text(&mut conn, "SELECT @@lc_messages").await, "en_US");
        assert!(text(&mut conn, "SELECT @@sql_mode").await.contains("STRICT_TRANS_TABLES"));
        // The server reports rows matched, not rows changed: 0 must mean fenced.
        conn.batch_execute("INSERT INTO queue_floor VALUES (1, 1, 1, 1)").await.unwrap();
        let same = diesel::sql_query("UPDATE queue_floor SET floor = 1");
        assert_eq!(diesel_async::RunQueryDsl::execute(same, &mut conn).await.unwrap(), 1);
        conn.batch_execute("DELETE FROM queue_floor").await.unwrap();
    }
}

/// H8: a client that stops reading in the middle of a large result leaves the process list.
#[tokio::test]
async fn a_client_frozen_in_the_middle_of_a_result_is_dropped_within_its_lease() {
    let mut scene = Scene::new().await;
    // More than all the buffers on the way can hold.
    scene.sql("CREATE TABLE wide (body LONGBLOB)").await;
    scene.sql("INSERT INTO wide VALUES (REPEAT('x', 1000000))").await;
    for _ in 0..6 {
        scene.sql("INSERT INTO wide SELECT body FROM wide").await;
    }
    let mut conn = connected_as(&scene, SessionKind::Leased(Duration::from_secs(5))).await;
    let id = own_id(&mut conn).await.unwrap();
    // Polled once, which sends the query, and never again: the client does not read the reply.
    let mut reading = Box::pin(conn.batch_execute("SELECT a.body FROM wide a, wide b"));
    assert!(futures_util::poll!(reading.as_mut()).is_pending());
    until("the server sends", async || {
        threads(&mut scene.conn).await.iter().any(|thread| thread.id == id && thread.busy)
    })
    .await;
    until("the frozen session is dropped", async || {
        threads(&mut scene.conn).await.iter().all(|thread| thread.id != id)
    })
    .await;
    assert!(reading.await.is_err());
}

/// H10: row locks of a connection whose process is frozen end with its lease.
#[tokio::test]
async fn row_locks_of_a_frozen_leased_session_are_freed_within_its_lease() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut frozen = connected_as(&scene, SessionKind::Leased(Duration::from_secs(5))).await;
    frozen.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
    let free = "SELECT COUNT(*) FROM (SELECT id FROM queue_message FOR UPDATE SKIP LOCKED) m";
    assert_eq!(scene.number(free).await, 0);
    until("the row is free", async || scene.number(free).await == 1).await;
    let gone = failure(&mut frozen, "COMMIT").await;
    assert_eq!(Fault::of(&gone), Fault::Gone, "{gone}");
}

/// H26: a call that is dropped half-way takes its connection with it; no later call gets its reply.
#[tokio::test]
async fn a_session_whose_call_was_dropped_is_lost_and_never_answers_the_next_call() {
    let scene = Scene::new().await;
    let mut session = scene.db.session().await;
    let slow = session.call("sleep", async |conn| run(server(conn), "SELECT SLEEP(60)").await);
    tokio::select! {
        _ = slow => panic!("it slept too short"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    assert!(session.is_lost());
    let next = session.call("ask", async |conn| own_id(server(conn)).await).await.unwrap_err();
    assert_eq!(next.fault(), Fault::Gone, "{next}");
}

#[tokio::test]
async fn a_session_whose_call_missed_its_deadline_is_lost() {
    let scene = Scene::new().await;
    let short = Duration::from_millis(200);
    let mut session = session_at(scene.db.url(), short).await;
    let slow =
        session.call("sleep", async |conn| run(server(conn), "SELECT SLEEP(60)").await).await;
    assert!(matches!(slow, Err(Error::Deadline { operation: "sleep", .. })), "{slow:?}");
    assert!(session.is_lost());
}

#[tokio::test]
async fn a_failed_statement_costs_a_session_nothing() {
    let scene = Scene::new().await;
    let mut session = scene.db.session().await;
    let id = session.call("ask", async |conn| own_id(server(conn)).await).await.unwrap();
    let failed =
        session.call("fail", async |conn| run(server(conn), "SELECT nonsense").await).await;
    assert_eq!(failed.unwrap_err().fault(), Fault::Schema);
    assert_eq!(session.call("ask", async |conn| own_id(server(conn)).await).await.unwrap(), id);
}

#[tokio::test]
async fn a_killed_session_is_lost_at_its_next_call() {
    let mut scene = Scene::new().await;
    let mut session = scene.db.session().await;
    let id = session.call("ask", async |conn| own_id(server(conn)).await).await.unwrap();
    scene.sql(&format!("KILL {id}")).await;
    let next = session.call("ask", async |conn| own_id(server(conn)).await).await.unwrap_err();
    assert_eq!(next.fault(), Fault::Gone, "{next}");
    assert!(session.is_lost());
}

/// H26: a pool never hands out a connection with a reply still to come.
#[tokio::test]
async fn a_pool_closes_the_connection_of_a_dropped_call() {
    let scene = Scene::new().await;
    let pool = Pool::new(scene.db.url().clone(), 1, PATIENCE).unwrap();
    let mut before = pool.call("ask", async |conn| own_id(conn).await).await.unwrap();
    for _ in 0..5 {
        let slow = pool.call("sleep", async |conn| run(conn, "SELECT SLEEP(60)").await);
        tokio::select! {
            _ = slow => panic!("it slept too short"),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        let now = pool.call("ask", async |conn| own_id(conn).await).await.unwrap();
        assert_ne!(now, before, "the connection of a dropped call came back");
        // Otherwise the pool keeps the connection.
        assert_eq!(pool.call("ask", async |conn| own_id(conn).await).await.unwrap(), now);
        before = now;
    }
}

#[tokio::test]
async fn a_pool_closes_the_connection_of_a_call_that_missed_its_deadline() {
    let scene = Scene::new().await;
    let short = Duration::from_secs(5);
    let pool = Pool::new(scene.db.url().clone(), 1, short).unwrap();
    let before = pool.call("ask", async |conn| own_id(conn).await).await.unwrap();
    let slow = pool.call("sleep", async |conn| run(conn, "SELECT SLEEP(60)").await).await;
    assert!(matches!(slow, Err(Error::Deadline { operation: "sleep", .. })), "{slow:?}");
    assert_ne!(pool.call("ask", async |conn| own_id(conn).await).await.unwrap(), before);
}

/// H26, as it was found: an empty queue reported the three rows of a claim that was dropped before.
#[tokio::test]
async fn an_empty_topic_stays_empty_after_a_dropped_look_at_a_full_one() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let pool = Pool::new(scene.db.url().clone(), 1, PATIENCE).unwrap();
    let (full, empty) = (scene.topic.id, TopicId(4711));
    for _ in 0..20 {
        let look = pool.call("look", async |conn| store::inspect::peek(conn, full, 10).await);
        // Polled once or twice, so that the query is sent, then dropped.
        let mut look = Box::pin(look);
        for _ in 0..2 {
            let _pending = futures_util::poll!(look.as_mut());
            tokio::task::yield_now().await;
        }
        drop(look);
        let seen = pool.call("look", async |conn| store::inspect::peek(conn, empty, 10).await);
        assert_eq!(seen.await.unwrap(), []);
    }
}

/// H26: a transaction dropped half-way is rolled back with its connection, and its row locks end.
#[tokio::test]
async fn a_dropped_transaction_leaves_no_row_lock_behind() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let pool = Pool::new(scene.db.url().clone(), 1, PATIENCE).unwrap();
    let held = pool.transaction("hold", async |conn| {
        run(conn, "DELETE FROM queue_message").await?;
        std::future::pending::<()>().await;
        Ok(())
    });
    tokio::select! {
        _ = held => panic!("it cannot end"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    let free = "SELECT COUNT(*) FROM (SELECT id FROM queue_message FOR UPDATE SKIP LOCKED) m";
    until("the row is free", async || scene.number(free).await == 1).await;
}

#[tokio::test]
async fn a_pool_whose_connections_are_all_in_use_says_so() {
    let scene = Scene::new().await;
    let pool = Pool::new(scene.db.url().clone(), 1, Duration::from_secs(60)).unwrap();
    let long = pool.call("sleep", async |conn| run(conn, "SELECT SLEEP(30)").await);
    let wait = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        pool.call("ask", async |conn| own_id(conn).await).await
    };
    let refused = tokio::select! {
        _ = long => panic!("it slept too short"),
        refused = wait => refused.unwrap_err(),
    };
    assert_eq!(refused.fault(), Fault::Busy, "{refused}");
    assert!(refused.to_string().contains("every connection of the pool is in use"), "{refused}");
}

#[tokio::test]
async fn a_transaction_commits_what_its_work_did_and_rolls_back_what_failed() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    let mut conn = scene.db.connect().await;
    let message = NewMessage::new("m");
    transaction(&mut conn, "test", async |conn| enqueue(conn, &name, &message).await)
        .await
        .unwrap();
    let failed = transaction(&mut conn, "test", async |conn| {
        enqueue(conn, &name, &message).await?;
        run(conn, "SELECT nonsense").await
    });
    assert_eq!(failed.await.unwrap_err().fault(), Fault::Schema);
    assert_eq!(scene.hot().await.0, 1);
    // The connection is outside every transaction again.
    enqueue(&mut conn, &name, &message).await.unwrap();
    assert_eq!(scene.hot().await.0, 2);
}

/// 1205 rolls back only its statement: a commit afterwards would keep half of the transaction.
#[tokio::test]
async fn a_lock_wait_in_a_transaction_is_retried_whole() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut holder = scene.db.connect().await;
    let hold = "BEGIN; SELECT id FROM queue_message WHERE body = '0' FOR UPDATE";
    holder.batch_execute(hold).await.unwrap();
    let (name, rounds) = (scene.topic.name.clone(), Cell::new(0));
    let mut conn = scene.db.connect().await;
    transaction(&mut conn, "test", async |conn| {
        rounds.set(rounds.get() + 1);
        enqueue(conn, &name, &NewMessage::new("new")).await?;
        if rounds.get() == 2 {
            holder.batch_execute("ROLLBACK").await.unwrap();
        }
        run(conn, "UPDATE queue_message SET conn_id = 1 WHERE body = '0'").await
    })
    .await
    .unwrap();
    assert_eq!(rounds.get(), 2);
    // The first attempt's message was rolled back with it.
    assert_eq!(scene.hot().await.0, 2);
}

#[tokio::test]
async fn a_conflict_without_end_is_handed_to_the_caller() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut holder = scene.db.connect().await;
    holder.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
    let mut conn = scene.db.connect().await;
    let stuck = transaction(&mut conn, "test", async |conn| {
        run(conn, "UPDATE queue_message SET conn_id = 1").await
    });
    let error = stuck.await.unwrap_err();
    assert_eq!(error.fault(), Fault::LockWait, "{error}");
    assert!(error.is_transient());
    assert_eq!(own_id(&mut conn).await.unwrap(), own_id(&mut conn).await.unwrap());
    assert_eq!(scene.transactions().await.len(), 1, "the holder's alone");
}

/// H12, for any transaction: the commit's reply is lost, so its outcome is unknown.
#[tokio::test]
async fn a_commit_without_an_answer_is_of_unknown_outcome() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let (url, name) = (proxy.url(scene.db.url()), scene.topic.name.clone());
    for (happened, rows) in [(true, 1), (false, 1)] {
        let mut conn = connected(&url).await;
        if happened {
            proxy.drop_reply_after("COMMIT");
        } else {
            proxy.cut_before("COMMIT");
        }
        let message = NewMessage::new("m");
        let lost =
            transaction(&mut conn, "test", async |conn| enqueue(conn, &name, &message).await);
        let error = lost.await.unwrap_err();
        assert!(matches!(error, Error::UnknownOutcome { operation: "test", .. }), "{error}");
        proxy.sprung().await;
        assert_eq!(scene.hot().await.0, rows);
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_commit_is_a_plain_failure() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let name = scene.topic.name.clone();
    let mut conn = connected(&proxy.url(scene.db.url())).await;
    proxy.drop_reply_after("INSERT INTO queue_message");
    let lost =
        transaction(&mut conn, "test", async |c| enqueue(c, &name, &NewMessage::new("m")).await);
    let error = lost.await.unwrap_err();
    assert_eq!(error.fault(), Fault::Gone, "{error}");
    assert!(!matches!(error, Error::UnknownOutcome { .. }), "{error}");
    until("the server has rolled it back", async || scene.transactions().await.is_empty()).await;
    assert_eq!(scene.hot().await.0, 0);
}

/// H25: on MariaDB 11.8 a transaction under REPEATABLE READ fails with 1020 where a row it read has
/// changed. It is another kind of conflict, and is retried.
#[tokio::test]
async fn a_row_that_changed_under_repeatable_read_is_a_conflict_and_retried() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut conn = scene.db.connect().await;
    let repeatable = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
    conn.batch_execute(repeatable).await.unwrap();
    let mut other = scene.db.connect().await;
    let mut rounds = 0;
    transaction(&mut conn, "test", async |conn| {
        rounds += 1;
        number(conn, "SELECT conn_id FROM queue_message").await;
        if rounds == 1 {
            other.batch_execute("UPDATE queue_message SET conn_id = 5").await.unwrap();
        }
        run(conn, "UPDATE queue_message SET conn_id = conn_id + 1").await
    })
    .await
    .unwrap();
    let snapshot_isolation =
        scene.is_mariadb().await && scene.number("SELECT @@innodb_snapshot_isolation").await == 1;
    assert_eq!(rounds, if snapshot_isolation { 2 } else { 1 });
    assert_eq!(scene.number("SELECT conn_id FROM queue_message").await, 6);
}

/// Eight sessions lock two rows each, crosswise: no caller ever gets a conflict.
#[tokio::test]
async fn transactions_that_deadlock_all_the_time_all_succeed() {
    let mut scene = Scene::new().await;
    scene.enqueue(8).await;
    let most_rounds = Cell::new(0);
    let storm = (0..8).map(async |me: usize| {
        let mut conn = scene.db.connect().await;
        wait_for_locks(&mut conn).await;
        for round in 0..40 {
            let (first, second) = ((me + round) % 8, (me * 3 + round * 5 + 1) % 8);
            let mut rounds = 0;
            transaction(&mut conn, "storm", async |conn| {
                rounds += 1;
                for body in [first, second] {
                    let update = format!(
                        "UPDATE queue_message SET delivery_no = delivery_no + 1 WHERE body = '{body}'"
                    );
                    run(conn, &update).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
            most_rounds.set(most_rounds.get().max(rounds));
        }
    });
    futures_util::future::join_all(storm).await;
    let sum = scene.number("SELECT SUM(delivery_no) FROM queue_message").await;
    assert_eq!(sum, 2 * 8 * 40);
    println!("most rounds of one transaction: {}", most_rounds.get());
}

#[tokio::test]
async fn the_future_of_a_call_can_be_spawned() {
    fn spawnable<F: Future + Send>(future: F) -> F {
        future
    }
    let scene = Scene::new().await;
    let pool = Pool::new(scene.db.url().clone(), 1, PATIENCE).unwrap();
    let name = scene.topic.name.clone();
    let enqueued = spawnable(async move {
        let message = NewMessage::new("m");
        pool.call("enqueue", async |conn| enqueue(conn, &name, &message).await).await
    });
    tokio::spawn(enqueued).await.unwrap().unwrap();
}
