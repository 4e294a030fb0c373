//! Dead letters: found by filters, redriven once each, whatever happens at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::{Session, transaction};
use rowmq_core::dead;
use rowmq_core::model::{Access, DeadCause, RowId, Settlement};
use rowmq_core::store::dead::{self as stored, DeadFilter, DeadLetter};
use rowmq_core::store::prune::Pruned;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::topic::{existing, set_access};
use rowmq_core::{Delivery, Error};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{PATIENCE, session_at, until};

use crate::scene::{Scene, all, bodies, claim_n, settle};

/// More dead letters than one look reads.
const MANY: usize = 1_300;

impl Scene {
    /// Enqueues `n` messages and dead-letters each with the reason that `error` gives.
    async fn dead(&mut self, n: usize, error: impl Fn(usize) -> String) -> Vec<Delivery> {
        self.enqueue(n).await;
        let worker = self.worker().await;
        let got = claim_n(&worker, self.topic.id, n).await;
        for (at, delivery) in got.iter().enumerate() {
            let cause = if at % 2 == 0 { DeadCause::Handler } else { DeadCause::Decode };
            let end = Settlement::DeadLetter { cause, error: error(at) };
            settle(&worker, all([delivery], &end)).await;
        }
        worker.stop().await.unwrap();
        got
    }

    /// Does what [`dead`](Self::dead) does, all at once.
    async fn many_dead(&mut self, n: usize) -> Vec<Delivery> {
        self.enqueue(n).await;
        let worker = self.worker().await;
        let got = claim_n(&worker, self.topic.id, n).await;
        let end = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
        settle(&worker, all(&got, &end)).await;
        worker.stop().await.unwrap();
        got
    }

    pub(crate) async fn session(&self) -> Session {
        self.db.session().await
    }

    /// Returns how many messages are dead, and how many ready.
    async fn counts(&mut self) -> (i64, i64) {
        (self.number("SELECT COUNT(*) FROM queue_dead").await, self.hot().await.0)
    }
}

fn errors(letters: &[DeadLetter]) -> Vec<&str> {
    letters.iter().map(|letter| letter.last_error.as_str()).collect()
}

#[tokio::test]
async fn a_filter_finds_what_meets_all_that_is_given_in_the_order_of_death() {
    let mut scene = Scene::new().await;
    let got = scene.dead(6, |at| format!("error {at}: 100 % wrong")).await;
    let mut session = scene.session().await;
    let topic = scene.topic.id;
    let whole = dead::list(&mut session, topic, &DeadFilter::default(), 100).await.unwrap();
    assert_eq!(
        whole.iter().map(|l| l.msg_id).collect::<Vec<_>>(),
        got.iter().map(|d| d.msg_id).collect::<Vec<_>>()
    );
    assert_eq!((whole[0].delivery_no, whole[0].failures, whole[0].body_bytes), (1, 1, 1));
    let body = async |conn: &mut _| stored::body(conn, topic, whole[3].row).await;
    assert_eq!(session.call("read", body).await.unwrap().as_deref(), Some(&b"3"[..]));

    let filters: [(DeadFilter, &[usize]); 8] = [
        (DeadFilter { error: Some("error 4".into()), ..Default::default() }, &[4]),
        (DeadFilter { error: Some("100 %".into()), ..Default::default() }, &[0, 1, 2, 3, 4, 5]),
        (DeadFilter { error: Some("ERROR".into()), ..Default::default() }, &[]),
        (DeadFilter { cause: Some(DeadCause::Decode), ..Default::default() }, &[1, 3, 5]),
        (DeadFilter { msg_id: Some(got[2].msg_id), ..Default::default() }, &[2]),
        (DeadFilter { since: Some(whole[4].died_at), ..Default::default() }, &[4, 5]),
        (DeadFilter { before: Some(whole[2].died_at), ..Default::default() }, &[0, 1]),
        (
            DeadFilter {
                since: Some(whole[1].died_at),
                before: Some(whole[5].died_at),
                cause: Some(DeadCause::Handler),
                ..Default::default()
            },
            &[2, 4],
        ),
    ];
    for (filter, expected) in filters {
        let found = dead::list(&mut session, topic, &filter, 100).await.unwrap();
        let expected: Vec<_> = expected.iter().map(|at| whole[*at].last_error.as_str()).collect();
        assert_eq!(errors(&found), expected, "{filter:?}");
    }
    let two = dead::list(&mut session, topic, &DeadFilter::default(), 2).await.unwrap();
    assert_eq!(two, whole[..2]);
}

