//! Claims, the limits on them, and what tells workers where to look.

use rowmq_core::model::Priority;
use rowmq_core::store::rescue::Charge;
use rowmq_core::store::share::Share;
use rowmq_core::store::{claim, floor, limit, rescue, share};

use crate::recorder::Recorder;
use crate::sample::{
    CLAIM_NO, FENCE, LIMIT, PLACE, ROW, TIME, TOPIC, WORKER, claim, claimed, row_sets,
};

const PRIORITY: Priority = Priority::FIRST;

pub(super) async fn all(conn: &mut Recorder) {
    ready_rows(conn).await;
    updates(conn).await;
    recorded_claims(conn).await;
    limits(conn).await;
    rescues(conn).await;
    drop(floor::publish(conn, TOPIC, PRIORITY, ROW).await);
    drop(floor::all(conn).await);
    drop(floor::pulse(conn).await);
}

async fn ready_rows(conn: &mut Recorder) {
    drop(claim::walk(conn, TOPIC).await);
    drop(claim::next_ready(conn, TOPIC, PLACE).await);
    drop(claim::urgent(conn, TOPIC, PRIORITY).await);
    drop(claim::lock_ready(conn, TOPIC, PLACE, LIMIT, CLAIM_NO).await);
    drop(claim::lock_suspect(conn, TOPIC, CLAIM_NO).await);
    for rows in row_sets() {
        drop(claim::lock_rows(conn, TOPIC, PRIORITY, &rows, CLAIM_NO).await);
        drop(claim::own(conn, FENCE, TOPIC, PRIORITY, &rows).await);
    }
}

async fn updates(conn: &mut Recorder) {
    drop(claim::own_first(conn, FENCE, TOPIC, PLACE, LIMIT).await);
    drop(claim::own_ready(conn, FENCE, TOPIC, PLACE, LIMIT).await);
    drop(claim::owned(conn, FENCE, TOPIC, PLACE, LIMIT).await);
}

async fn recorded_claims(conn: &mut Recorder) {
    for rows in row_sets() {
        drop(claim::record(conn, FENCE, TOPIC, PRIORITY, &rows).await);
    }
    drop(claim::forget(conn, WORKER, &[CLAIM_NO]).await);
    drop(claim::forget(conn, WORKER, &[CLAIM_NO, CLAIM_NO]).await);
    drop(claim::frontier(conn, TOPIC, PRIORITY).await);
    drop(claim::of_worker(conn, WORKER, CLAIM_NO).await);
    drop(claim::of_topic(conn, TOPIC).await);
}

async fn limits(conn: &mut Recorder) {
    drop(limit::lock(conn, TOPIC).await);
    drop(limit::lead(conn, TOPIC).await);
    drop(limit::make(conn, TOPIC).await);
    drop(limit::spend(conn, TOPIC, TIME).await);
    drop(limit::shorten(conn, TOPIC, TIME).await);
    drop(limit::slots(conn, TOPIC).await);
    let share = Share { n: LIMIT, of: LIMIT };
    drop(share::lock(conn, TOPIC, WORKER).await);
    drop(share::all(conn, TOPIC).await);
    drop(share::lock_unused(conn, TOPIC).await);
    drop(share::set(conn, TOPIC, WORKER, share).await);
    drop(share::running(conn, &[claim(), claim(), claim()]).await);
    drop(limit::forget_shares(conn, TOPIC).await);
    drop(share::remove(conn, TOPIC, WORKER).await);
    for rows in row_sets() {
        drop(limit::free(conn, TOPIC, &rows).await);
        drop(limit::take(conn, FENCE, TOPIC, PRIORITY, &rows).await);
    }
    drop(limit::candidates(conn, TOPIC, PLACE, LIMIT).await);
    drop(limit::suspect(conn, TOPIC).await);
    drop(limit::delete(conn, TOPIC).await);
}

async fn rescues(conn: &mut Recorder) {
    drop(rescue::zombie_claims(conn, FENCE, LIMIT).await);
    drop(rescue::orphan_claims(conn, FENCE, LIMIT).await);
    drop(rescue::timed_claims(conn, FENCE, LIMIT).await);
    drop(rescue::lock_zombies(conn, &claim()).await);
    drop(rescue::rows_left(conn, &claim()).await);
    drop(rescue::max_crashes(conn, &claim()).await);
    for claimed in claimed() {
        for charge in [Charge::Nothing, Charge::Suspicion, Charge::Crash] {
            drop(rescue::free(conn, &claimed, PRIORITY, charge).await);
        }
    }
}
