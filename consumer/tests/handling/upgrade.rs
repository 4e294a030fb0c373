//! A release and the one before it work side by side: the next one's migration runs first, beside
//! consumers and producers of this one, and adds what they do not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::model::{OnDone, TopicSettings};
use rowmq_core::{NewMessage, Priority, enqueue_to, migration, store};
use rowmq_test::{TestDatabase, until};

use crate::handling::effects::number;
use crate::handling::running::{Running, With, drained, one_at_a_time, quick};

#[derive(QueryableByName)]
struct Table {
    #[diesel(sql_type = Text)]
    name: String,
}

/// Makes every change that a migration may make: columns with a default, at the end and in between,
/// an index, a table.
async fn migrate_to_the_next(database: &TestDatabase) {
    let mut conn = database.connect().await;
    let tables = "SELECT CAST(TABLE_NAME AS CHAR) AS name FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'queue\\_%' \
         AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME";
    let tables: Vec<Table> = diesel::sql_query(tables).load(&mut conn).await.expect("tables");
    assert!(tables.len() > 20, "{} tables", tables.len());
    for Table { name } in tables {
        let change = format!(
            "ALTER TABLE {name} ADD COLUMN next_first INT NOT NULL DEFAULT 7 FIRST, \
             ADD COLUMN next_last VARBINARY(16) NULL, ADD KEY of_the_next (next_last)"
        );
        conn.batch_execute(&change).await.unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    conn.batch_execute("CREATE TABLE queue_next (id INT PRIMARY KEY)").await.expect("a table");
    let record = "INSERT INTO queue_schema_migration (name, applied_at) \
         VALUES ('2099-01-01-000001_next', UTC_TIMESTAMP(6))";
    conn.batch_execute(record).await.expect("a record");
}

/// Fails once, snoozes once, dead-letters or acks, as the body says.
async fn handle(context: Context, handled: Arc<AtomicUsize>) -> Result<(), HandlerError> {
    match context.delivery.body.as_slice() {
        b"retry" if context.delivery.failures == 0 => Err(HandlerError::retry("no")),
        b"snooze" if context.delivery.delivery_no.0 == 1 => {
            Err(HandlerError::Snooze(Duration::from_millis(1)))
        }
        b"dead" => Err(HandlerError::dead("no")),
        b"discard" => Err(HandlerError::discard("no")),
        _ => {
            handled.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_releases_migration_stops_nobody_of_this_one() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings {
        on_done: OnDone::Keep(Duration::from_secs(600)),
        searchable: Some(Duration::from_secs(600)),
        ledger_window: Some(Duration::from_secs(600)),
        ..quick()
    };
    let topic = database.topic_with("orders", &settings).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let (name, count) = (topic.name.clone(), Arc::clone(&handled));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context| handle(context, Arc::clone(&count)));
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    let mut conn = database.connect().await;
    let mut sent = 0;
    let send = async |conn: &mut _, round: usize| {
        let later = NewMessage::new("later").with_delay(Duration::from_millis(50));
        let urgent = NewMessage::new("urgent")
            .with_priority(Priority::FIRST)
            .with_biz_id(round.to_string())
            .with_key("k");
        let mut batch = vec![later, urgent];
        batch.extend(["retry", "snooze", "dead", "discard", "ack"].map(NewMessage::new));
        enqueue_to(conn, &topic, &batch).await.expect("enqueued");
    };
    for round in 0..20 {
        send(&mut conn, round).await;
        sent += 1;
    }
    let (migrated, ()) = tokio::join!(migrate_to_the_next(&database), async {
        let mut conn = database.connect().await;
        for round in 20..60 {
            send(&mut conn, round).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let () = migrated;
    sent += 40;
    // A program of this release that starts now, and SQL that knows only this release's columns.
    let call = "CALL queue_send('orders', 'by SQL', NULL)";
    conn.batch_execute(call).await.expect("enqueued");
    running.stop().await;
    let (name, count) = (topic.name.clone(), Arc::clone(&handled));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context| handle(context, Arc::clone(&count)));
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    send(&mut conn, 60).await;
    sent += 1;
    drained(&database, &topic).await;
    until("handled", async || AtomicUsize::load(&handled, Ordering::Relaxed) > sent * 5).await;
    running.stop().await;
    assert_eq!(AtomicUsize::load(&handled, Ordering::Relaxed), sent * 5 + 1, "each once");
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!((depth.dead, depth.unsettled, depth.claimed), (sent as u64, 0, 0));
    let discarded = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'discarded'";
    assert_eq!(number(&database, discarded).await, i64::try_from(sent).expect("few"));
    assert!(migration::pending(database.url()).await.expect("read").is_empty());
    rowmq_core::doctor::require(database.url()).await.expect("a schema that serves");
}
