//! Workers, the duties of sessions, and what is pruned.

use rowmq_core::model::{ConnId, RowId, Throughput};
use rowmq_core::store::doorbell::Listener;
use rowmq_core::store::installation::Office;
use rowmq_core::store::lane::LaneKind;
use rowmq_core::store::process_list::Visibility;
use rowmq_core::store::worker::{Incarnation, Registration, Role, WorkerRow};
use rowmq_core::store::{doorbell, duty, process_list, prune, throughput, worker};
use uuid::Uuid;

use crate::recorder::Recorder;
use crate::sample::{LIMIT, NOW, TIME, TOPIC, WORKER};

pub(super) async fn all(conn: &mut Recorder) {
    lives(conn).await;
    bells(conn).await;
    rows_and_locks(conn).await;
    totals(conn).await;
    duties(conn).await;
    pruned_rows(conn).await;
    processes(conn).await;
}

fn incarnation() -> Incarnation {
    Incarnation { server_uid: "server".to_owned(), started_at: 0 }
}

async fn lives(conn: &mut Recorder) {
    let registration = Registration {
        instance: Uuid::nil(),
        client_id: "client".to_owned(),
        version: "1".to_owned(),
        lease: TIME,
    };
    let incarnation = incarnation();
    drop(worker::register(conn, &registration, &incarnation).await);
    for role in [Role::Life, Role::Work] {
        drop(worker::adopt(conn, WORKER, Uuid::nil(), role, &incarnation).await);
    }
    drop(worker::beat(conn, WORKER, Uuid::nil()).await);
    drop(worker::stop(conn, WORKER, Uuid::nil()).await);
    drop(worker::declare_dead(conn, &row(), "silent").await);
}

async fn bells(conn: &mut Recorder) {
    let bell = Listener { worker: WORKER, instance: Uuid::nil(), checksum: 0 };
    drop(doorbell::listen(conn, WORKER, Uuid::nil(), &[TOPIC]).await);
    drop(doorbell::wait(conn, Uuid::nil(), 5).await);
    drop(doorbell::listeners(conn).await);
    drop(doorbell::topics_of(conn, WORKER).await);
    drop(doorbell::kinds(conn).await);
    drop(doorbell::take(conn, bell).await);
    for n in [1, 3, 16] {
        drop(doorbell::ring(conn, &vec![bell; n]).await);
    }
    drop(doorbell::drop_bell(conn, bell).await);
    drop(doorbell::drop_all(conn).await);
    drop(doorbell::arrivals(conn, RowId(7)).await);
    for n in [1, 3] {
        drop(doorbell::ready(conn, &vec![TOPIC; n]).await);
    }
}

fn row() -> WorkerRow {
    WorkerRow {
        id: WORKER,
        instance: Uuid::nil(),
        client_id: "client".to_owned(),
        version: "1".to_owned(),
        account: "queue@%".to_owned(),
        state: "alive".to_owned(),
        conn: ConnId(1),
        life_conn: ConnId(2),
        incarnation: incarnation(),
        lease: TIME,
        beat_no: 1,
        beat_at: NOW,
        registered_at: NOW,
        end_reason: None,
        locked: false,
        claims: 0,
    }
}

async fn rows_and_locks(conn: &mut Recorder) {
    drop(worker::incarnation(conn).await);
    for role in [Role::Life, Role::Work] {
        drop(worker::take_lock(conn, Uuid::nil(), role, TIME).await);
        drop(worker::end_old_session(conn, Uuid::nil(), role).await);
    }
    drop(worker::alive(conn).await);
    drop(worker::missing(conn).await);
    drop(worker::latest(conn, LIMIT).await);
    drop(worker::find(conn, WORKER).await);
}

async fn totals(conn: &mut Recorder) {
    let total = (TOPIC, Throughput::default());
    for totals in [&[total][..], &[total, total]] {
        drop(throughput::record(conn, WORKER, totals).await);
    }
    drop(throughput::by_topic(conn).await);
    drop(throughput::of_gone(conn, LIMIT).await);
    drop(throughput::lock(conn, WORKER).await);
    drop(throughput::fold(conn, WORKER).await);
    drop(throughput::forget(conn, WORKER).await);
    drop(throughput::forget_topics(conn).await);
}

async fn duties(conn: &mut Recorder) {
    for office in [Office::Sweeper, Office::Janitor, Office::Migrator] {
        drop(duty::take_office(conn, office).await);
        drop(duty::is_held(conn, office).await);
    }
    drop(duty::record(conn, "sweep", "janitor", b"null").await);
    drop(duty::all(conn).await);
}

async fn pruned_rows(conn: &mut Recorder) {
    drop(prune::archive(conn, LIMIT).await);
    drop(prune::ledger(conn, LIMIT).await);
    drop(prune::dedupe(conn, LIMIT).await);
    drop(prune::unique(conn, LIMIT).await);
    for kind in [LaneKind::Passing, LaneKind::Durable] {
        drop(prune::lanes(conn, kind, TIME, LIMIT).await);
    }
    drop(prune::workers(conn, TIME, LIMIT).await);
}

async fn processes(conn: &mut Recorder) {
    drop(process_list::show(conn).await);
    drop(process_list::processes(conn).await);
    drop(process_list::visibility(conn).await);
    let visibility = Visibility { account: "queue@%".to_owned(), conn: ConnId(1), process: false };
    drop(process_list::through_view(conn, &visibility).await);
}
