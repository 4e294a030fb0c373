//! A `Receiver` and messages that must be handled alone.

use std::sync::Arc;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_consumer::Receiver;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::handling::running::{drained, patient, send};

/// Makes the message a suspect, as two crashes do.
async fn suspect(conn: &mut AsyncMysqlConnection, body: &str) {
    let sql = format!("UPDATE queue_message SET priority = 105 WHERE body = '{body}'");
    conn.batch_execute(&sql).await.expect("suspected");
}

async fn receiver(database: &TestDatabase, topic: &Topic, batch: u32) -> Receiver {
    let (url, name) = (database.url().clone(), topic.name.clone());
    Receiver::connect(url, name, batch, patient()).await.expect("connected")
}

async fn claimed(conn: &mut AsyncMysqlConnection) -> Vec<String> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        body: String,
    }
    let query = "SELECT CONVERT(body USING utf8mb4) AS body FROM queue_message \
         WHERE topic_id > 0 AND worker_id <> 0 ORDER BY id";
    let rows: Vec<Row> = diesel::sql_query(query).load(conn).await.expect("read");
    rows.into_iter().map(|row| row.body).collect()
}

async fn beats(conn: &mut AsyncMysqlConnection) -> u64 {
    let workers = store::worker::alive(conn).await.expect("workers");
    let [worker, ..] = &workers[..] else { return 0 };
    worker.beat_no
}

/// A crash is charged by what the worker holds: it holds the suspect alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_all_that_a_receiver_holds() {
    let database = TestDatabase::new().await;
    let topic = database.topic("pulled").await;
    let mut conn = database.connect().await;
    send(&database, &topic, &[NewMessage::new("poison")]).await;
    suspect(&mut conn, "poison").await;
    let mut receiver = receiver(&database, &topic, 10).await;
    let poison = tokio::time::timeout(PATIENCE, receiver.receive()).await;
    let poison = poison.expect("in time").expect("received");
    assert!(poison.is_alone());
    send(&database, &topic, &[NewMessage::new("a"), NewMessage::new("b")]).await;
    let before = beats(&mut conn).await;
    let mut watching = database.connect().await;
    tokio::select! {
        other = receiver.receive() => panic!("{:?} beside the suspect", other.map(|it| it.row)),
        _ = until("two beats", async || beats(&mut watching).await > before + 1) => {}
    }
    assert_eq!(claimed(&mut conn).await, ["poison"]);
    poison.ack().await.expect("acked");
    for _ in 0..2 {
        let next = tokio::time::timeout(PATIENCE, receiver.receive()).await;
        let next = next.expect("in time").expect("received");
        assert!(!next.is_alone());
        next.ack().await.expect("acked");
    }
    receiver.close().await.expect("closed");
    drained(&database, &topic).await;
}

/// Two tasks, each holding a delivery whenever it can, with more than enough messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_has_its_turn_while_there_is_other_work() {
    const READY: usize = 3000;
    let database = TestDatabase::new().await;
    let topic = database.topic("pulled").await;
    let mut conn = database.connect().await;
    send(&database, &topic, &[NewMessage::new("suspect")]).await;
    suspect(&mut conn, "suspect").await;
    let ready: Vec<_> = (0..READY).map(|n| NewMessage::new(n.to_string())).collect();
    send(&database, &topic, &ready).await;
    let receiver = Arc::new(Mutex::new(receiver(&database, &topic, 1).await));
    let came = Arc::new(Notify::new());
    let found = CancellationToken::new();
    let takers = (0..2).map(|_| {
        let (receiver, came) = (Arc::clone(&receiver), Arc::clone(&came));
        let found = found.clone();
        tokio::spawn(async move {
            while !found.is_cancelled() {
                let received = receiver.lock().await.receive().await.expect("received");
                let is_suspect = received.body == b"suspect";
                if is_suspect {
                    found.cancel();
                }
                received.ack().await.expect("acked");
                if is_suspect {
                    came.notify_one();
                }
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    tokio::time::timeout(PATIENCE, came.notified()).await.expect("the suspect came");
    let left = left(&mut conn, &topic).await;
    assert!(left > 0, "it came only when nothing else was left");
    for taker in takers {
        taker.abort();
    }
}

async fn left(conn: &mut AsyncMysqlConnection, topic: &Topic) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }
    let query = format!("SELECT COUNT(*) AS n FROM queue_message WHERE topic_id = {}", topic.id.0);
    let rows: Vec<Row> = diesel::sql_query(query).load(conn).await.expect("counted");
    rows[0].n
}

/// One task that wants more before it has settled gets more: the suspect's turn passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_keeps_deliveries_gets_more_and_no_suspect() {
    let database = TestDatabase::new().await;
    let topic = database.topic("pulled").await;
    let mut conn = database.connect().await;
    send(&database, &topic, &["suspect", "0", "1", "2"].map(NewMessage::new)).await;
    suspect(&mut conn, "suspect").await;
    let mut receiver = receiver(&database, &topic, 1).await;
    let mut kept = Vec::new();
    while kept.len() < 3 {
        let received = tokio::time::timeout(PATIENCE, receiver.receive()).await;
        kept.push(received.expect("in time").expect("received"));
        if kept.len() == 1 {
            // Its turn is due by the next time.
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
    }
    assert!(kept.iter().all(|one| !one.is_alone() && one.body != b"suspect"));
    for one in kept {
        one.ack().await.expect("acked");
    }
    let suspect = tokio::time::timeout(PATIENCE, receiver.receive()).await;
    let suspect = suspect.expect("in time").expect("received");
    assert!(suspect.is_alone());
    suspect.ack().await.expect("acked");
    receiver.close().await.expect("closed");
}
