//! The groups of streams: their cursors and members, and what they file under their own topics.

use rowmq_core::model::{Broadcast, DeadCause, DeliveryNo, MemberName, OffsetSpec};
use rowmq_core::store::moves::Outcome;
use rowmq_core::store::stream::filing::{Filed, Past};
use rowmq_core::store::stream::member::{MemberPosition, Progress};
use rowmq_core::store::stream::{cursor, filing, holding, member, progress};

use crate::recorder::Recorder;
use crate::sample::{
    FAILURES, GROUP, KEPT, MOMENTS, OFFSET, PARTITION, RANGE, TIME, TOPIC, WORKER,
};

pub(super) async fn all(conn: &mut Recorder) {
    cursors(conn).await;
    filed_messages(conn).await;
    members(conn).await;
    drop(holding::ranges_held(conn).await);
    drop(holding::names_held(conn).await);
    drop(holding::claims_of_group(conn, GROUP).await);
    drop(progress::of_group(conn, GROUP).await);
}

async fn cursors(conn: &mut Recorder) {
    let group = GROUP.id;
    drop(cursor::create(conn, group, PARTITION, OFFSET).await);
    drop(cursor::group_work(conn, GROUP).await);
    drop(cursor::lock(conn, group, PARTITION).await);
    drop(cursor::lock_all(conn, group).await);
    drop(cursor::advance(conn, group, PARTITION, OFFSET, 1).await);
    drop(cursor::advance_from(conn, group, PARTITION, (OFFSET, OFFSET), 1).await);
    drop(cursor::count_lost(conn, group, PARTITION, 1).await);
    drop(cursor::reset(conn, group, PARTITION, OFFSET).await);
    drop(cursor::delete(conn, group).await);
}

async fn filed_messages(conn: &mut Recorder) {
    let failures = Past::Failures { failures: 1, history: b"line".to_vec() };
    for past in [Past::Nothing, Past::AtMarkOf(RANGE), failures] {
        let filed = Filed {
            stream: TOPIC,
            partition: PARTITION,
            offsets: vec![OFFSET],
            group: GROUP.id,
            worker: WORKER,
            delivery_no: DeliveryNo(1),
            past,
        };
        for moment in MOMENTS {
            for failure in FAILURES {
                drop(filing::to_scheduled(conn, &filed, moment, failure).await);
            }
        }
        drop(filing::to_dead(conn, &filed, DeadCause::Handler, "it failed").await);
        for on_done in KEPT {
            drop(filing::to_archive(conn, &filed, Outcome::Done, on_done).await);
        }
        drop(filing::to_ledger_once(conn, &filed, TIME).await);
        drop(filing::to_ledger(conn, &filed, TIME).await);
    }
}

async fn members(conn: &mut Recorder) {
    let (group, name) = (GROUP.id, MemberName::new("north").unwrap());
    drop(member::positions(conn, group, &name).await);
    drop(member::lock(conn, group, &name).await);
    drop(member::lock_all(conn, group).await);
    drop(member::is_alive(conn, WORKER).await);
    drop(member::create(conn, group, &name, MemberPosition::new(PARTITION, OFFSET)).await);
    drop(member::take(conn, group, &name, WORKER).await);
    let progress = Progress { partition: PARTITION, next: OFFSET, lost: 1 };
    drop(member::report(conn, group, &name, WORKER, progress).await);
    drop(member::reset(conn, group, PARTITION, OFFSET).await);
    drop(member::delete(conn, group, &name).await);
    drop(member::delete_all(conn, group).await);
    let broadcast = Broadcast { id: group, stream: TOPIC, start: OffsetSpec::Latest };
    drop(member::progress(conn, broadcast).await);
}