#[tokio::test]
async fn a_list_looks_no_further_than_it_may_and_says_so() {
    let mut scene = Scene::new().await;
    scene.dead(1_100, |at| format!("error {at} of many")).await;
    let mut session = scene.session().await;
    let last = DeadFilter { error: Some("error 1099".into()), ..Default::default() };
    for (most, found, stopped_after) in [(1, 0, Some(500)), (501, 0, Some(1000)), (1001, 1, None)] {
        let listed = dead::list_among(&mut session, scene.topic.id, &last, 10, most).await.unwrap();
        assert_eq!((listed.letters.len(), listed.stopped_after), (found, stopped_after), "{most}");
    }
}

#[tokio::test]
async fn what_is_redriven_has_all_its_attempts_again_and_its_delivery_number_goes_on() {
    let mut scene = Scene::new().await;
    let got = scene.dead(5, |at| format!("error {at}")).await;
    // The worker is idle by now: it must learn of rows below its mark.
    let worker = scene.worker().await;
    assert!(worker.claim(scene.topic.id, 10).await.unwrap().deliveries.is_empty());
    let mut session = scene.session().await;
    let filter = DeadFilter { cause: Some(DeadCause::Handler), ..Default::default() };
    let mut told = Vec::new();
    let redriven = dead::redrive(&mut session, &scene.topic, &filter, None, |progress| {
        told.push(progress.done)
    });
    assert_eq!(redriven.await.unwrap(), 3);
    assert_eq!(told, [3]);
    assert_eq!(scene.counts().await, (2, 3));
    let again = claim_n(&worker, scene.topic.id, 3).await;
    assert_eq!(bodies(&again), ["0", "2", "4"]);
    for (again, before) in again.iter().zip(got.iter().step_by(2)) {
        assert_eq!((again.msg_id, again.enqueued_at), (before.msg_id, before.enqueued_at));
        assert_eq!((again.delivery_no.0, again.failures, again.crashes), (2, 0, 0));
    }
}

#[tokio::test]
async fn ten_thousand_redriven_by_several_people_run_again_once_each_with_their_bodies() {
    const N: usize = 10_000;
    let mut scene = Scene::new().await;
    let got = scene.many_dead(N).await;
    let people = (0..3).map(|_| async {
        let mut session = scene.session().await;
        dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, |_| {})
            .await
            .unwrap()
    });
    let redriven: usize = join_all(people).await.into_iter().sum();
    assert_eq!(redriven, N);
    assert_eq!(scene.counts().await, (0, N as i64));
    let worker = scene.worker().await;
    let again = claim_n(&worker, scene.topic.id, N).await;
    let contents = |deliveries: &[Delivery]| -> BTreeSet<_> {
        deliveries.iter().map(|delivery| (delivery.msg_id, delivery.body.clone())).collect()
    };
    assert_eq!(again.len(), N);
    assert_eq!(contents(&again), contents(&got));
}

#[tokio::test]
async fn a_redrive_that_is_cut_off_leaves_every_message_in_one_place() {
    for statement in [
        "SELECT id, priority, msg_id FROM queue_dead",
        "INSERT INTO queue_message",
        "DELETE d",
        "COMMIT",
    ] {
        let mut scene = Scene::new().await;
        scene.many_dead(MANY).await;
        let proxy = FaultProxy::start(scene.db.url()).await;
        let mut session = session_at(&proxy.url(scene.db.url()), PATIENCE).await;
        proxy.drop_reply_after(statement);
        let redriven =
            dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, |_| {}).await;
        assert!(redriven.is_err(), "{statement}");
        proxy.sprung().await;
        until("the cut session's transaction ends", async || scene.transactions().await.is_empty())
            .await;
        let (dead, ready) = scene.counts().await;
        assert_eq!(dead + ready, MANY as i64, "{statement}");
        assert_eq!(ready > 0, statement == "COMMIT", "{statement}");
        // The redrive continues where it was interrupted.
        let mut session = scene.session().await;
        let every = DeadFilter::default();
        let rest = dead::redrive(&mut session, &scene.topic, &every, None, |_| {}).await.unwrap();
        assert_eq!(rest as i64, dead);
        assert_eq!(scene.counts().await, (0, MANY as i64));
    }
}

