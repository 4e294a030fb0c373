//! Topics with limited claims, read by SQL: by number, by number per key, by rate, beside workers
//! of the library and alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use rowmq_core::model::{Limits, Settlement, TopicSettings, WorkerId};
use rowmq_core::rescue::Why;
use rowmq_core::store::topic::set;
use rowmq_core::worker::Worker;
use rowmq_core::{NewMessage, enqueue_to};
use rowmq_test::{PATIENCE, until};
use tokio::time::timeout;

use crate::limits::{claim, enqueue_keys, limits};
use crate::rescue::{claims_of, take};
use crate::scene::{Scene, all, settle, threads};
use crate::sql_consumer::{SqlConsumer, bodies};

async fn scene(limits: Limits) -> Scene {
    Scene::with(&TopicSettings { limits, ..TopicSettings::default() }).await
}

async fn consumer(scene: &Scene) -> SqlConsumer {
    SqlConsumer::new(scene.db.url()).await
}

fn rate(text: &str) -> Limits {
    Limits { rate: Some(text.parse().unwrap()), ..Limits::default() }
}

#[tokio::test]
async fn sessions_and_workers_keep_the_number_together() {
    let mut scene = scene(limits(4, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(20).await;
    let (mut a, mut b) = (consumer(&scene).await, consumer(&scene).await);
    let worker = scene.worker().await;
    let first = a.claim_and_keep(3).await;
    assert_eq!(first.len(), 3);
    let of_worker = claim(&worker, &topic, 10).await;
    assert_eq!(of_worker.len(), 1, "the fourth place");
    assert!(b.claim(10).await.is_empty(), "four run");
    // Every end of a claim makes room: an ack, a retry, a release.
    a.settle(&first[0], "ack").await;
    assert_eq!(b.claim_and_keep(10).await.len(), 1);
    a.settle(&first[1], "retry").await;
    a.settle(&first[2], "release").await;
    assert_eq!(b.claim_and_keep(10).await.len(), 2);
    settle(&worker, all(&of_worker, &Settlement::Ack)).await;
    // The worker has kept the share, and runs nothing in it.
    assert_eq!(a.claim_and_keep(10).await.len(), 1);
    assert!(claim(&worker, &topic, 10).await.is_empty(), "four run");
    assert_eq!(scene.hot().await.1, 4);
}

/// Returns how much each worker may run.
async fn shares(scene: &mut Scene) -> String {
    scene.text("SELECT GROUP_CONCAT(n ORDER BY worker_id) FROM queue_share").await
}

#[tokio::test]
async fn a_session_takes_what_workers_do_not_use_and_no_more_than_an_equal_part() {
    let mut scene = scene(limits(8, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(40).await;
    let worker = scene.worker().await;
    let running = claim(&worker, &topic, 8).await;
    assert_eq!((running.len(), shares(&mut scene).await), (8, "8".to_owned()));
    let mut session = consumer(&scene).await;
    // All run: the worker loses what is beyond an equal part, and it is free once it has ended.
    assert!(session.claim(6).await.is_empty());
    assert_eq!(shares(&mut scene).await, "4");
    settle(&worker, all(&running[..3], &Settlement::Ack)).await;
    assert!(claim(&worker, &topic, 8).await.is_empty(), "five run in a share of four");
    let first = session.claim_and_keep(6).await;
    assert_eq!(first.len(), 3);
    settle(&worker, all(&running[3..6], &Settlement::Ack)).await;
    // The worker runs two in a share of four, which is its equal part.
    assert_eq!(session.claim_and_keep(6).await.len(), 1);
    assert_eq!(claim(&worker, &topic, 8).await.len(), 2);
    assert_eq!(scene.hot().await.1, 8);
}

#[tokio::test]
async fn a_session_with_an_equal_part_takes_no_more_of_a_busy_worker() {
    let mut scene = scene(limits(9, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(40).await;
    let worker = scene.worker().await;
    let running = claim(&worker, &topic, 9).await;
    settle(&worker, all(&running[..7], &Settlement::Ack)).await;
    let mut session = consumer(&scene).await;
    assert_eq!(session.claim_and_keep(4).await.len(), 4);
    assert_eq!(shares(&mut scene).await, "5");
    assert!(session.claim_and_keep(2).await.is_empty());
    assert_eq!(shares(&mut scene).await, "5");
}

#[tokio::test]
async fn the_share_of_a_worker_that_is_gone_goes_to_a_session() {
    let mut scene = scene(limits(4, 0)).await;
    scene.enqueue(10).await;
    let gone = "INSERT INTO queue_share (topic_id, worker_id, n, max_running) SELECT id, 999, 4, 4 FROM queue_topic";
    scene.sql(gone).await;
    let mut session = consumer(&scene).await;
    assert_eq!(session.claim_and_keep(3).await.len(), 3);
    assert_eq!(shares(&mut scene).await, "1");
}

#[tokio::test]
async fn a_ready_message_that_is_locked_holds_up_no_other_key() {
    let mut scene = scene(limits(0, 1)).await;
    enqueue_keys(&mut scene, &["a", "b", "c"]).await;
    let mut session = consumer(&scene).await;
    let mut locking = consumer(&scene).await;
    locking.run("START TRANSACTION").await;
    let first = scene.number("SELECT MIN(id) FROM queue_message").await;
    let row = format!("topic_id = {} AND priority = 5 AND id = {first}", scene.topic.id);
    locking.run(&format!("SELECT id INTO @id FROM queue_message WHERE {row} FOR UPDATE")).await;
    assert_eq!(bodies(&session.claim_and_keep(1).await), ["b"]);
    locking.run("ROLLBACK").await;
    until("the other is claimed", async || {
        bodies(&session.claim_and_keep(1).await).first().is_some_and(|body| body == "a")
    })
    .await;
}

/// In ten of twenty seconds: otherwise a suspect that no session can take would idle a place.
#[tokio::test]
async fn a_place_is_kept_for_a_suspect_and_then_not() {
    for limits in [limits(2, 0), limits(2, 1), limits(0, 1)] {
        let mut scene = scene(limits).await;
        enqueue_keys(&mut scene, &["a", "c", "c", "c"]).await;
        let suspects = "UPDATE queue_message SET priority = 105 WHERE ordering_key = 'c' ORDER BY id DESC LIMIT 2";
        scene.sql(suspects).await;
        let mut session = consumer(&scene).await;
        // A session that has just handled a suspect leaves the next one to the others.
        let suspect = session.claim_and_keep(5).await;
        session.settle(&suspect[0], "ack").await;
        for expected in [1, 2] {
            until("a place is kept, or is not", async || {
                session.run("SET @queue_turn = 'after a suspect'").await;
                let some = session.claim_and_keep(5).await;
                session.settle_all(&some, "release").await;
                tokio::time::sleep(Duration::from_millis(200)).await;
                some.len() == expected
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_share_in_use_by_a_claim_stays_as_it_is() {
    let mut scene = scene(limits(4, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(10).await;
    let worker = scene.worker().await;
    let running = claim(&worker, &topic, 3).await;
    settle(&worker, all(&running, &Settlement::Ack)).await;
    let mut session = consumer(&scene).await;
    let mut claiming = SqlConsumer::new(scene.db.url()).await;
    claiming.run("START TRANSACTION").await;
    claiming.run("SELECT n INTO @n FROM queue_share FOR UPDATE").await;
    // It does not wait for the claim, either.
    assert_eq!(session.claim_and_keep(4).await.len(), 1);
    claiming.run("ROLLBACK").await;
    assert_eq!(session.claim_and_keep(4).await.len(), 3);
    assert_eq!(shares(&mut scene).await, "0");
}

#[tokio::test]
async fn a_key_is_limited_and_holds_up_no_other() {
    let mut scene = scene(limits(0, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &["a", "a", "b", "-", "c", "-", "b"]).await;
    let (mut one, worker) = (consumer(&scene).await, scene.worker().await);
    let first = one.claim_and_keep(3).await;
    assert_eq!(bodies(&first), ["a", "b", "-"]);
    let of_worker = claim(&worker, &topic, 10).await;
    assert_eq!(of_worker.len(), 2, "c and -");
    assert!(one.claim(10).await.is_empty(), "a and b run");
    one.settle(&first[0], "ack").await;
    assert_eq!(bodies(&one.claim_and_keep(10).await), ["a"]);
    one.settle(&first[1], "release").await;
    let next = one.claim_and_keep(10).await;
    assert_eq!(
        (bodies(&next), next[0].delivery == first[1].delivery),
        (vec!["b".to_owned()], false)
    );
    enqueue_keys(&mut scene, &["c"]).await;
    assert!(one.claim(10).await.is_empty(), "the worker runs c");
    settle(&worker, all(&of_worker, &Settlement::Ack)).await;
    assert_eq!(bodies(&one.claim_and_keep(10).await), ["c"]);
}

/// More of a full key than one call looks through lies before the rest.
#[tokio::test]
async fn a_key_with_a_backlog_longer_than_a_look_holds_up_no_other() {
    let mut scene = scene(limits(0, 1)).await;
    enqueue_keys(&mut scene, &["a"]).await;
    for _ in 0..15 {
        scene
            .sql("INSERT INTO queue_message (topic_id, msg_id, ordering_key, body) SELECT topic_id, UNHEX(REPLACE(UUID(), '-', '')), ordering_key, body FROM queue_message")
            .await;
    }
    enqueue_keys(&mut scene, &["b", "c"]).await;
    scene.sql("UPDATE queue_message SET priority = 7 WHERE ordering_key = 'c'").await;
    let mut consumer = consumer(&scene).await;
    let first = consumer.claim_and_keep(10).await;
    assert_eq!(bodies(&first), ["a"]);
    let mut others = Vec::new();
    until("the others are found behind 32768 of the full key", async || {
        others.extend(bodies(&consumer.claim_and_keep(10).await));
        others.len() == 2
    })
    .await;
    assert_eq!(others, ["b", "c"]);
    consumer.settle(&first[0], "ack").await;
    // The look begins at the start again.
    until("the key has room", async || consumer.claim_and_keep(10).await.len() == 1).await;
}

#[tokio::test]
async fn a_rate_is_kept_over_sessions_and_workers() {
    let mut scene = scene(rate("5/1h")).await;
    let topic = scene.topic.clone();
    scene.enqueue(20).await;
    let (mut session, worker) = (consumer(&scene).await, scene.worker().await);
    let first = session.claim_and_keep(2).await;
    assert_eq!(first.len(), 2);
    assert_eq!(claim(&worker, &topic, 2).await.len(), 2);
    for claimed in &first {
        session.settle(claimed, "ack").await;
    }
    assert_eq!(session.claim_and_keep(10).await.len(), 1, "what has run counts, too");
    assert!(session.claim(10).await.is_empty());
    assert!(claim(&worker, &topic, 10).await.is_empty());
    // A faster rate holds at once: what is used up is no longer than its period.
    let limits = rate("2/100ms");
    let settings = TopicSettings { limits, ..TopicSettings::default() };
    set(&mut scene.conn, &topic.name, &settings).await.unwrap();
    let mut got = 0;
    until("five more come", async || {
        let some = session.claim_and_keep(10).await.len();
        assert!(some <= 2, "{some} at once");
        got += some;
        got >= 5
    })
    .await;
}

#[tokio::test]
async fn a_number_and_a_rate_hold_together() {
    let mut scene = scene(Limits { rate: rate("3/1h").rate, ..limits(2, 0) }).await;
    scene.enqueue(10).await;
    let mut session = consumer(&scene).await;
    let first = session.claim_and_keep(10).await;
    assert_eq!(first.len(), 2);
    assert!(session.claim(10).await.is_empty());
    session.settle_all(&first, "ack").await;
    assert_eq!(session.claim_and_keep(10).await.len(), 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_slot").await, 1, "free slots are removed");
}

#[tokio::test]
async fn a_suspect_is_claimed_within_the_limits() {
    let mut scene = scene(limits(3, 1)).await;
    enqueue_keys(&mut scene, &["a", "a", "b", "c"]).await;
    let (mut one, mut two) = (consumer(&scene).await, consumer(&scene).await);
    let first = one.claim_and_keep(1).await;
    assert_eq!(bodies(&first), ["a"]);
    scene
        .sql("UPDATE queue_message SET priority = 105 WHERE worker_id = 0 AND ordering_key <> 'c'")
        .await;
    // The first suspect's key is full: the second one is claimed, and alone.
    let suspect = two.claim_and_keep(10).await;
    assert_eq!((bodies(&suspect), suspect[0].priority), (vec!["b".to_owned()], 5));
    two.settle(&suspect[0], "ack").await;
    two.run("SET @queue_turn = NULL").await;
    assert_eq!(bodies(&two.claim_and_keep(10).await), ["c"], "there is room for it beside the key");
    one.settle(&first[0], "ack").await;
    until("the suspect is claimed", async || bodies(&one.claim_and_keep(10).await) == ["a"]).await;
}

#[tokio::test]
async fn what_has_expired_takes_no_room() {
    let mut scene = scene(limits(2, 1)).await;
    enqueue_keys(&mut scene, &["a", "b", "c"]).await;
    scene.sql("UPDATE queue_message SET expires_at = UTC_TIMESTAMP(6) WHERE body <> 'c'").await;
    let mut session = consumer(&scene).await;
    assert_eq!(bodies(&session.claim_and_keep(10).await), ["c"]);
    assert_eq!(scene.hot().await, (1, 1, 1));
    enqueue_keys(&mut scene, &["a"]).await;
    assert_eq!(bodies(&session.claim_and_keep(10).await), ["a"]);
}

/// No bell rings when a place becomes free.
#[tokio::test]
async fn a_claim_that_waits_for_room_does_not_wait_for_its_bell() {
    let mut scene = scene(limits(1, 0)).await;
    scene.enqueue(2).await;
    let (mut one, mut two) = (consumer(&scene).await, consumer(&scene).await);
    let first = one.claim_and_keep(1).await;
    assert!(two.claim(1).await.is_empty());
    let id = two.id().await;
    let bells = format!(
        "SELECT GET_LOCK(CONCAT('queue:', LOWER(HEX(instance)), ':bell'), 0) FROM queue_worker WHERE conn_id = {id}"
    );
    assert_eq!(scene.number(&bells).await, 1);
    let script = async {
        until("it looks by itself", async || {
            threads(&mut scene.conn).await.iter().any(|thread| thread.id == id && thread.sleeps)
        })
        .await;
        one.settle(&first[0], "ack").await;
    };
    // It returns after at most five seconds, and is called again.
    let call = until("it has claimed", async || {
        let call = "CALL queue_claim('t', 1, 3600)";
        two.conn.query::<Row, _>(call).await.unwrap().len() == 1
    });
    tokio::join!(call, script);
}

/// A library worker that is frozen in the gate holds up no call for longer.
#[tokio::test]
async fn a_claim_waits_for_the_gate_for_a_second_whatever_its_lock_timeout_is() {
    let mut scene = scene(limits(0, 1)).await;
    enqueue_keys(&mut scene, &["a", "b"]).await;
    let (mut session, mut gate) = (consumer(&scene).await, consumer(&scene).await);
    session.run("SET SESSION innodb_lock_wait_timeout = 3600").await;
    assert_eq!(session.claim_and_keep(1).await.len(), 1);
    gate.run("START TRANSACTION").await;
    gate.run("SELECT topic_id INTO @topic FROM queue_limit FOR UPDATE").await;
    let claimed = timeout(PATIENCE, session.claim(1)).await;
    assert!(claimed.expect("it does not wait for an hour").is_empty());
    let own = "SELECT @@SESSION.innodb_lock_wait_timeout";
    assert_eq!(session.conn.query_first(own).await.unwrap(), Some(3600));
    gate.run("ROLLBACK").await;
    assert_eq!(session.claim_and_keep(1).await.len(), 1);
}

/// A claim holds no lock while it waits at the gate: not its worker's row, which decides its death.
#[tokio::test]
async fn a_claim_that_is_killed_at_the_gate_claims_nothing() {
    let mut scene = scene(limits(0, 1)).await;
    enqueue_keys(&mut scene, &["a", "b"]).await;
    let mut session = consumer(&scene).await;
    let first = session.claim_and_keep(1).await;
    let mut gate = consumer(&scene).await;
    gate.run("START TRANSACTION").await;
    gate.run("SELECT topic_id INTO @topic FROM queue_limit FOR UPDATE").await;
    let patience = "SELECT @@SESSION.innodb_lock_wait_timeout";
    let before: Option<u32> = session.conn.query_first(patience).await.unwrap();
    let (id, killed) = (session.conn.id(), AtomicBool::new(false));
    // A call waits for a second, and finds nothing if it is not killed in time.
    let kill = until("it is killed while it waits at the gate", async || {
        if scene.lock_waits().await > 0 {
            scene.sql("SELECT id FROM queue_worker FOR UPDATE").await;
            scene.sql(&format!("KILL QUERY {id}")).await;
        }
        killed.load(Ordering::SeqCst)
    });
    let call = async {
        while session.conn.query::<Row, _>("CALL queue_claim('t', 1, NULL)").await.is_ok() {}
        killed.store(true, Ordering::SeqCst);
    };
    tokio::join!(kill, call);
    for conn in [&mut session, &mut gate] {
        conn.run("ROLLBACK").await;
    }
    session.run("CALL queue_beat()").await;
    let after: Option<u32> = session.conn.query_first(patience).await.unwrap();
    assert_eq!(after, before);
    assert_eq!(scene.hot().await, (2, 1, 1));
    session.settle(&first[0], "ack").await;
    let mut left = bodies(&session.claim_and_keep(5).await);
    left.sort_unstable();
    assert_eq!(left, ["b"]);
}

#[tokio::test]
async fn the_claims_of_a_session_that_has_left_take_no_room_once_they_are_given_back() {
    let mut scene = scene(limits(2, 1)).await;
    enqueue_keys(&mut scene, &["a", "a", "b"]).await;
    let mut dying = consumer(&scene).await;
    let held = dying.claim_and_keep(5).await;
    assert_eq!(bodies(&held), ["a", "b"]);
    let mut other = consumer(&scene).await;
    assert!(other.claim(5).await.is_empty());
    dying.run("CALL queue_leave()").await;
    assert!(other.claim(5).await.is_empty(), "its claims are not yet given back");
    let left = WorkerId(scene.number("SELECT MIN(id) FROM queue_worker").await.cast_unsigned());
    for claim in claims_of(&mut scene.conn, left).await {
        take(&mut scene.conn, &claim, Why::NotNeeded).await;
    }
    let mut claimed = Vec::new();
    until("both are claimed again", async || {
        claimed.extend(bodies(&other.claim_and_keep(5).await));
        claimed.len() == 2
    })
    .await;
    claimed.sort_unstable();
    assert_eq!(claimed, ["a", "b"]);
}

/// Sessions with safe updates on, and workers, one message at a time. `check` sees what is claimed.
#[tokio::test]
async fn many_sessions_and_workers_never_go_beyond_the_limits() {
    let with_rate = Limits { rate: rate("1000/1s").rate, ..limits(3, 0) };
    for limits in [limits(3, 0), limits(3, 1), limits(0, 2), with_rate] {
        let mut scene = scene(limits).await;
        let topic = scene.topic.clone();
        let keys = ["a", "b", "c", "-"];
        let messages: Vec<_> =
            (0..120).map(|n| NewMessage::new(format!("{n}")).with_key(keys[n % 4])).collect();
        enqueue_to(&mut scene.conn, &topic, &messages).await.unwrap();
        let handled = Arc::new(AtomicUsize::new(0));
        let mut running = Vec::new();
        for _ in 0..4 {
            let (mut session, handled) = (consumer(&scene).await, Arc::clone(&handled));
            session.run("SET SESSION sql_safe_updates = 1").await;
            running.push(tokio::spawn(async move {
                while handled.load(Ordering::SeqCst) < 120 {
                    for claimed in session.claim(2).await {
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        session.settle(&claimed, "ack").await;
                        handled.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }));
        }
        for _ in 0..2 {
            let (worker, topic, handled): (Worker, _, _) =
                (scene.worker().await, topic.clone(), Arc::clone(&handled));
            running.push(tokio::spawn(async move {
                while handled.load(Ordering::SeqCst) < 120 {
                    let some = claim(&worker, &topic, 2).await;
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    settle(&worker, all(&some, &Settlement::Ack)).await;
                    handled.fetch_add(some.len(), Ordering::SeqCst);
                }
            }));
        }
        let mut seen = 0;
        until("all are handled", async || {
            let keys = scene.text("SELECT COALESCE(GROUP_CONCAT(ordering_key), '') FROM queue_message WHERE worker_id <> 0").await;
            let mut of_keys: HashMap<&str, u32> = HashMap::new();
            for key in keys.split(',').filter(|key| !key.is_empty()) {
                *of_keys.entry(key).or_default() += 1;
            }
            let most = limits.max_running_per_key.map_or(u32::MAX, u32::from);
            assert!(of_keys.values().all(|n| *n <= most), "{limits:?}: {keys}");
            let all: u32 = of_keys.values().sum();
            assert!(all <= limits.max_running.map_or(u32::MAX, u32::from), "{limits:?}: {keys}");
            seen += all;
            handled.load(Ordering::SeqCst) >= 120
        })
        .await;
        for task in running {
            task.await.unwrap();
        }
        assert!(seen > 0, "it has looked while some ran");
        assert_eq!((handled.load(Ordering::SeqCst), scene.hot().await), (120, (0, 0, 0)));
    }
}
