//! Messages on their way in.

use rowmq_core::model::{MsgId, Priority, Sampling};
use rowmq_core::store::lane::{LaneId, LaneKind};
use rowmq_core::store::lookup::{By, Placed};
use rowmq_core::store::scheduled::{Due, Reach, ScheduledPosition};
use rowmq_core::store::unique::{Holder, Location, WantedKey};
use rowmq_core::store::{dedupe, enqueue, lane, lookup, scheduled, trace, unique};
use uuid::Uuid;

use crate::recorder::Recorder;
use crate::sample::{LIMIT, MESSAGE, MOMENTS, NOW, ROW, TIME, TOPIC, batches, claimed, row_sets};

pub(super) async fn all(conn: &mut Recorder) {
    batches_of_messages(conn).await;
    lanes(conn).await;
    scheduled_messages(conn).await;
    ids(conn).await;
    unique_keys(conn).await;
    replaced_messages(conn).await;
    lookups(conn).await;
}

async fn batches_of_messages(conn: &mut Recorder) {
    for batch in batches() {
        drop(enqueue::insert(conn, TOPIC, &batch).await);
        drop(enqueue::insert_in_lane(conn, TOPIC, &batch, lane(LaneKind::Passing), 1).await);
        drop(scheduled::insert(conn, TOPIC, &batch).await);
        drop(lookup::insert(conn, TOPIC, &batch, Placed::Ready).await);
        drop(lookup::insert(conn, TOPIC, &batch, Placed::Later).await);
        drop(trace::enqueued(conn, TOPIC, Sampling::ALL, &batch).await);
    }
    // The rest of the batch went elsewhere.
    drop(enqueue::insert_in_lane(conn, TOPIC, &[], lane(LaneKind::Durable), 1).await);
    drop(enqueue::packet_limit(conn).await);
}

fn lane(kind: LaneKind) -> LaneId {
    LaneId { row: ROW, name: Uuid::nil(), kind }
}

async fn lanes(conn: &mut Recorder) {
    for kind in [LaneKind::Passing, LaneKind::Durable] {
        drop(lane::open(conn, kind, Uuid::nil()).await);
        drop(lane::seq(conn, lane(kind)).await);
        drop(lane::fence(conn, lane(kind), 1).await);
        drop(lane::close(conn, lane(kind)).await);
    }
}

async fn scheduled_messages(conn: &mut Recorder) {
    for reach in [Reach::Recent, Reach::All] {
        drop(scheduled::next_due(conn, reach).await);
        drop(scheduled::lock_due(conn, reach, LIMIT).await);
    }
    for rows in row_sets() {
        drop(scheduled::promote(conn, &rows).await);
        for moment in MOMENTS {
            drop(scheduled::reschedule(conn, &rows, moment).await);
        }
    }
    let after = ScheduledPosition { due_at: NOW, row: ROW };
    drop(scheduled::read(conn, TOPIC, Some(after), LIMIT).await);
    drop(scheduled::find(conn, TOPIC, MESSAGE).await);
    drop(scheduled::list(conn, TOPIC, LIMIT).await);
}

async fn ids(conn: &mut Recorder) {
    for ids in [&[MESSAGE][..], &[MESSAGE, MsgId(Uuid::nil())]] {
        drop(dedupe::enter(conn, TOPIC, ids, TIME).await);
        drop(dedupe::take_back(conn, TOPIC, ids).await);
    }
    drop(dedupe::forget_some(conn, TOPIC, LIMIT).await);
}

async fn unique_keys(conn: &mut Recorder) {
    let wanted = |key| WantedKey { key, msg_id: MESSAGE, time: Some(TIME) };
    for wanted in [&[wanted(b"one")][..], &[wanted(b"one"), wanted(b"two")]] {
        drop(unique::take(conn, TOPIC, wanted).await);
    }
    for message in batches().iter().flatten() {
        drop(unique::place(conn, TOPIC, b"key", message).await);
    }
    for claimed in claimed() {
        drop(unique::lock(conn, &claimed).await);
        drop(unique::holding(conn, &claimed).await);
        drop(unique::release(conn, &claimed).await);
        drop(unique::take_again(conn, TOPIC, &claimed.rows).await);
        drop(unique::drop_of_scheduled(conn, &claimed.rows).await);
    }
    drop(unique::take_over(conn, TOPIC, b"key", MESSAGE).await);
    drop(unique::forget_some(conn, TOPIC, LIMIT).await);
}

async fn replaced_messages(conn: &mut Recorder) {
    let ready = Location::Ready(Priority::FIRST, ROW);
    for location in [ready, Location::Scheduled(ROW), Location::Redriven] {
        let holder = Holder { key: b"key".to_vec(), msg_id: MESSAGE, location: Some(location) };
        for message in batches().iter().flatten() {
            for max_wait in [None, Some(TIME)] {
                drop(unique::replace(conn, TOPIC, &holder, message, max_wait).await);
            }
            drop(lookup::replace(conn, TOPIC, MESSAGE, message).await);
        }
    }
}

async fn lookups(conn: &mut Recorder) {
    drop(lookup::follow(conn, TOPIC, TOPIC, ROW, &[MESSAGE]).await);
    let due = Due {
        row: ROW,
        topic: TOPIC,
        priority: Priority::FIRST,
        late: TIME,
        bytes: 1,
        searchable: Some(MESSAGE),
    };
    drop(lookup::follow_promoted(conn, ROW, &[due]).await);
    drop(lookup::is_kept_for(conn, TOPIC).await);
    let time = By::Time(Some(NOW), Some(NOW));
    for by in [By::MsgId(MESSAGE), By::BizId(b"biz"), By::Key(b"key"), time] {
        drop(lookup::entries(conn, TOPIC, by, Some((NOW, MESSAGE)), LIMIT).await);
    }
    drop(lookup::topics(conn).await);
    drop(lookup::aged(conn, TOPIC, TIME, None, LIMIT).await);
    drop(lookup::prune(conn, TOPIC, TIME, &[MESSAGE]).await);
    drop(lookup::drop_some(conn, TOPIC, LIMIT).await);
}
