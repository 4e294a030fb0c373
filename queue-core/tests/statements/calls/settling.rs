//! The end of deliveries, and what their handlers leave.

use rowmq_core::model::{Checkpoint, DeadCause};
use rowmq_core::store::moves::Outcome;
use rowmq_core::store::{cancel, checkpoint, ledger, moves, settle};

use crate::recorder::Recorder;
use crate::sample::{
    FAILURES, KEPT, LIMIT, MESSAGE, MOMENTS, ROW, TIME, TOPIC, WORKER, claimed, delivery,
};

pub(super) async fn all(conn: &mut Recorder) {
    own_rows(conn).await;
    moved_rows(conn).await;
    ledger_of_biz_ids(conn).await;
    checkpoints(conn).await;
    cancellations(conn).await;
}

async fn own_rows(conn: &mut Recorder) {
    for claimed in claimed() {
        drop(settle::ack(conn, &claimed).await);
        drop(settle::release(conn, &claimed).await);
        drop(settle::wait_for_own(conn, &claimed).await);
        drop(settle::lock_own(conn, &claimed).await);
        drop(settle::read_own(conn, &claimed).await);
    }
}

async fn moved_rows(conn: &mut Recorder) {
    for claimed in claimed() {
        for moment in MOMENTS {
            for failure in FAILURES {
                drop(moves::to_scheduled(conn, &claimed, moment, failure).await);
            }
        }
        for cause in DeadCause::ALL {
            drop(moves::to_dead(conn, &claimed, cause, "it failed").await);
        }
        for outcome in [Outcome::Done, Outcome::Repeated, Outcome::Discarded("of no use")] {
            for on_done in KEPT {
                drop(moves::to_archive(conn, &claimed, outcome, on_done).await);
            }
        }
    }
}

async fn ledger_of_biz_ids(conn: &mut Recorder) {
    let (one, two) = (&b"one"[..], &b"two"[..]);
    for biz_ids in [&[one][..], &[one, two]] {
        drop(ledger::look(conn, TOPIC, biz_ids).await);
    }
    for claimed in claimed() {
        drop(ledger::enter(conn, &claimed, TIME).await);
        drop(ledger::enter_once(conn, &claimed, TIME).await);
    }
    drop(ledger::drop_expired(conn, TOPIC, one).await);
    #[cfg(feature = "simulation")]
    drop(ledger::enter_alone(conn, TOPIC, MESSAGE).await);
}

async fn checkpoints(conn: &mut Recorder) {
    let (delivery, half) = (delivery(), Checkpoint::new("half"));
    drop(checkpoint::save(conn, WORKER, &delivery, &half).await);
    drop(checkpoint::read(conn, &delivery).await);
    for claimed in claimed() {
        drop(checkpoint::forget(conn, &claimed).await);
    }
    drop(checkpoint::prune(conn, TIME, LIMIT).await);
}

async fn cancellations(conn: &mut Recorder) {
    drop(cancel::lock(conn, TOPIC, ROW, MESSAGE).await);
    drop(cancel::is_there(conn, TOPIC, ROW, MESSAGE).await);
    drop(cancel::ask(conn, ROW, Some(WORKER)).await);
    drop(cancel::taken_away(conn, WORKER).await);
    drop(cancel::was_taken(conn, ROW).await);
    drop(cancel::ask_no_more(conn, ROW).await);
    drop(cancel::taken_from(conn, WORKER).await);
    drop(cancel::prune(conn, TIME, LIMIT).await);
}