#[tokio::test]
async fn a_topic_that_takes_nothing_takes_no_dead_letters_back() {
    let mut scene = Scene::new().await;
    scene.dead(1, |_| "no".to_owned()).await;
    let name = scene.topic.name.clone();
    set_access(&mut scene.conn, &name, Access::ReadOnly).await.unwrap();
    scene.topic = existing(&mut scene.conn, &name).await.unwrap();
    let mut session = scene.session().await;
    let refused =
        dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, |_| {}).await;
    assert!(matches!(refused, Err(Error::TopicPaused { .. })));
    assert_eq!(scene.counts().await, (1, 0));
}

#[tokio::test]
async fn a_purge_deletes_what_is_wanted_and_nothing_else() {
    let mut scene = Scene::new().await;
    scene.many_dead(MANY).await;
    scene.dead(4, |at| format!("error {at}")).await;
    let mut session = scene.session().await;
    let topic = scene.topic.id;
    let filter = DeadFilter { error: Some("error".into()), ..Default::default() };
    assert_eq!(dead::purge(&mut session, topic, &filter, None, |_| {}).await.unwrap(), 4);
    assert_eq!(scene.counts().await, (MANY as i64, 0));
    let every = DeadFilter::default();
    assert_eq!(dead::purge(&mut session, topic, &every, None, |_| {}).await.unwrap(), MANY);
    assert_eq!(scene.counts().await, (0, 0));
}

/// H1, for redrives.
#[tokio::test]
async fn rows_that_are_not_locked_or_gone_are_never_half_moved() {
    let mut scene = Scene::new().await;
    scene.dead(2, |_| "no".to_owned()).await;
    let first = scene.number("SELECT CAST(MIN(id) AS SIGNED) FROM queue_dead").await;
    let (first, gone) = (RowId(first.unsigned_abs()), RowId(1 << 40));
    let wrong: RowSet = [first, gone].into_iter().collect();
    let redriven =
        transaction(&mut scene.conn, "redrive", async |conn| stored::redrive(conn, &wrong).await);
    assert!(matches!(redriven.await, Err(Error::Counts { expected: 2, found: 1, .. })));
    assert_eq!(scene.counts().await, (2, 0));
}

#[tokio::test]
async fn what_its_topic_keeps_no_longer_is_pruned_but_for_what_a_redrive_has_locked() {
    let mut scene = Scene::new().await;
    scene.many_dead(MANY).await;
    let (topic, hour) = (scene.topic.id, Duration::from_secs(3600));
    scene.sql("UPDATE queue_dead SET died_at = died_at - INTERVAL 2 HOUR WHERE id % 2 = 0").await;
    assert_eq!(stored::kept_for(&mut scene.conn).await.unwrap(), []);
    scene.sql("UPDATE queue_topic SET keep_dead_ms = 3600000").await;
    assert_eq!(stored::kept_for(&mut scene.conn).await.unwrap(), [(topic, hour)]);
    let mut redriver = scene.db.connect().await;
    // READ COMMITTED releases the locks of rows that do not match.
    let lock = "BEGIN; SELECT id FROM queue_dead WHERE id % 2 = 0 ORDER BY id LIMIT 10 FOR UPDATE";
    redriver.batch_execute(lock).await.unwrap();
    let prune = async |conn: &mut _| stored::prune(conn, topic, hour, 2000).await;
    let pruned = transaction(&mut scene.conn, "prune", prune).await.unwrap();
    assert_eq!(pruned, Pruned { found: MANY / 2, removed: MANY / 2 - 10 });
    redriver.batch_execute("ROLLBACK").await.unwrap();
    let pruned = transaction(&mut scene.conn, "prune", prune).await.unwrap();
    assert_eq!(pruned, Pruned { found: 10, removed: 10 });
    assert_eq!(scene.counts().await.0, MANY as i64 / 2);
}
