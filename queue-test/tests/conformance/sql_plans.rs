//! H13 for SQL consumers: what their calls read, counted by the server itself, because the
//! statements within a procedure do not go over the wire.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use rowmq_core::model::TopicSettings;

use crate::limits::limits;
use crate::plans::fill;
use crate::scene::Scene;
use crate::sql_consumer::SqlConsumer;

/// Returns how many rows and entries this session has read so far.
pub(crate) async fn read_so_far(consumer: &mut SqlConsumer) -> u64 {
    let status = "SHOW SESSION STATUS LIKE 'Handler_read%'";
    let rows: Vec<(String, String)> = consumer.conn.query(status).await.unwrap();
    rows.iter().map(|(_, number)| number.parse::<u64>().unwrap()).sum()
}

/// Twenty thousand messages in every state, of which each call touches one to ten, and a thousand
/// other workers.
#[tokio::test]
async fn the_calls_of_a_consumer_read_by_key_however_much_there_is() {
    let ledger_window = Some(Duration::from_secs(3600));
    let mut scene = Scene::with(&TopicSettings { ledger_window, ..Default::default() }).await;
    fill(&mut scene).await;
    scene
        .sql("UPDATE queue_message SET biz_id = CONCAT('new', id), unique_key = CONCAT('k', id)")
        .await;
    let others: Vec<_> = (0..1000)
        .map(|n| format!("({n}, 'other', 'sql', '', {n}, {n}, '', 0, 60000, NOW(), NOW())"))
        .collect();
    let columns = "instance, client_id, version, account, conn_id, life_conn_id, server_uid, \
                   server_started_at, lease_ms, beat_at, registered_at";
    let others = others.join(", ");
    scene.sql(&format!("INSERT INTO queue_worker ({columns}) VALUES {others}")).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_and_keep(10).await;
    assert_eq!(held.len(), 10);
    let mut before = read_so_far(&mut consumer).await;
    // The query always reads the same number of the server's own counters.
    let question = read_so_far(&mut consumer).await - before;
    before += question;
    let mut none_beyond = async |consumer: &mut SqlConsumer, call: &str, most: u64| {
        let now = read_so_far(consumer).await;
        let read = now - before - question;
        assert!(read <= most, "{call} has read {read} rows");
        before = now;
    };
    for verdict in ["ack", "retry", "snooze", "dead-letter", "discard", "release"] {
        let one = consumer.claim(1).await.remove(0);
        none_beyond(&mut consumer, "a claim", 300).await;
        consumer.settle(&one, verdict).await;
        none_beyond(&mut consumer, verdict, 300).await;
    }
    for claimed in &held[..5] {
        consumer.settle(claimed, "ack").await;
    }
    none_beyond(&mut consumer, "five acks", 500).await;
    consumer.settle_all(&held[5..], "ack").await;
    none_beyond(&mut consumer, "an ack of five", 500).await;
    consumer.run("CALL queue_beat()").await;
    none_beyond(&mut consumer, "a beat", 100).await;
    scene
        .sql("UPDATE queue_message SET priority = 103 ORDER BY topic_id, priority, id LIMIT 1")
        .await;
    assert_eq!(consumer.claim(5).await.len(), 1);
    none_beyond(&mut consumer, "the claim of a suspect", 300).await;
    consumer.run("CALL queue_leave()").await;
    none_beyond(&mut consumer, "leaving", 100).await;
}

/// The held claims lie behind twenty thousand ready messages, and the count of what runs does not
/// read these.
#[tokio::test]
async fn a_claim_under_limits_reads_what_is_claimed_and_not_what_is_ready() {
    for (limits, most) in [(limits(100, 0), 500), (limits(0, 1), 15_000)] {
        let mut scene = Scene::with(&TopicSettings { limits, ..Default::default() }).await;
        scene.enqueue(5).await;
        let mut consumer = SqlConsumer::new(scene.db.url()).await;
        for _ in 0..5 {
            assert_eq!(consumer.claim_and_keep(1).await.len(), 1);
        }
        let ready = "INSERT INTO queue_message (topic_id, msg_id, ordering_key, body) SELECT topic_id, UNHEX(REPLACE(UUID(), '-', '')), UUID(), body FROM queue_message";
        for _ in 0..12 {
            scene.sql(ready).await;
        }
        let before = read_so_far(&mut consumer).await;
        assert_eq!(consumer.claim(1).await.len(), 1);
        let read = read_so_far(&mut consumer).await - before;
        assert!(read <= most, "{limits:?}: a claim has read {read} rows");
    }
}
