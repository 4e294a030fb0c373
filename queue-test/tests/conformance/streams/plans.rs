//! H13 for streams: the plans of the statements of members, broadcast members, sequencers, the
//! rescue, the retention and operators. EXPLAIN gets the same statements with the same values.

use std::time::Duration;

use rowmq_core::AsyncMysqlConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::{
    DeadCause, HeaderFilter, Offset, OffsetSpec, PartitionNo, Position, RangeId, Settlement,
    TopicSettings,
};
use rowmq_core::rescue::{Why, take_range_back};
use rowmq_core::store::stream::holding::claims_of_group;
use rowmq_core::store::stream::log::{self, Erased, Stretch};
use rowmq_core::store::stream::member::progress as member_progress;
use rowmq_core::store::stream::progress::of_group;
use rowmq_core::store::stream::range::{self, Lock, held_back, messages_of, zombies};
use rowmq_core::store::stream::{partition, passed};
use rowmq_core::stream::broadcast::{forget_member, reset_members};
use rowmq_core::stream::group::{group_settings, leave, replay, reset_group};
use rowmq_core::worker::{Settled, Worker};
use rowmq_core::{Delivery, NewMessage, Topic, enqueue_all};
use rowmq_test::connected;

use super::broadcast::{member, name, read_n};
use super::{Stream, claim_n};
use crate::plans::{Keys, wrong_plans};
use crate::scene::{all, retry, worker_at};
use crate::wire::Recorder;

/// Messages of the log, ranges, members and workers that exist before.
const ROWS: usize = 5_000;

const KEYS: Keys = &[
    ("queue_log", &["PRIMARY"]),
    ("l", &["PRIMARY"]),
    ("queue_member", &["PRIMARY"]),
    ("m", &["PRIMARY"]),
    ("queue_range", &["PRIMARY", "queue_range_place", "queue_range_worker"]),
    ("r", &["PRIMARY", "queue_range_place", "queue_range_worker"]),
    ("queue_passed", &["PRIMARY"]),
    ("p", &["PRIMARY"]),
    ("queue_cursor", &["PRIMARY"]),
    ("c", &["PRIMARY", "queue_claim_frontier"]),
    ("queue_partition", &["PRIMARY"]),
    ("queue_worker", &["PRIMARY", "queue_worker_state"]),
    ("w", &["PRIMARY", "queue_worker_state"]),
];

/// A partition, or a group, has few ranges: one a member. Everything else is read in the order of
/// its key.
fn may_sort(sql: &str) -> bool {
    sql.contains("queue_range r") && !sql.starts_with("DELETE")
}

impl Stream {
    /// Inserts rows of others, so that a full scan of a table would show.
    async fn fill(&mut self) {
        self.sql("UPDATE queue_partition SET pages = FALSE").await;
        self.enqueue(0..ROWS).await;
        self.sequence().await;
        self.sql("UPDATE queue_partition SET pages = TRUE").await;
        let some = "FROM queue_log WHERE partition_no = 0";
        for insert in [
            format!(
                "INSERT INTO queue_member (group_id, name, partition_no, next_offset, worker_id, \
                 told_at) SELECT 900000 + offset_no % 50, CONCAT('m', offset_no), partition_no, 0, \
                 900000 + offset_no, UTC_TIMESTAMP(6) {some}"
            ),
            format!(
                "INSERT INTO queue_range (group_id, partition_no, mark, hi, worker_id, claim_no, \
                 claimed_at) SELECT 900000 + offset_no % 50, offset_no % 7, offset_no, \
                 offset_no + 1, 900000 + offset_no, 1, UTC_TIMESTAMP(6) {some}"
            ),
            format!("INSERT INTO queue_passed SELECT 900000 + offset_no, offset_no {some}"),
            format!(
                "INSERT INTO queue_cursor (group_id, partition_no, next_offset) \
                 SELECT 900000 + offset_no, 0, 0 {some}"
            ),
            format!("INSERT INTO queue_partition SELECT 900000 + offset_no, 0, 0, 0, TRUE {some}"),
            format!(
                "INSERT INTO queue_worker (instance, client_id, version, account, state, \
                 server_uid, server_started_at, lease_ms, beat_at, registered_at) \
                 SELECT UNHEX(LEFT(SHA2(offset_no, 256), 32)), '', '', '', 'alive', '', 0, 1, UTC_TIMESTAMP(6), \
                 UTC_TIMESTAMP(6) {some}"
            ),
            "ANALYZE TABLE queue_log, queue_member, queue_range, queue_passed, queue_cursor, \
             queue_partition, queue_worker"
                .to_owned(),
        ] {
            self.sql(&insert).await;
        }
    }

