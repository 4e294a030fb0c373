//! Topics with limited claims: by number, by number per key, by rate.

use std::num::NonZeroU32;
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::model::{Limits, Priority, Settlement, TopicSettings};
use rowmq_core::store::topic::set;
use rowmq_core::worker::{Settled, Worker};
use rowmq_core::{Delivery, Error, NewMessage, Topic, TopicName, enqueue_to};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use crate::rescue::crash_and_rescue;
use crate::scene::{Scene, all, bodies, claim_n, settle, worker_at};
use crate::streams::Stream;

pub(crate) fn limits(running: u32, per_key: u32) -> Limits {
    Limits {
        max_running: NonZeroU32::new(running),
        max_running_per_key: NonZeroU32::new(per_key),
        rate: None,
    }
}

async fn scene(limits: Limits) -> Scene {
    Scene::with(&TopicSettings { limits, ..TopicSettings::default() }).await
}

/// Enqueues one message for each of these keys, with the key as its body; `-` has no key.
pub(crate) async fn enqueue_keys(scene: &mut Scene, keys: &[&str]) {
    let message = |key: &&str| match *key {
        "-" => NewMessage::new("-"),
        key => NewMessage::new(key).with_key(key),
    };
    let messages: Vec<_> = keys.iter().map(message).collect();
    enqueue_to(&mut scene.conn, &scene.topic, &messages).await.unwrap();
}

pub(crate) async fn claim(worker: &Worker, topic: &Topic, n: u32) -> Vec<Delivery> {
    worker.claim(topic.id, n).await.unwrap().deliveries
}

async fn ack(worker: &Worker, deliveries: &[Delivery]) {
    settle(worker, all(deliveries, &Settlement::Ack)).await;
}

