//! Topics whose dead letters go to another topic.

use rowmq_core::model::{DeadCause, FailedRun, NewMessage, Settlement, TopicSettings};
use rowmq_core::store::topic;
use rowmq_core::{Delivery, Error, Topic, enqueue};

use crate::rescue::crash_and_rescue;
use crate::scene::{Scene, all, claim_n, claim_one_suspect, settle};

fn dead(cause: DeadCause) -> Settlement {
    Settlement::DeadLetter { cause, error: "it is no order".to_owned() }
}

impl Scene {
    /// Creates the topic `name`, which gets the dead letters of `t` from now on.
    async fn dead_letter_topic(&mut self, name: &str) -> Topic {
        let other = self.db.topic(name).await;
        let t = self.topic.name.clone();
        lead(self, &t, Some(&other.name)).await.unwrap();
        other
    }
}

async fn lead(
    scene: &mut Scene,
    from: &rowmq_core::TopicName,
    to: Option<&rowmq_core::TopicName>,
) -> Result<(), Error> {
    let settings =
        TopicSettings { dead_letter_topic: to.cloned(), max_crashes: 2, ..Default::default() };
    topic::set(&mut scene.conn, from, &settings).await
}

async fn claim_one(scene: &Scene, topic: &Topic) -> Delivery {
    let worker = scene.worker().await;
    claim_n(&worker, topic.id, 1).await.remove(0)
}

#[tokio::test]
async fn a_dead_letter_is_enqueued_in_the_topic_that_is_named_for_it_and_says_where_it_was() {
    for cause in [DeadCause::Attempts, DeadCause::Handler, DeadCause::Decode] {
        let mut scene = Scene::new().await;
        let other = scene.dead_letter_topic("other").await;
        let sent = NewMessage::new([0, 255])
            .with_key([1, 254])
            .with_biz_id("b")
            .with_header("trace", "t \"1\" 漢字");
        enqueue(&mut scene.conn, &scene.topic.name, &sent).await.unwrap();
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        scene.sql("UPDATE queue_message SET failures = 3, suspicions = 1").await;
        settle(&worker, all(&got, &dead(cause))).await;
        assert_eq!(scene.hot().await, (1, 0, 0));
        let none = "SELECT (SELECT COUNT(*) FROM queue_dead) + (SELECT COUNT(*) FROM queue_floor)";
        assert_eq!(scene.number(none).await, 0);

        let again = claim_one(&scene, &other).await;
        assert_eq!((again.msg_id, again.enqueued_at), (sent.msg_id, got[0].enqueued_at));
        assert_eq!((&again.body, &again.key, &again.biz_id), (&sent.body, &sent.key, &sent.biz_id));
        assert_eq!((again.delivery_no.0, again.failures, again.crashes), (2, 0, 0));
        let header = |name: &str| again.headers.get(name).unwrap();
        assert_eq!(header("trace"), "t \"1\" 漢字");
        assert_eq!((header("queue-dead-from"), header("queue-dead-cause")), ("t", cause.stored()));
        let history = scene.text("SELECT history FROM queue_message").await;
        let told = FailedRun::from_stored(history.as_bytes());
        assert_eq!((told.len(), told[0].error.as_str()), (1, "it is no order"));
        let counts = "SELECT CONCAT_WS('/', failures, crashes, suspicions) FROM queue_message";
        assert_eq!(scene.text(counts).await, "0/0/0");
    }
}

/// Other clients may have written any bytes there: the message matters more than its headers.
#[tokio::test]
async fn headers_of_any_bytes_are_added_to_if_they_are_an_object_and_else_left() {
    let told = "\"queue-dead-from\":\"t\",\"queue-dead-cause\":\"handler\"}";
    let deep = |n: usize| format!("{{\"a\":{}{}}}", "[".repeat(n), "]".repeat(n));
    // MariaDB reads 31 levels, and MySQL fails beyond 100.
    let (deep, too_deep) = (deep(30), deep(100));
    let (is_deep, is_too_deep) = (format!("'{deep}'"), format!("'{too_deep}'"));
    let cases = [
        (&*is_deep, hex(&format!("{},{told}", &deep[..deep.len() - 1]))),
        (&*is_too_deep, hex(&too_deep)),
        ("NULL", hex(&format!("{{{told}"))),
        ("' { } '", hex(&format!("{{{told}"))),
        (
            "' {\"a\": {\"}\": \"\\\\u6f22\"} } '",
            hex(&format!(" {{\"a\": {{\"}}\": \"\\u6f22\"}} ,{told}")),
        ),
        ("x'7B22C3223A317D'", format!("7B22C3223A31{}", hex(&format!(",{told}")))),
        ("'{'", hex("{")),
        ("x'FF7B'", "FF7B".to_owned()),
        ("'[1]'", hex("[1]")),
        ("'7'", hex("7")),
    ];
    for (stored, expected) in cases {
        let mut scene = Scene::new().await;
        let other = scene.dead_letter_topic("other").await;
        scene.enqueue(1).await;
        scene.sql(&format!("UPDATE queue_message SET headers = {stored}")).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        settle(&worker, all(&got, &dead(DeadCause::Handler))).await;
        assert_eq!(
            scene.text("SELECT HEX(headers) FROM queue_message").await,
            expected,
            "{stored}"
        );
        claim_one(&scene, &other).await;
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02X}")).collect()
}

