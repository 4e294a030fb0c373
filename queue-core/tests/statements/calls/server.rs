//! The server itself, and what an installation has once.

use rowmq_core::store::installation::Links;
use rowmq_core::store::{doctor, grant, installation, migration, procedure, server, worker};

use crate::recorder::Recorder;
use crate::sample::TIME;

pub(super) async fn all(conn: &mut Recorder) {
    self_test(conn).await;
    installations(conn).await;
    migrations(conn).await;
    procedures(conn).await;
    drop(worker::group(conn).await);
    drop(server::status(conn).await);
    drop(server::history_length(conn).await);
    drop(server::table_sizes(conn, &["queue_message", "queue_dead"]).await);
    drop(grant::own(conn).await);
}

async fn self_test(conn: &mut Recorder) {
    let scratch = ["one", "two"];
    drop(doctor::variables(conn).await);
    drop(doctor::objects(conn).await);
    drop(doctor::shape(conn).await);
    drop(doctor::connection_ids(conn).await);
    drop(doctor::replica_of(conn).await);
    drop(doctor::try_lock(conn, "one").await);
    drop(doctor::begin(conn).await);
    drop(doctor::insert_scratch(conn, scratch).await);
    drop(doctor::lock_scratch(conn, "one").await);
    drop(doctor::remove_scratch(conn, scratch).await);
    drop(doctor::roll_back(conn).await);
}

async fn installations(conn: &mut Recorder) {
    drop(installation::make_table(conn).await);
    drop(installation::keep_secret(conn, [1; 16]).await);
    drop(installation::has_secret(conn).await);
    drop(installation::links(conn).await);
    drop(installation::use_links(conn, Links::Odd).await);
    drop(installation::holders(conn).await);
}

async fn migrations(conn: &mut Recorder) {
    drop(migration::take_lock(conn, TIME).await);
    drop(migration::release_lock(conn).await);
    drop(migration::make_ledger(conn).await);
    drop(migration::applied(conn).await);
    drop(migration::existing(conn, &["queue_message"]).await);
    drop(migration::is_empty(conn, "queue_message").await);
    drop(migration::drop_table(conn, "queue_message").await);
    drop(migration::apply(conn, "SELECT 1").await);
    drop(migration::record(conn, "one").await);
    drop(migration::are_pages_on(conn).await);
    drop(migration::old_workers(conn).await);
    drop(migration::refuse_old_workers(conn).await);
    drop(migration::default_to_pages(conn).await);
    drop(migration::turn_pages_on(conn).await);
}

async fn procedures(conn: &mut Recorder) {
    let create = "CREATE PROCEDURE queue_sample() BEGIN END";
    drop(procedure::installed(conn).await);
    drop(procedure::can_replace(conn).await);
    drop(procedure::has_definer(conn).await);
    drop(procedure::wait_for_a_second(conn).await);
    drop(procedure::create(conn, create).await);
    drop(procedure::replace(conn, create).await);
    drop(procedure::drop(conn, "queue_sample").await);
}
