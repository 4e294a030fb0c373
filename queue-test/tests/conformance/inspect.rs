//! What users look up: depth, age, the messages themselves, the process list.

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::model::{DeadCause, OnDone, Settlement};
use rowmq_core::store::inspect::{self, DEPTH_CAP, Depth, MessageTable};
use rowmq_core::store::process_list;
use rowmq_core::worker::Settled;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Priority, enqueue, enqueue_all};
use rowmq_test::until;

use crate::scene::{Scene, all, bodies, claim_n, number, retry, settle, wait_for_locks};

#[tokio::test]
async fn the_depth_counts_each_state_and_the_age_is_that_of_the_oldest_row() {
    let mut scene = Scene::new().await;
    let empty = inspect::depth(&mut scene.conn, scene.topic.id).await.unwrap();
    assert_eq!(empty, Depth::default());
    scene.enqueue(10).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 6).await;
    settle(&worker, all(&got[..2], &retry(Duration::from_secs(60)))).await;
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: String::new() };
    settle(&worker, all(&got[2..3], &dead)).await;
    scene
        .sql("UPDATE queue_message SET enqueued_at = enqueued_at - INTERVAL 90 SECOND WHERE body = '9'")
        .await;
    let depth = inspect::depth(&mut scene.conn, scene.topic.id).await.unwrap();
    assert_eq!((depth.unsettled, depth.scheduled, depth.dead), (7, 2, 1));
    assert!((3..=6).contains(&depth.claimed), "{depth:?}");
    // Only the first row of each priority is read.
    assert!(depth.oldest_age_ms.is_some_and(|ms| ms < 60_000), "{depth:?}");
    let urgent = NewMessage::new("urgent").with_priority(Priority::FIRST);
    enqueue(&mut scene.conn, &scene.topic.name, &urgent).await.unwrap();
    scene
        .sql("UPDATE queue_message SET enqueued_at = enqueued_at - INTERVAL 90 SECOND WHERE priority = 0")
        .await;
    let depth = inspect::depth(&mut scene.conn, scene.topic.id).await.unwrap();
    assert!(depth.oldest_age_ms.is_some_and(|ms| ms >= 90_000), "{depth:?}");
}

#[tokio::test]
async fn the_depth_of_one_topic_is_not_that_of_another() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    settle(&worker, all(&got[..1], &retry(Duration::from_secs(60)))).await;
    let depth = inspect::depth(&mut scene.conn, other.id).await.unwrap();
    assert_eq!(depth, Depth::default());
}

/// Returns how many rows the storage engine has read in this session so far.
pub(crate) async fn rows_read(conn: &mut AsyncMysqlConnection) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text, column_name = "Variable_name")]
        name: String,
        #[diesel(sql_type = Text, column_name = "Value")]
        value: String,
    }
    let status = diesel::sql_query("SHOW SESSION STATUS LIKE 'Handler_read%'");
    let rows: Vec<Row> = status.load(conn).await.unwrap();
    let counted = rows.iter().filter(|row| row.name != "Handler_read_retry");
    counted.map(|row| row.value.parse::<i64>().unwrap()).sum()
}

/// Fills every table with twice the cap, for this topic and for another; the tables are kept in one
/// session.
async fn fill(scene: &mut Scene) -> i64 {
    let n = 2 * i64::try_from(DEPTH_CAP).unwrap();
    let other = scene.db.topic("other").await;
    let numbers = "(WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) \
         SELECT i FROM n) n";
    let depth = if scene.is_mariadb().await {
        "max_recursive_iterations"
    } else {
        "cte_max_recursion_depth"
    };
    scene.sql(&format!("SET SESSION {depth} = 2000")).await;
    for topic in [scene.topic.id.0, other.id.0] {
        for _ in 0..n / 1000 {
            let fixed = format!("{topic}, 5, UNHEX(LEFT(SHA2(i, 256), 32))");
            scene.sql(&format!("INSERT INTO queue_message (topic_id, priority, msg_id, body) SELECT {fixed}, 'b' FROM {numbers}")).await;
            let rest = "1, 1, 0, 0, UTC_TIMESTAMP(6), 'b'";
            let columns = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, enqueued_at, body";
            scene.sql(&format!("INSERT INTO queue_scheduled ({columns}, due_at) SELECT {fixed}, {rest}, UTC_TIMESTAMP(6) FROM {numbers}")).await;
            scene.sql(&format!("INSERT INTO queue_dead ({columns}, cause, died_at) SELECT {fixed}, {rest}, 'handler', UTC_TIMESTAMP(6) FROM {numbers}")).await;
        }
    }
    n
}