    async fn recorded(&self, recorder: &Recorder) -> Worker {
        worker_at(recorder.url()).await
    }
}

fn dead() -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() }
}

fn discard() -> Settlement {
    Settlement::Discard { reason: "old".to_owned() }
}

/// Settles each of `got` with a different end.
async fn end_in_every_way(worker: &Worker, got: &[Delivery]) {
    let snooze = Settlement::Snooze { delay: Duration::ZERO };
    let ends = [Settlement::Ack, retry(Duration::ZERO), dead(), discard(), snooze];
    for (one, end) in got.iter().zip(ends.iter().cycle()) {
        worker.settle(all([one], end)).await.unwrap();
    }
}

/// Runs what members of a broadcast group, and its operators, run.
async fn broadcast(stream: &mut Stream, recorder: &Recorder, conn: &mut AsyncMysqlConnection) {
    let group = stream.broadcast(OffsetSpec::Time("2020-01-01T00:00:00Z".parse().unwrap())).await;
    let (one, two) = (stream.recorded(recorder).await, stream.recorded(recorder).await);
    for (worker, named) in [(&one, Some("a")), (&two, None)] {
        let member = member(&group, named);
        let got = read_n(worker, &member, 40).await;
        end_in_every_way(worker, &got[..20]).await;
        worker.settle(all(&got[20..30], &Settlement::Ack)).await.unwrap();
        worker.settle(got[30..].iter().map(Settled::release).collect()).await.unwrap();
        let again = read_n(worker, &member, 10).await;
        worker.settle(all(&again, &Settlement::Ack)).await.unwrap();
    }
    one.stop().await.unwrap();
    // Another worker has the name afterwards, and is reset.
    read_n(&two, &member(&group, Some("a")), 10).await;
    let broadcast = group.broadcast().unwrap();
    assert_eq!(member_progress(conn, broadcast).await.unwrap().len(), 2);
    let reset = async |conn: &mut _| reset_members(conn, &group, OffsetSpec::Earliest).await;
    transaction(conn, "reset", reset).await.unwrap();
    read_n(&two, &member(&group, Some("a")), 10).await;
    forget_member(conn, &group, &name("a")).await.unwrap();
    two.stop().await.unwrap();
    let end = async |conn: &mut _| leave(conn, &group).await;
    transaction(conn, "leave", end).await.unwrap();
}

/// Runs what members of other groups run.
async fn claims(stream: &mut Stream, recorder: &Recorder, conn: &mut AsyncMysqlConnection) {
    for ordered in [false, true] {
        let filter = HeaderFilter::from(vec!["type=a".parse().unwrap()]);
        let settings = TopicSettings { filter, ..group_settings() };
        let (plain, filtered) = if ordered { ("o", "of") } else { ("g", "gf") };
        let plain = stream.group(plain, ordered).await;
        let filtered =
            stream.group_with(filtered, ordered, OffsetSpec::Offset(Offset(2000)), &settings);
        for group in [plain, filtered.await] {
            let worker = stream.recorded(recorder).await;
            let got = claim_n(&worker, &group, 20).await;
            end_in_every_way(&worker, &got[..10]).await;
            worker.settle(got[10..].iter().map(Settled::release).collect()).await.unwrap();
            stream
                .sql("UPDATE queue_range SET ready_at = UTC_TIMESTAMP(6) WHERE group_id < 900000")
                .await;
            let got = claim_n(&worker, &group, 6).await;
            worker.settle(all(&got[1..], &Settlement::Ack)).await.unwrap();
            ack_in_transaction(conn, &worker, &got[0]).await;
            worker.release_in_doubt(vec![Settled::release(&got[0])]).await.unwrap();
            claim_n(&worker, &group, 3).await;
            look(stream, conn, &group, &worker).await;
            // It was declared dead, which it may know by now.
            let _dead = worker.stop().await;
        }
    }
}

