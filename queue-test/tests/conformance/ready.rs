//! What an operator does with ready messages, beside workers that claim them.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::{Connection, Session};
use rowmq_core::model::{RowId, Settlement, TopicSettings};
use rowmq_core::{Error, NewMessage, Priority, Unique, enqueue_to, ready, store};

use crate::scene::{STRATEGIES, Scene, all, bodies, claim_n, numbers, settle};

/// Enqueues in one transaction, as unique keys require.
async fn enqueue_in_one(scene: &mut Scene, messages: &[NewMessage]) {
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &scene.topic, messages).await.unwrap();
    scene.sql("COMMIT").await;
}

async fn session(scene: &Scene) -> Session {
    let mut session = scene.db.session().await;
    let patient = session.call("wait longer for locks", async |conn| {
        conn.batch("SET SESSION innodb_lock_wait_timeout = 60").await.unwrap();
        Ok(())
    });
    patient.await.unwrap();
    session
}

#[tokio::test]
async fn messages_move_in_their_order_with_all_they_have() {
    let mut scene = Scene::new().await;
    let to = scene.db.topic("u").await;
    let mut whole = NewMessage::new("whole").with_priority(Priority::FIRST);
    whole.key = Some(b"k".to_vec());
    whole.biz_id = Some(b"b".to_vec());
    whole.headers.0.insert("h".to_owned(), "v".to_owned());
    enqueue_to(&mut scene.conn, &scene.topic, &[whole.clone()]).await.unwrap();
    let worker = scene.worker().await;
    let first = claim_n(&worker, scene.topic.id, 1).await;
    settle(&worker, all(&first, &Settlement::Release)).await;
    scene.enqueue(1100).await;
    let mut session = session(&scene).await;
    let mut told = Vec::new();
    let moved = ready::relocate(&mut session, (&scene.topic, &to), None, |n| told.push(n)).await;
    assert_eq!((moved.unwrap(), told), (1101, vec![1, 513, 1025, 1101]));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message WHERE topic_id = 1").await, 0);
    let got = claim_n(&worker, to.id, 1101).await;
    assert_eq!(got[0].msg_id, whole.msg_id);
    assert_eq!((&got[0].key, &got[0].biz_id), (&whole.key, &whole.biz_id));
    assert_eq!((&got[0].headers, got[0].delivery_no.0), (&whole.headers, 2));
    assert_eq!(bodies(&got[1..]), numbers(0..1100));
    worker.stop().await.unwrap();
}

/// Movers and claimers, with both strategies, over the same rows: each message ends once.
#[tokio::test]
async fn a_move_beside_claims_loses_and_doubles_nothing() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let to = scene.db.topic("u").await;
        scene.enqueue(3000).await;
        let workers = [scene.worker_by(strategy).await, scene.worker_by(strategy).await];
        let claims = join_all(workers.iter().map(async |worker| {
            let mut handled = Vec::new();
            loop {
                let got = match worker.claim(scene.topic.id, 50).await {
                    // A mover has held a lock for longer than a claim waits.
                    Err(error) if error.fault().is_conflict() => continue,
                    claimed => claimed.unwrap().deliveries,
                };
                if got.is_empty() {
                    return handled;
                }
                settle(worker, all(&got, &Settlement::Ack)).await;
                handled.extend(bodies(&got));
            }
        }));
        let mut sessions = [session(&scene).await, session(&scene).await];
        let moves = join_all(
            sessions.iter_mut().map(|one| ready::relocate(one, (&scene.topic, &to), None, |_| {})),
        );
        let (handled, moved) = tokio::join!(claims, moves);
        let moved: usize = moved.into_iter().map(Result::unwrap).sum();
        let mut handled = handled.concat();
        assert_eq!(handled.len() + moved, 3000);
        let rest = claim_n(&workers[0], to.id, moved).await;
        handled.extend(bodies(&rest));
        handled.sort_by_key(|body| body.parse::<usize>().unwrap());
        assert_eq!(handled, numbers(0..3000));
        for worker in workers {
            worker.stop().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_move_that_is_cut_off_has_moved_nothing_of_its_last_piece() {
    let mut scene = Scene::new().await;
    let to = scene.db.topic("u").await;
    scene.enqueue(5).await;
    let mut conn = scene.db.connect().await;
    conn.batch_execute("BEGIN").await.unwrap();
    let last = store::ready::last(&mut conn).await.unwrap();
    let of = (scene.topic.id, Priority::default());
    let locked = store::ready::lock(&mut conn, of, (RowId(0), last), 3).await.unwrap();
    assert_eq!(locked.rows.len(), 3);
    store::ready::relocate(&mut conn, &locked, to.id).await.unwrap();
    // Another move skips what is locked here.
    let mut other = scene.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    let rest = store::ready::lock(&mut other, of, (RowId(0), last), 10).await.unwrap();
    assert_eq!(rest.rows.len(), 2);
    other.batch_execute("ROLLBACK").await.unwrap();
    conn.batch_execute("ROLLBACK").await.unwrap();
    let read = store::ready::read(&mut conn, of, RowId(0), 10).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|one| String::from_utf8(one.body).unwrap()).collect();
    assert_eq!(read, numbers(0..5));
    assert_eq!(scene.hot().await.0, 5);
}

#[tokio::test]
async fn a_purge_takes_what_is_ready_frees_its_keys_and_leaves_what_is_claimed() {
    let mut scene = Scene::new().await;
    let unique = |key: &str| NewMessage::new("x").with_unique(Unique::until_done(key));
    enqueue_in_one(&mut scene, &[unique("held")]).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    let messages = [unique("free"), NewMessage::new("y")];
    enqueue_in_one(&mut scene, &messages).await;
    let mut session = session(&scene).await;
    assert_eq!(ready::purge(&mut session, &scene.topic, None, |_| {}).await.unwrap(), 2);
    assert_eq!(scene.hot().await, (1, 1, 1));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 1);
    let again = [unique("held"), unique("free")];
    enqueue_in_one(&mut scene, &again).await;
    assert_eq!(scene.hot().await.0, 2, "the key that was freed is taken, the other is held");
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_moved_message_is_found_where_it_is() {
    let settings =
        TopicSettings { searchable: Some(Duration::from_secs(3600)), ..Default::default() };
    let mut scene = Scene::with(&settings).await;
    let to = scene.db.topic_with("u", &settings).await;
    let message = NewMessage::new("x").with_biz_id("4711");
    enqueue_to(&mut scene.conn, &scene.topic, &[message]).await.unwrap();
    let mut session = session(&scene).await;
    ready::relocate(&mut session, (&scene.topic, &to), None, |_| {}).await.unwrap();
    let rows = "SELECT COUNT(*) FROM queue_lookup l JOIN queue_message m ON m.id = l.row_id \
                WHERE l.biz_id = '4711'";
    assert_eq!(scene.number(rows).await, 2, "the lookups of both topics know its row");
}

#[tokio::test]
async fn a_closed_topic_takes_no_moved_message() {
    let mut scene = Scene::new().await;
    let to = scene.db.topic("u").await;
    scene.enqueue(2).await;
    scene.sql("UPDATE queue_topic SET enqueue_paused = 1 WHERE name = 'u'").await;
    let mut session = session(&scene).await;
    let refused =
        ready::relocate(&mut session, (&scene.topic, &to), None, |_| {}).await.unwrap_err();
    assert!(matches!(refused, Error::TopicPaused { .. }), "{refused}");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message WHERE topic_id = 1").await, 2);
}
