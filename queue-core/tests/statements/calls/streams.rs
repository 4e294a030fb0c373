//! Streams: the inbox, the log, its partitions, and the ranges that are claimed of it.

use rowmq_core::model::found::Filter;
use rowmq_core::model::{DeliveryNo, NewMessage, Priority};
use rowmq_core::store::find::Bodies;
use rowmq_core::store::rescue::Charge;
use rowmq_core::store::stream::inbox::Run;
use rowmq_core::store::stream::log::{Reading, Stretch};
use rowmq_core::store::stream::partition::Partition;
use rowmq_core::store::stream::range::{Lock, Range, Wanted};
use rowmq_core::store::stream::{inbox, log, partition, passed, range, search};

use crate::recorder::Recorder;
use crate::sample::{
    CLAIM_NO, FAILURES, FENCE, GROUP, LIMIT, MESSAGE, MOMENTS, OFFSET, PARTITION, POSITION, RANGE,
    TOPIC, WORKER, batches, row_sets, topic,
};

pub(super) async fn all(conn: &mut Recorder) {
    inboxes(conn).await;
    logs(conn).await;
    searches(conn).await;
    partitions(conn).await;
    claimed_ranges(conn).await;
    settled_ranges(conn).await;
    ranges_of_ended_workers(conn).await;
    passed_messages(conn).await;
}

const STRETCH: Stretch = Stretch { stream: TOPIC, partition: PARTITION, lo: OFFSET, hi: OFFSET };

async fn inboxes(conn: &mut Recorder) {
    drop(inbox::is_empty(conn, TOPIC).await);
    drop(inbox::scan(conn, TOPIC, 1, LIMIT).await);
    for rows in row_sets() {
        let run = Run { stream: TOPIC, priority: Priority::FIRST, rows, bytes: 0 };
        drop(inbox::append(conn, &run, PARTITION, OFFSET).await);
        drop(inbox::remove(conn, &run).await);
    }
}

async fn logs(conn: &mut Recorder) {
    // A log takes no message that is due later, and none that holds a key until it is done.
    let fits = |message: &NewMessage| message.deliver.is_none() && message.unique.is_none();
    for batch in batches().iter().filter(|batch| batch.iter().all(fits)) {
        let places = vec![POSITION; batch.len()];
        drop(log::append(conn, TOPIC, batch, &places).await);
    }
    let reading = Reading { group: GROUP.id, claim_no: CLAIM_NO, delivery_no: DeliveryNo(1) };
    drop(log::read(conn, STRETCH, reading).await);
    for offsets in [&[OFFSET][..], &[OFFSET, OFFSET]] {
        drop(log::read_some(conn, STRETCH, reading, offsets).await);
    }
    drop(log::msg_ids(conn, STRETCH).await);
    drop(log::headers(conn, STRETCH).await);
    drop(log::at_or_after(conn, TOPIC, PARTITION, OFFSET).await);
    drop(log::begin_of(conn, TOPIC, PARTITION, OFFSET).await);
    drop(log::ends(conn, STRETCH, 1).await);
    drop(log::remove(conn, STRETCH).await);
    drop(log::erase(conn, TOPIC, POSITION, MESSAGE).await);
    drop(log::mean_bytes(conn, STRETCH).await);
}

async fn searches(conn: &mut Recorder) {
    let filter = Filter { key: Some(b"key".to_vec()), ..Filter::default() };
    for ids in [&[][..], &[MESSAGE]] {
        drop(search::newest(conn, STRETCH, ids, &filter, LIMIT).await);
    }
    for bodies in [Bodies::Read, Bodies::Leave] {
        drop(search::at(conn, &topic(), PARTITION, &[OFFSET], bodies).await);
    }
    drop(search::part_of(conn, GROUP, POSITION).await);
}

async fn partitions(conn: &mut Recorder) {
    drop(partition::create(conn, TOPIC, 0, 1).await);
    drop(partition::all(conn, TOPIC).await);
    drop(partition::of_group(conn, GROUP.id).await);
    drop(partition::lock(conn, TOPIC).await);
    drop(partition::lock_free(conn, TOPIC).await);
    drop(partition::try_lock(conn, TOPIC, PARTITION).await);
    drop(partition::find(conn, TOPIC, PARTITION).await);
    let seen = Partition { no: PARTITION, first: OFFSET, next: OFFSET, pages: false };
    drop(partition::advance(conn, TOPIC, seen, 1).await);
    drop(partition::cut(conn, TOPIC, PARTITION, OFFSET).await);
    drop(partition::delete(conn, TOPIC).await);
}

async fn claimed_ranges(conn: &mut Recorder) {
    let (group, offsets) = (GROUP.id, (OFFSET, OFFSET));
    for wanted in [Wanted::Shared, Wanted::Suspect] {
        drop(range::lock_free(conn, group, PARTITION, wanted).await);
    }
    drop(range::of_partition(conn, group, PARTITION).await);
    drop(range::of_worker(conn, WORKER).await);
    for lock in [Lock::None, Lock::Shared, Lock::Alone] {
        drop(range::of_claims(conn, WORKER, &[CLAIM_NO], lock).await);
    }
    drop(range::insert_own(conn, group, PARTITION, offsets, FENCE).await);
    drop(range::insert_free(conn, group, PARTITION, offsets, DeliveryNo(1), 0).await);
    drop(range::take(conn, RANGE, OFFSET, FENCE).await);
}

async fn settled_ranges(conn: &mut Recorder) {
    drop(range::pass(conn, RANGE, FENCE, (OFFSET, OFFSET)).await);
    drop(range::end(conn, RANGE, FENCE).await);
    drop(range::release(conn, RANGE, FENCE, OFFSET).await);
    for moment in MOMENTS {
        for failure in FAILURES {
            drop(range::hold_back(conn, RANGE, FENCE, moment, failure).await);
        }
    }
    drop(range::held_back(conn, GROUP).await);
    drop(range::lock_all(conn, GROUP.id, PARTITION).await);
    drop(range::forget(conn, GROUP.id, PARTITION).await);
}

async fn ranges_of_ended_workers(conn: &mut Recorder) {
    let one = Range {
        id: RANGE,
        group: GROUP.id,
        partition: PARTITION,
        mark: OFFSET,
        hi: OFFSET,
        fence: FENCE,
        delivery_no: DeliveryNo(1),
        failures: 0,
        crashes: 0,
        suspicions: 0,
    };
    drop(range::zombies(conn, RANGE, LIMIT).await);
    drop(range::orphans(conn, RANGE, LIMIT).await);
    drop(range::timed(conn, RANGE, LIMIT).await);
    for charge in [Charge::Nothing, Charge::Suspicion, Charge::Crash] {
        drop(range::free(conn, &one, charge).await);
    }
    drop(range::try_lock(conn, &one).await);
    drop(range::lock(conn, &one).await);
    drop(range::left_of(conn, &one).await);
    drop(range::messages_of(conn, WORKER).await);
}

async fn passed_messages(conn: &mut Recorder) {
    drop(passed::of_range(conn, RANGE).await);
    drop(passed::insert(conn, RANGE, OFFSET).await);
    drop(passed::delete(conn, RANGE, &[OFFSET]).await);
    drop(passed::forget(conn, RANGE, OFFSET).await);
    drop(passed::hand_on(conn, RANGE, RANGE, (OFFSET, OFFSET)).await);
    drop(passed::forget_of_group(conn, GROUP.id, PARTITION).await);
}
