//! What is removed at the end of its time, and by whose rights.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use queue_core::account::Account;
use queue_core::store::inspect::depth;
use queue_core::topic::TopicSettings;
use queue_test::{TestDatabase, until};

use crate::sweeper::sweeper;

#[tokio::test(flavor = "multi_thread")]
async fn a_janitor_removes_old_dead_letters_and_a_consumer_that_sweeps_does_not() {
    let database = TestDatabase::new().await;
    let keep_dead = Some(Duration::from_secs(3600));
    let settings = TopicSettings { keep_dead, ..TopicSettings::default() };
    let topic = database.topic_with("mail", &settings).await;
    let mut conn = database.connect().await;
    let fill = format!(
        "INSERT INTO queue_dead (topic_id, priority, msg_id, delivery_no, failures, crashes, \
         suspicions, enqueued_at, body, cause, died_at) \
         SELECT {0}, 5, UNHEX(MD5(age)), 1, 1, 0, 0, UTC_TIMESTAMP(6), '', 'handler', \
         UTC_TIMESTAMP(6) - INTERVAL age MINUTE FROM (SELECT 1 AS age UNION SELECT 90) ages; \
         INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until) \
         VALUES ({0}, 0, 'b', UNHEX(MD5(1)), UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)",
        topic.id.0
    );
    conn.batch_execute(&fill).await.expect("filled");
    let consumer = sweeper(&database.account_of(Account::Consumer).await);
    until("the ledger is pruned, after the dead letters", async || {
        queue_core::store::ledger::look(&mut conn, topic.id, &[b"b"])
            .await
            .expect("read")
            .is_empty()
    })
    .await;
    assert_eq!(depth(&mut conn, topic.id).await.expect("read").dead, 2);
    drop(consumer);
    let _janitor = sweeper(&database.account_of(Account::Janitor).await);
    until("the old one is removed, and the other one stays", async || {
        depth(&mut conn, topic.id).await.expect("read").dead == 1
    })
    .await;
}