async fn ack_in_transaction(conn: &mut AsyncMysqlConnection, worker: &Worker, one: &Delivery) {
    let claims = [one.claim_no];
    let ack = transaction(conn, "ack", async |conn| {
        let ranges = range::of_claims(conn, worker.id(), &claims, Lock::Shared).await?;
        passed::insert(conn, ranges[0].id, one.position.unwrap().offset).await
    });
    ack.await.unwrap();
}

/// Runs what operators, and the rescue, run.
async fn look(
    stream: &mut Stream,
    conn: &mut AsyncMysqlConnection,
    topic: &Topic,
    worker: &Worker,
) {
    let group = topic.group().unwrap();
    of_group(conn, group).await.unwrap();
    claims_of_group(conn, group).await.unwrap();
    held_back(conn, group).await.unwrap();
    assert!(messages_of(conn, worker.id()).await.unwrap() > 0);
    let (from, to) = (OffsetSpec::Offset(Offset(0)), OffsetSpec::Offset(Offset(5)));
    let again = async |conn: &mut _| replay(conn, topic, from, to).await;
    transaction(conn, "replay", again).await.unwrap();
    stream.sql(&format!("UPDATE queue_worker SET state = 'dead' WHERE id = {}", worker.id())).await;
    for zombie in zombies(conn, RangeId(0), 100).await.unwrap() {
        let why = Why::Crashed { rows_held: 9 };
        let take = async |conn: &mut _| take_range_back(conn, &zombie.range, why).await;
        transaction(conn, "rescue", take).await.unwrap();
    }
    let reset = async |conn: &mut _| reset_group(conn, topic, OffsetSpec::Earliest).await;
    transaction(conn, "reset", reset).await.unwrap();
}

/// Runs what the retention runs, and an erasure.
async fn prune(stream: &Stream, conn: &mut AsyncMysqlConnection) {
    let (lo, hi) = (Offset(0), Offset(50));
    let stretch = Stretch { stream: stream.topic.id, partition: PartitionNo(1), lo, hi };
    log::mean_bytes(conn, stretch).await.unwrap();
    let (offset, id) = log::msg_ids(conn, stretch).await.unwrap()[0];
    let at = Position { partition: stretch.partition, offset };
    assert_eq!(log::erase(conn, stretch.stream, at, id).await.unwrap(), Erased::Now);
    assert_eq!(log::remove(conn, stretch).await.unwrap(), 50);
    partition::cut(conn, stream.topic.id, PartitionNo(1), hi).await.unwrap();
}

#[tokio::test]
async fn every_statement_of_streams_reads_by_its_key_and_sorts_no_log() {
    let mut stream = Stream::new(2).await;
    stream.fill().await;
    let recorder = Recorder::start(stream.db.url()).await;
    let mut conn = connected(recorder.url()).await;
    let wanted: Vec<_> =
        (0..200).map(|n| NewMessage::new(n.to_string()).with_header("type", "a")).collect();
    enqueue_all(&mut conn, &stream.topic.name, &wanted).await.unwrap();
    broadcast(&mut stream, &recorder, &mut conn).await;
    claims(&mut stream, &recorder, &mut conn).await;
    prune(&stream, &mut conn).await;
    let (wrong, explained) = wrong_plans(stream.db.url(), &recorder, KEYS, may_sort).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(explained > 40, "only {explained} statements were recorded");
}