#[tokio::test]
async fn counting_the_depth_stops_at_the_cap_whatever_the_tables_hold() {
    let mut scene = Scene::new().await;
    fill(&mut scene).await;
    let empty = scene.db.topic("empty").await;
    let cap = i64::try_from(DEPTH_CAP).unwrap();
    for (topic, full) in [(scene.topic.id, true), (empty.id, false)] {
        let before = rows_read(&mut scene.conn).await;
        let depth = inspect::depth(&mut scene.conn, topic).await.unwrap();
        let read = rows_read(&mut scene.conn).await - before;
        let n = if full { DEPTH_CAP } else { 0 };
        assert_eq!((depth.unsettled, depth.scheduled, depth.dead), (n, n, n));
        // Three counts, each read once and once more as a derived table, and a few dives. The other
        // topic's rows are not read at all, or only up to the cap.
        let most = if full { 6 * cap } else { 2 * cap } + 1000;
        assert!(read <= most, "{read} rows read, full: {full}");
    }
}

#[tokio::test]
async fn peeking_shows_messages_in_order_of_handling_and_changes_nothing() {
    let mut scene = Scene::new().await;
    let message = NewMessage::new([1, 0, 255])
        .with_key([255])
        .with_biz_id("biz")
        .with_header("h", "v")
        .with_priority(Priority::LAST);
    enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    scene.enqueue(3).await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE body = '1'").await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    let seen = inspect::peek(&mut scene.conn, scene.topic.id, 10).await.unwrap();
    let order: Vec<_> =
        seen.iter().map(|m| String::from_utf8_lossy(&m.body).into_owned()).collect();
    assert_eq!(order, ["0", "2", "\u{1}\0\u{fffd}", "1"]);
    assert!(seen[0].conn_id.is_some() && seen[1].conn_id.is_none());
    assert_eq!((seen[0].delivery_no, seen[1].delivery_no), (1, 0));
    assert_eq!((seen[3].suspect, seen[3].priority), (true, Priority::default()));
    assert_eq!((seen[2].msg_id, seen[2].body.clone()), (message.msg_id, message.body));
    assert_eq!(seen[2].biz_id.as_deref(), Some("biz"));
    assert_eq!(seen[2].headers, message.headers);
    assert_eq!(inspect::peek(&mut scene.conn, scene.topic.id, 2).await.unwrap().len(), 2);
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["2"]);
}

#[tokio::test]
async fn peeking_waits_for_nobody() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut holder = scene.db.connect().await;
    holder.batch_execute("BEGIN; DELETE FROM queue_message").await.unwrap();
    assert_eq!(inspect::peek(&mut scene.conn, scene.topic.id, 10).await.unwrap().len(), 2);
    inspect::depth(&mut scene.conn, scene.topic.id).await.unwrap();
}

#[tokio::test]
async fn purging_empties_every_table_of_one_topic_in_steps() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    let worker = scene.worker().await;
    for topic in [&scene.topic, &other] {
        let messages: Vec<_> = (0..12).map(|_| NewMessage::new("m")).collect();
        enqueue_all(&mut scene.conn, &topic.name, &messages).await.unwrap();
        let got = claim_n(&worker, topic.id, 9).await;
        let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: String::new() };
        settle(&worker, all(&got[..3], &retry(Duration::from_secs(60)))).await;
        settle(&worker, all(&got[3..6], &dead)).await;
        let keep = OnDone::Keep(Duration::from_secs(60));
        let kept = got[6..].iter().map(|d| Settled::new(d, Settlement::Ack, keep));
        settle(&worker, kept.collect()).await;
    }
    for table in MessageTable::ALL {
        let purge = async |scene: &mut Scene| {
            inspect::purge_some(&mut scene.conn, table, scene.topic.id, 2).await.unwrap()
        };
        assert_eq!(purge(&mut scene).await, 2, "{table:?}");
        assert_eq!(purge(&mut scene).await, 1, "{table:?}");
        assert_eq!(purge(&mut scene).await, 0, "{table:?}");
    }
    for table in ["queue_message", "queue_scheduled", "queue_dead", "queue_archive"] {
        let left = format!("SELECT COUNT(*) FROM {table}");
        assert_eq!(scene.number(&left).await, 3, "{table} of the other topic");
    }
}