#[tokio::test]
async fn what_crashes_its_workers_too_often_goes_there_too() {
    let mut scene = Scene::new().await;
    let other = scene.dead_letter_topic("other").await;
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    crash_and_rescue(&mut scene, dying).await;
    let dying = scene.worker().await;
    claim_one_suspect(&dying, scene.topic.id).await;
    assert_eq!(crash_and_rescue(&mut scene, dying).await.dead_lettered, 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dead").await, 0);
    let again = claim_one(&scene, &other).await;
    assert_eq!((again.crashes, again.delivery_no.0, again.priority.is_suspect()), (0, 3, false));
    assert_eq!(again.headers.get("queue-dead-cause"), Some("crashes"));
}

#[tokio::test]
async fn dead_letter_topics_may_follow_each_other_but_never_in_a_circle() {
    let mut scene = Scene::new().await;
    let t = scene.topic.name.clone();
    let second = scene.dead_letter_topic("second").await;
    let third = scene.db.topic("third").await;
    lead(&mut scene, &second.name, Some(&third.name)).await.unwrap();
    for (from, to) in [(&t, &t), (&second.name, &t), (&third.name, &t), (&third.name, &second.name)]
    {
        let refused = lead(&mut scene, from, Some(to)).await.unwrap_err();
        let sentence = refused.to_string();
        assert!(
            sentence.contains(&format!("dead_letter_topic is '{to}' for '{from}'")),
            "{sentence}"
        );
    }
    let unknown = "unknown".parse().unwrap();
    let refused = lead(&mut scene, &t, Some(&unknown)).await.unwrap_err();
    assert!(matches!(refused, Error::UnknownTopic { .. }), "{refused}");

    scene.enqueue(1).await;
    let worker = scene.worker().await;
    for topic in [&scene.topic.clone(), &second, &third] {
        let got = claim_n(&worker, topic.id, 1).await;
        settle(&worker, all(&got, &dead(DeadCause::Handler))).await;
    }
    let last = "SELECT CONCAT_WS('/', topic_id, delivery_no, failures) FROM queue_dead";
    assert_eq!(scene.text(last).await, format!("{}/3/1", third.id.0));
    let history = scene.text("SELECT history FROM queue_dead").await;
    assert_eq!(FailedRun::from_stored(history.as_bytes()).len(), 3);
    // Named twice, because they were there already: JSON readers take the last.
    let headers = scene.text("SELECT headers FROM queue_dead").await;
    let headers: serde_json::Value = serde_json::from_str(&headers).unwrap();
    assert_eq!(headers["queue-dead-from"], "second");
}

/// What a process has cached of a topic does not count, only the topic's current settings.
#[tokio::test]
async fn a_dead_letter_of_a_topic_that_names_none_any_more_or_one_that_is_gone_stays_dead() {
    for gone in [false, true] {
        let mut scene = Scene::new().await;
        let other = scene.dead_letter_topic("other").await;
        scene.enqueue(1).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let t = scene.topic.name.clone();
        if gone {
            topic::delete(&mut scene.conn, other.id).await.unwrap();
        } else {
            lead(&mut scene, &t, None).await.unwrap();
        }
        settle(&worker, all(&got, &dead(DeadCause::Handler))).await;
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dead").await, 1);
        let found = topic::find(&mut scene.conn, &t).await.unwrap().unwrap();
        assert_eq!(found.settings.dead_letter_topic, None);
    }
}