#[tokio::test]
async fn so_many_messages_of_a_topic_are_claimed_at_a_time_over_all_workers() {
    let mut scene = scene(limits(3, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(10).await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    let first = claim(&a, &topic, 2).await;
    let second = claim(&b, &topic, 5).await;
    assert_eq!((first.len(), second.len()), (2, 1));
    let none = b.claim(topic.id, 5).await.unwrap();
    assert!(none.deliveries.is_empty() && none.more_later);
    ack(&a, &first[..1]).await;
    // The place is in the share of the other worker, which still runs a message.
    assert_eq!(claim(&a, &topic, 5).await.len(), 1);
    assert!(claim(&b, &topic, 5).await.is_empty());
    // Every end of a claim frees it: an ack, a retry, a release.
    let again = Settlement::Retry { delay: Duration::from_secs(3600), error: "no".to_owned() };
    settle(&a, all(&first[1..], &again)).await;
    settle(&b, second.iter().map(Settled::release).collect()).await;
    // A worker that runs nothing gives its share up.
    assert_eq!(claim_up_to(&a, &topic, 2).await, 2);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message WHERE worker_id > 0").await, 3);
}

/// Claims until the worker has claimed `n` messages more, and not one beyond them.
async fn claim_up_to(worker: &Worker, topic: &Topic, n: usize) -> usize {
    let mut got = 0;
    until("a worker's share grows", async || {
        got += claim(worker, topic, 50).await.len();
        got >= n
    })
    .await;
    got + claim(worker, topic, 50).await.len()
}

#[tokio::test]
async fn a_worker_claims_within_its_share_while_another_one_is_in_the_middle_of_a_claim() {
    let mut scene = scene(limits(4, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(10).await;
    let (a, b, c) = (scene.worker().await, scene.worker().await, scene.worker().await);
    let of_a = claim(&a, &topic, 2).await;
    let of_b = claim(&b, &topic, 2).await;
    assert_eq!((of_a.len(), of_b.len()), (2, 2));
    let mut frozen = scene.db.connect().await;
    let lock =
        format!("BEGIN; SELECT n FROM queue_share WHERE worker_id = {} FOR UPDATE", a.id().0);
    frozen.batch_execute(&lock).await.unwrap();
    ack(&b, &of_b[..1]).await;
    assert_eq!(claim(&b, &topic, 2).await.len(), 1);
    // A worker that asks for a share does not wait for that claim, either: it gets what is not used
    // of the other share.
    ack(&b, &of_b[1..]).await;
    assert_eq!(claim(&c, &topic, 2).await.len(), 1);
    frozen.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_share_counts_no_more_once_the_topic_has_had_other_limits() {
    let mut scene = scene(limits(10, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(40).await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    for worker in [&a, &b] {
        let got = claim(worker, &topic, 5).await;
        assert_eq!(got.len(), 5);
    }
    scene.sql("UPDATE queue_message SET worker_id = 0, claim_no = 0").await;
    scene.sql("DELETE FROM queue_claim").await;
    let with_rate = Limits { rate: Some("1000000/1s".parse().unwrap()), ..limits(10, 0) };
    change(&mut scene, with_rate, &[&a, &b]).await;
    assert!(claim(&b, &topic, 0).await.is_empty());
    assert_eq!(claim(&a, &topic, 10).await.len(), 10);
    change(&mut scene, limits(10, 0), &[&a, &b]).await;
    assert!(claim(&b, &topic, 10).await.is_empty(), "ten run");
}

/// Changes the topic's limits, and waits until the workers know.
async fn change(scene: &mut Scene, limits: Limits, workers: &[&Worker]) {
    let settings = TopicSettings { limits, ..TopicSettings::default() };
    set(&mut scene.conn, &scene.topic.name, &settings).await.unwrap();
    for worker in workers {
        let life = worker.life();
        let topic = scene.topic.id;
        until("the worker hears of it", async || life.borrow().pulse.limits(topic) == limits).await;
    }
}

#[tokio::test]
async fn a_worker_that_took_everything_makes_room_for_another_one() {
    let mut scene = scene(limits(4, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(100).await;
    let (first, late) = (scene.worker().await, scene.worker().await);
    let mut running = claim(&first, &topic, 10).await;
    assert_eq!(running.len(), 4);
    let mut got = 0;
    // The first one claims again as soon as a message ends, and still the other one gets its part.
    until("the late worker has an equal part", async || {
        got += claim(&late, &topic, 10).await.len();
        let ended: Vec<_> = running.drain(..running.len().min(1)).collect();
        ack(&first, &ended).await;
        running.extend(claim(&first, &topic, 10).await);
        let claimed = scene.number("SELECT COUNT(*) FROM queue_message WHERE worker_id > 0").await;
        assert!(claimed <= 4, "{claimed} run");
        got >= 2
    })
    .await;
}

#[tokio::test]
async fn the_share_of_a_dead_worker_goes_to_the_others() {
    let mut scene = scene(limits(3, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(5).await;
    let (dying, other) = (scene.worker().await, scene.worker().await);
    assert_eq!(claim(&dying, &topic, 3).await.len(), 3);
    assert!(claim(&other, &topic, 3).await.is_empty());
    crash_and_rescue(&mut scene, dying).await;
    assert_eq!(claim_up_to(&other, &topic, 3).await, 3);
}

#[tokio::test]
async fn a_suspect_finds_a_place_in_a_limit_that_others_use_up() {
    let mut scene = scene(limits(2, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(50).await;
    let (busy, idle) = (scene.worker().await, scene.worker().await);
    let mut running = claim(&busy, &topic, 2).await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE worker_id = 0 LIMIT 1").await;
    let mut suspect = Vec::new();
    until("the suspect is claimed", async || {
        let ended: Vec<_> = running.drain(..running.len().min(1)).collect();
        ack(&busy, &ended).await;
        running.extend(claim(&busy, &topic, 2).await);
        suspect = idle.claim_suspect(topic.id).await.unwrap().deliveries;
        let claimed = scene.number("SELECT COUNT(*) FROM queue_message WHERE worker_id > 0").await;
        assert!(claimed <= 2, "{claimed} run");
        !suspect.is_empty()
    })
    .await;
    assert_eq!(suspect.len(), 1);
}

#[tokio::test]
async fn the_share_of_a_worker_that_is_no_longer_registered_is_removed() {
    let mut scene = scene(limits(10, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(1).await;
    scene.sql("INSERT INTO queue_share SELECT id, 999999, 3, 10 FROM queue_topic").await;
    let worker = scene.worker().await;
    assert_eq!(claim(&worker, &topic, 1).await.len(), 1);
    let left = "SELECT COUNT(*) FROM queue_share WHERE worker_id = 999999";
    assert_eq!(scene.number(left).await, 0);
}

/// The worker loses its share to keep a place for the suspect. Its loop claims the suspect 0.2 s
/// later, which is too early for another request by an ordinary claim.
#[tokio::test]
async fn a_suspect_gets_the_place_that_was_kept_for_it() {
    let mut scene = scene(limits(1, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(200).await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    proxy.delay(Duration::from_millis(3));
    let worker = worker_at(&proxy.url(scene.db.url())).await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE worker_id = 0 LIMIT 1").await;
    until("a place is kept", async || {
        let claimed = worker.claim(topic.id, 1).await.unwrap();
        ack(&worker, &claimed.deliveries).await;
        claimed.suspect_waits && claimed.deliveries.is_empty()
    })
    .await;
    let suspect = worker.claim_suspect(topic.id).await.unwrap().deliveries;
    assert_eq!(suspect.len(), 1);
}

/// The reply of a claim's commit is lost, and another session has locked its rows, so the worker
/// cannot give them back when its session reopens.
#[tokio::test]
async fn rows_of_a_lost_claim_count_while_they_cannot_be_given_back() {
    let mut scene = scene(limits(2, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(10).await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let worker = worker_at(&proxy.url(scene.db.url())).await;
    ack(&worker, &claim_n(&worker, topic.id, 2).await).await;
    proxy.drop_reply_after("COMMIT");
    assert!(worker.claim(topic.id, 2).await.is_err());
    proxy.sprung().await;
    let claimed = "SELECT COUNT(*) FROM queue_message WHERE worker_id > 0";
    assert_eq!(scene.number(claimed).await, 2);
    let mut stranger = scene.db.connect().await;
    let lock = "BEGIN; SELECT id FROM queue_message WHERE worker_id > 0 FOR UPDATE";
    stranger.batch_execute(lock).await.unwrap();
    assert!(claim(&worker, &topic, 2).await.is_empty(), "two are claimed");
    stranger.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_only_message_was_cancelled_takes_up_no_room() {
    let mut scene = scene(limits(1, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(3).await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    let held = claim(&a, &topic, 1).await;
    assert!(claim(&b, &topic, 1).await.is_empty());
    let mut cancellation = Cancellation::new(&topic, held[0].msg_id);
    let attempt = cancellation.attempt(&mut scene.db.session().await, Claims::TakeAway).await;
    assert_eq!(attempt.unwrap(), Attempt::Cancelled(Was::Fenced));
    // The handler of the other worker still runs, so that worker has not forgotten its claim.
    assert_eq!(claim_up_to(&b, &topic, 1).await, 1);
}

/// The worker has no room while the limit is lifted, so it claims nothing then.
#[tokio::test]
async fn a_share_does_not_outlive_a_change_of_limits_that_its_worker_has_missed() {
    let mut scene = scene(limits(10, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(60).await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    let of_a = claim(&a, &topic, 5).await;
    assert_eq!(of_a.len(), 5);
    ack(&a, &of_a).await;
    change(&mut scene, limits(0, 0), &[&a, &b]).await;
    claim_n(&b, topic.id, 40).await;
    change(&mut scene, limits(10, 0), &[&a, &b]).await;
    assert!(claim(&a, &topic, 5).await.is_empty(), "forty run");
}

#[tokio::test]
async fn so_many_messages_of_a_key_are_claimed_at_a_time_and_others_pass_it_by() {
    let mut scene = scene(limits(0, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &["a", "a", "b", "-", "-", "a", "b", "c"]).await;
    let (one, two) = (scene.worker().await, scene.worker().await);
    let first = claim(&one, &topic, 3).await;
    assert_eq!(bodies(&first), ["a", "b", "-"]);
    assert_eq!(bodies(&claim(&two, &topic, 10).await), ["-", "c"]);
    assert!(two.claim(topic.id, 10).await.unwrap().more_later);
    ack(&one, &first[..1]).await;
    assert_eq!(bodies(&claim(&two, &topic, 10).await), ["a"]);
    ack(&one, &first[1..2]).await;
    assert_eq!(bodies(&claim(&two, &topic, 10).await), ["b"]);
}

#[tokio::test]
async fn what_a_dead_worker_had_claimed_takes_up_no_room() {
    let mut scene = scene(limits(2, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &["a", "b", "a", "b"]).await;
    let (dying, other) = (scene.worker().await, scene.worker().await);
    assert_eq!(claim(&dying, &topic, 10).await.len(), 2);
    assert!(claim(&other, &topic, 10).await.is_empty());
    crash_and_rescue(&mut scene, dying).await;
    let mut handled = Vec::new();
    until("all are handled", async || {
        let mut some = claim(&other, &topic, 10).await;
        if some.is_empty() {
            some = other.claim_suspect(topic.id).await.unwrap().deliveries;
        }
        let mut keys = bodies(&some);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), some.len(), "one of each key at a time");
        ack(&other, &some).await;
        handled.extend(bodies(&some));
        handled.len() == 4
    })
    .await;
    handled.sort_unstable();
    assert_eq!(handled, ["a", "a", "b", "b"]);
}

#[tokio::test]
async fn a_suspect_is_claimed_within_the_limits_and_before_others_of_its_key() {
    let mut scene = scene(limits(2, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &["a", "a", "b", "c"]).await;
    let first = "UPDATE queue_message SET priority = 105 WHERE ordering_key = 'a' LIMIT 1";
    scene.sql(first).await;
    let (one, two) = (scene.worker().await, scene.worker().await);
    // One place of two is kept for it, and so is its key.
    let claimed = one.claim(topic.id, 10).await.unwrap();
    assert_eq!(bodies(&claimed.deliveries), ["b"]);
    assert!(claimed.suspect_waits);
    assert!(claim(&two, &topic, 10).await.is_empty());
    let suspect = two.claim_suspect(topic.id).await.unwrap().deliveries;
    assert_eq!(bodies(&suspect), ["a"]);
    assert!(claim(&one, &topic, 10).await.is_empty(), "two run");
    ack(&one, &claimed.deliveries).await;
    assert_eq!(bodies(&claim(&one, &topic, 10).await), ["c"], "the key is taken");
    ack(&two, &suspect).await;
    assert_eq!(bodies(&claim(&one, &topic, 10).await), ["a"]);
    // A suspect whose key is full waits.
    enqueue_keys(&mut scene, &["a"]).await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE worker_id = 0").await;
    assert!(two.claim_suspect(topic.id).await.unwrap().deliveries.is_empty());
}

#[tokio::test]
async fn a_key_with_a_long_backlog_holds_up_no_other() {
    let mut scene = scene(limits(0, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &vec!["a"; 3500]).await;
    enqueue_keys(&mut scene, &["b", "c"]).await;
    let worker = scene.worker().await;
    let first = claim(&worker, &topic, 10).await;
    assert_eq!(bodies(&first), ["a"]);
    assert_eq!(bodies(&claim(&worker, &topic, 10).await), ["b", "c"]);
    assert!(claim(&worker, &topic, 10).await.is_empty());
    ack(&worker, &first).await;
    assert_eq!(bodies(&claim(&worker, &topic, 10).await), ["a"]);
    // A late message that sorts first is found, too.
    let urgent = NewMessage::new("d").with_key("d").with_priority(Priority::FIRST);
    enqueue_to(&mut scene.conn, &topic, &[urgent]).await.unwrap();
    until("it is claimed", async || bodies(&claim(&worker, &topic, 10).await) == ["d"]).await;
}

#[tokio::test]
async fn what_lies_before_the_messages_that_are_claimed_has_its_turn() {
    let mut scene = scene(limits(0, 1)).await;
    let topic = scene.topic.clone();
    enqueue_keys(&mut scene, &vec!["a"; 1500]).await;
    let behind: Vec<String> = (0..500).map(|i| format!("k{i}")).collect();
    let behind: Vec<&str> = behind.iter().map(String::as_str).collect();
    enqueue_keys(&mut scene, &behind).await;
    let worker = scene.worker().await;
    let first = claim(&worker, &topic, 1).await;
    assert_eq!(bodies(&first), ["a"]);
    assert_eq!(bodies(&claim(&worker, &topic, 1).await), ["k0"]);
    ack(&worker, &first).await;
    // There is always a message behind, and the next one of the key still comes.
    until("the key's next is claimed", async || {
        let got = claim(&worker, &topic, 1).await;
        ack(&worker, &got).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        bodies(&got) == ["a"]
    })
    .await;
    assert!(scene.number("SELECT COUNT(*) FROM queue_message WHERE body <> 'a'").await > 0);
}

#[tokio::test]
async fn a_row_that_a_stranger_has_locked_holds_up_no_other() {
    let mut scene = scene(limits(1, 0)).await;
    let topic = scene.topic.clone();
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let mut stranger = scene.db.connect().await;
    let lock = "BEGIN; SELECT id FROM queue_message WHERE body = '0' FOR UPDATE";
    stranger.batch_execute(lock).await.unwrap();
    let got = claim(&worker, &topic, 1).await;
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(bodies(&got), ["1"]);
}

#[tokio::test]
async fn a_rate_lets_so_many_through_at_once_and_then_so_many_in_a_time() {
    let rate = Some("20/2s".parse().unwrap());
    let mut scene = scene(Limits { rate, ..Limits::default() }).await;
    let topic = scene.topic.clone();
    scene.enqueue(100).await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    let begun = scene.number("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)").await;
    assert_eq!(claim(&a, &topic, 15).await.len(), 15);
    let mut got = 15 + claim(&b, &topic, 50).await.len();
    assert!((20..50).contains(&got), "{got}");
    until("the bucket fills", async || {
        got += claim(&a, &topic, 50).await.len();
        got >= 40
    })
    .await;
    // On a machine of any speed: never more than the bucket and its refill since then.
    let now = scene.number("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)").await;
    let most = 20 + (now - begun) / 100 + 1;
    assert!(got as i64 <= most, "{got} of {most}");
    // A clock that was set back stops nothing for longer than a period.
    scene.sql("UPDATE queue_limit SET spent_until = spent_until + INTERVAL 1 DAY").await;
    assert!(claim(&a, &topic, 50).await.is_empty());
    let ahead = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), spent_until) FROM queue_limit";
    assert!(scene.number(ahead).await <= 2);
}

#[tokio::test]
async fn a_limit_can_be_set_and_lifted_while_workers_run() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    scene.enqueue(10).await;
    let worker = scene.worker().await;
    assert_eq!(claim(&worker, &topic, 4).await.len(), 4);
    for limits in [limits(1, 0), Limits::default()] {
        let settings = TopicSettings { limits, ..TopicSettings::default() };
        set(&mut scene.conn, &topic.name, &settings).await.unwrap();
        let life = worker.life();
        until("the worker hears of it", async || life.borrow().pulse.limits(topic.id) == limits)
            .await;
        // Earlier claims count.
        let expected = if limits.is_off() { 6 } else { 0 };
        assert_eq!(claim(&worker, &topic, 9).await.len(), expected);
    }
}

#[tokio::test]
async fn limits_are_kept_with_the_topic_and_only_queues_have_them() {
    let all = Limits { rate: Some("100/1m".parse().unwrap()), ..limits(7, 2) };
    let mut scene = scene(all).await;
    let found = rowmq_core::store::topic::existing(&mut scene.conn, &scene.topic.name).await;
    assert_eq!(found.unwrap().settings.limits, all);
    let mut stream = Stream::new(1).await;
    let group = TopicName::of_group(&stream.topic.name, "g").unwrap();
    let settings = TopicSettings { limits: all, ..TopicSettings::default() };
    for name in [&stream.topic.name, &group] {
        let refused = set(&mut stream.conn, name, &settings).await;
        assert!(matches!(refused, Err(Error::Setting { .. } | Error::UnknownTopic { .. })));
    }
}