#[tokio::test]
async fn the_archive_is_pruned_of_what_has_served_its_time() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 4).await;
    let keeps = [0, 0, 3600, 7200].map(|s| OnDone::Keep(Duration::from_secs(s)));
    let kept = got.iter().zip(keeps).map(|(d, keep)| Settled::new(d, Settlement::Ack, keep));
    settle(&worker, kept.collect()).await;
    until("a moment is over", async || {
        scene.number("SELECT SUM(keep_until < UTC_TIMESTAMP(6)) FROM queue_archive").await == 2
    })
    .await;
    let prune = rowmq_core::store::prune::archive;
    assert_eq!(prune(&mut scene.conn, 1).await.unwrap(), 1);
    assert_eq!(prune(&mut scene.conn, 10).await.unwrap(), 1);
    assert_eq!(prune(&mut scene.conn, 10).await.unwrap(), 0);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_archive").await, 2);
}

#[tokio::test]
async fn an_account_with_process_sees_every_connection_and_one_without_only_its_own() {
    let scene = Scene::new().await;
    let with = scene.db.account(&["SELECT ON {}.*", "PROCESS ON *.*"]).await;
    let without = scene.db.account(&["SELECT ON {}.*"]).await;
    let mut stranger = scene.db.connect().await;
    let stranger = process_list::visibility(&mut stranger).await.unwrap().conn;
    for (url, process) in [(with, true), (without, false)] {
        let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
        let mut own = connect(&url, SessionKind::Plain).await.unwrap();
        let visibility = process_list::visibility(&mut conn).await.unwrap();
        let own = process_list::visibility(&mut own).await.unwrap();
        assert_eq!((visibility.process, &visibility.account), (process, &own.account));
        let listed = process_list::show(&mut conn).await.unwrap();
        assert!(listed.contains(&visibility.conn) && listed.contains(&own.conn));
        assert_eq!(listed.contains(&stranger), process);
    }
}

/// MySQL refuses `information_schema.PROCESSLIST` (3854) while a statement that is not UTF-8 runs.
#[tokio::test]
async fn the_process_list_can_be_read_while_a_binary_body_is_on_its_way() {
    let mut scene = Scene::new().await;
    let mut locker = scene.db.connect().await;
    locker.batch_execute("LOCK TABLES queue_message WRITE").await.unwrap();
    let mut sender = scene.db.connect().await;
    wait_for_locks(&mut sender).await;
    let id = process_list::visibility(&mut sender).await.unwrap().conn;
    let topic = scene.topic.clone();
    let binary = NewMessage::new(vec![0xC3, 0x28, 0xFF, 0x00, 0xA1]).with_key([0xFF, 0xFE]);
    let sending = rowmq_core::enqueue_to(&mut sender, &topic, std::slice::from_ref(&binary));
    let looking = async {
        until("the message is on its way", async || {
            let threads = crate::scene::threads(&mut scene.conn).await;
            threads.iter().any(|thread| thread.id == id.0 && thread.busy)
        })
        .await;
        for _ in 0..20 {
            assert!(process_list::show(&mut scene.conn).await.unwrap().contains(&id));
        }
        locker.batch_execute("UNLOCK TABLES").await.unwrap();
    };
    let (sent, ()) = tokio::join!(sending, looking);
    sent.unwrap();
    assert_eq!(number(&mut scene.conn, "SELECT COUNT(*) FROM queue_message").await, 1);
}
