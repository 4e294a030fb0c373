//! What operators look at, and what they do with what they find.

use rowmq_core::model::found::{Filter, StateWord};
use rowmq_core::model::{DeadCause, Priority};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::store::find::{Bodies, TablePosition};
use rowmq_core::store::inspect::MessageTable;
use rowmq_core::store::ready::LockedReady;
use rowmq_core::store::{dead, find, inspect, ready};

use crate::recorder::Recorder;
use crate::sample::{LIMIT, MESSAGE, NOW, ROW, TIME, TOPIC, row_sets};

pub(super) async fn all(conn: &mut Recorder) {
    found_messages(conn).await;
    tables(conn).await;
    dead_letters(conn).await;
    ready_messages(conn).await;
}

async fn found_messages(conn: &mut Recorder) {
    let ids = [MESSAGE, MESSAGE];
    for bodies in [Bodies::Read, Bodies::Leave] {
        drop(find::by_ids(conn, TOPIC, &ids[..1], bodies).await);
        drop(find::by_ids(conn, TOPIC, &ids, bodies).await);
    }
    for table in MessageTable::ALL {
        for rows in row_sets() {
            drop(find::by_rows(conn, table, &rows, Bodies::Read).await);
        }
        let from = TablePosition { table, at: 0, row: ROW };
        drop(find::read_table(conn, TOPIC, &[], &Filter::default(), from, LIMIT).await);
        for state in StateWord::ALL {
            drop(find::read_table(conn, TOPIC, &ids, &filter(state), from, LIMIT).await);
        }
    }
}

fn filter(state: StateWord) -> Filter {
    Filter {
        msg_id: Some(MESSAGE),
        biz_id: Some(b"biz".to_vec()),
        key: Some(b"key".to_vec()),
        since: Some(NOW),
        before: Some(NOW),
        state: Some(state),
        error: Some("it failed".to_owned()),
        header: Some(("name".to_owned(), "value".to_owned())),
        position: None,
    }
}

async fn tables(conn: &mut Recorder) {
    drop(inspect::depth(conn, TOPIC).await);
    drop(inspect::peek(conn, TOPIC, LIMIT).await);
    for table in MessageTable::ALL {
        drop(inspect::purge_some(conn, table, TOPIC, LIMIT).await);
        drop(inspect::holds(conn, table, TOPIC).await);
        drop(inspect::next_topic(conn, table, TOPIC).await);
    }
}

async fn dead_letters(conn: &mut Recorder) {
    let filter = DeadFilter {
        since: Some(NOW),
        before: Some(NOW),
        cause: Some(DeadCause::Handler),
        error: Some("it failed".to_owned()),
        msg_id: Some(MESSAGE),
    };
    drop(dead::window(conn, TOPIC, &filter, None).await);
    for rows in row_sets() {
        drop(dead::read(conn, &rows).await);
        drop(dead::lock(conn, &rows).await);
        drop(dead::redrive(conn, &rows).await);
        drop(dead::purge(conn, &rows).await);
    }
    drop(dead::body(conn, TOPIC, ROW).await);
    drop(dead::history(conn, TOPIC, ROW).await);
    drop(dead::errors(conn, TOPIC, LIMIT).await);
    drop(dead::kept_for(conn).await);
    drop(dead::prune(conn, TOPIC, TIME, LIMIT).await);
}

async fn ready_messages(conn: &mut Recorder) {
    let place = (TOPIC, Priority::FIRST);
    drop(ready::last(conn).await);
    drop(ready::lock(conn, place, (ROW, ROW), LIMIT).await);
    for rows in row_sets() {
        let msg_ids = vec![MESSAGE; rows.len()];
        let locked = LockedReady { topic: TOPIC, priority: Priority::FIRST, rows, msg_ids };
        drop(ready::purge(conn, &locked).await);
        drop(ready::relocate(conn, &locked, TOPIC).await);
    }
    drop(ready::read(conn, place, ROW, LIMIT).await);
}
