//! What an earlier draft did, for histories that no changed statement can reproduce.

use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::simulation::StandIn;
use tokio::time::sleep;

use crate::stage::Stage;

/// Promotes by a predicate, used twice: once to insert, once to delete (histories H1 and H2).
pub(crate) async fn promote(stage: Rc<Stage>) {
    const COLUMNS: &str = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, \
         enqueued_at, ordering_key, biz_id, headers, history, body";
    let steps = [
        "BEGIN".to_owned(),
        format!(
            "INSERT INTO queue_message ({COLUMNS}) SELECT {COLUMNS} FROM queue_scheduled \
             WHERE due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, id"
        ),
        "DELETE FROM queue_scheduled WHERE due_at <= UTC_TIMESTAMP(6)".to_owned(),
        "COMMIT".to_owned(),
    ];
    let mut conn: Option<Box<dyn StandIn>> = None;
    loop {
        sleep(Duration::from_millis(50)).await;
        let open = match conn.take() {
            Some(open) => Ok(open),
            None => stage.connect("naive").await,
        };
        let Ok(mut open) = open else { continue };
        let mut broken = false;
        for step in &steps {
            broken = broken || open.run(step, &[]).await.is_err();
        }
        conn = (!broken).then_some(open);
    }
}

/// Removes the rows of dead workers without looking at their claims, as a naive janitor (H7).
pub(crate) async fn forget_dead_workers(stage: Rc<Stage>) {
    loop {
        sleep(Duration::from_millis(100)).await;
        let Ok(mut conn) = stage.connect("janitor-naive").await else { continue };
        while conn.run("DELETE FROM queue_worker WHERE state = 'dead'", &[]).await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    }
}
