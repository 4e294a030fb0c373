//! The trace: it contains what is committed, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use rowmq_core::connection::{Connection, transaction};
use rowmq_core::handler::{Context, RunOutcome};
use rowmq_core::model::trace::{Event, Record};
use rowmq_core::model::{DeadCause, OnDone, Sampling, Settlement, TopicSettings};
use rowmq_core::rescue::Why;
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lane::{self, LaneKind};
use rowmq_core::store::{topic, trace};
use rowmq_core::trace::tell;
use rowmq_core::worker::{Effects, Ending, Perform, SettleOutcome, Settled};
use rowmq_core::{AsyncMysqlConnection, Error, MsgId, NewMessage, Unique, enqueue, enqueue_all};
use rowmq_test::{connected, until};
use tokio_util::sync::CancellationToken;

use crate::moves::promote;
use crate::rescue::{crash, take};
use crate::scene::{STRATEGIES, Scene, all, claim_n, retry, settle};
use crate::wire::Recorder;

pub(crate) fn traced() -> TopicSettings {
    TopicSettings { trace: Sampling::ALL, ..TopicSettings::default() }
}

/// An event, its delivery and its outcome.
pub(crate) type Told = (Event, u32, Option<String>);

pub(crate) fn told(records: &[Record]) -> Vec<Told> {
    let one = |it: &Record| (it.event, it.delivery_no.0, it.outcome.clone());
    records.iter().map(one).collect()
}

/// Builds one as [`told`] returns it.
pub(crate) fn event(event: Event, delivery_no: u32, outcome: &str) -> Told {
    (event, delivery_no, Some(outcome.to_owned()).filter(|outcome| !outcome.is_empty()))
}

impl Scene {
    pub(crate) async fn trace(&mut self, id: MsgId) -> Vec<Record> {
        trace::of_message(&mut self.conn, id).await.unwrap()
    }
}

#[tokio::test]
async fn each_event_of_a_message_is_told_once_and_in_order() {
    for strategy in STRATEGIES {
        let mut scene = Scene::with(&traced()).await;
        let id = scene.enqueue(1).await[0].msg_id;
        let worker = scene.worker_by(strategy).await;
        let topic = scene.topic.id;
        for settlement in [
            Settlement::Release,
            retry(Duration::ZERO),
            Settlement::Snooze { delay: Duration::ZERO },
            Settlement::DeadLetter { cause: DeadCause::Handler, error: "é".repeat(2000) },
        ] {
            let got = claim_n(&worker, topic, 1).await;
            assert!(got[0].traced);
            settle(&worker, all(&got, &settlement)).await;
            promote(&mut scene.conn, 10).await;
        }
        let records = scene.trace(id).await;
        let expected = [
            event(Event::Enqueued, 0, ""),
            event(Event::Claimed, 1, ""),
            event(Event::Settled, 1, "release"),
            event(Event::Claimed, 2, ""),
            event(Event::Settled, 2, "retry"),
            event(Event::Claimed, 3, ""),
            event(Event::Settled, 3, "snooze"),
            event(Event::Claimed, 4, ""),
            event(Event::Settled, 4, "dead_letter"),
        ];
        assert_eq!(told(&records), expected, "{strategy:?}");
        assert_eq!(records[4].error.as_deref(), Some("not yet"));
        assert_eq!(records[8].error.as_deref(), Some("é".repeat(512).as_str()), "shortened");
        assert!(records.iter().skip(1).all(|it| it.worker == Some(worker.id())));
        assert_eq!(records[1].client.as_deref(), Some("conformance"));
        assert!(records.iter().all(|it| it.topic == "t" && it.conn.0 > 0));
        let who = records[0].client.clone().unwrap();
        let parts: Vec<_> = who.split('@').collect();
        assert_eq!(parts.len(), 4, "account, host, process, thread: {who}");
        assert_eq!(parts[2], std::process::id().to_string());
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_rolled_back_leaves_no_trace() {
    let mut scene = Scene::with(&traced()).await;
    let (kept, lost) = (NewMessage::new("kept"), NewMessage::new("lost"));
    for (message, end) in [(&kept, "COMMIT"), (&lost, "ROLLBACK")] {
        scene.sql("BEGIN").await;
        enqueue(&mut scene.conn, &scene.topic.name, message).await.unwrap();
        scene.sql(end).await;
    }
    assert_eq!(told(&scene.trace(kept.msg_id).await), [event(Event::Enqueued, 0, "")]);
    assert_eq!(scene.trace(lost.msg_id).await, []);
    scene.sql("BEGIN; CALL queue_send('t', 'b', NULL); ROLLBACK").await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_trace").await, 1);
}

#[tokio::test]
async fn every_way_to_enqueue_tells_who_did_it() {
    let mut scene = Scene::with(&traced()).await;
    let name = scene.topic.name.clone();
    let later = NewMessage::new("later").with_delay(Duration::from_secs(60));
    let many: Vec<_> = (0..1100).map(|_| NewMessage::new("m")).collect();
    enqueue_all(&mut scene.conn, &name, &many).await.unwrap();
    let unique = |body: &str| {
        let unique = Unique::replacing("k");
        NewMessage::new(body).with_delay(Duration::from_secs(60)).with_unique(unique)
    };
    let (first, second) = (unique("first"), unique("second"));
    let send = async |conn: &mut AsyncMysqlConnection| {
        enqueue(conn, &name, &later).await?;
        enqueue(conn, &name, &first).await?;
        enqueue(conn, &name, &second).await
    };
    transaction(&mut scene.conn, "test", send).await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_trace").await, 1102);
    // The replacing message keeps the id of the one it replaced.
    assert_eq!(told(&scene.trace(first.msg_id).await), [event(Event::Enqueued, 0, "")]);
    assert_eq!(scene.trace(second.msg_id).await, []);
    // The row to replace was remembered, whatever rows got numbers since.
    assert_eq!(
        scene.text("SELECT body FROM queue_scheduled WHERE unique_key = 'k'").await,
        "second"
    );

    scene.sql("BEGIN; CALL queue_send('t', 'b', NULL); COMMIT").await;
    let id: MsgId = scene.text("SELECT @queue_msg_id").await.parse().unwrap();
    let by_sql = scene.trace(id).await.remove(0);
    let caller = scene.text("SELECT USER()").await;
    assert_eq!((by_sql.event, by_sql.client), (Event::Enqueued, Some(caller)));
    assert_eq!(i64::try_from(by_sql.conn.0).unwrap(), scene.number("CONNECTION_ID()").await);
}

#[tokio::test]
async fn the_library_and_sql_sample_the_same_messages() {
    let sampling = Sampling::per_million(200_000);
    let mut scene = Scene::with(&TopicSettings { trace: sampling, ..traced() }).await;
    let sent = scene.enqueue(300).await;
    for _ in 0..100 {
        scene.sql("CALL queue_send('t', 'b', NULL)").await;
    }
    let astray = "SELECT COUNT(*) FROM queue_message m LEFT JOIN queue_trace r USING (msg_id) \
         WHERE m.topic_id > 0 AND (CRC32(m.msg_id) MOD 1000000 < 200000) <> (r.id IS NOT NULL)";
    assert_eq!(scene.number(astray).await, 0);
    let sampled = sent.iter().filter(|message| sampling.takes(message.msg_id)).count();
    assert!((10..150).contains(&sampled), "{sampled}");
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 400).await;
    assert!(got.iter().all(|one| one.traced == sampling.takes(one.msg_id)));
    settle(&worker, all(&got, &Settlement::Ack)).await;
    let uneven = "SELECT COUNT(*) FROM (SELECT msg_id FROM queue_trace GROUP BY msg_id \
         HAVING COUNT(*) <> 3 OR COUNT(DISTINCT event) <> 3) u";
    assert_eq!(scene.number(uneven).await, 0);
}

/// Traces that are off cost no statement: neither to enqueue, nor to claim, nor to settle.
#[tokio::test]
async fn a_topic_without_traces_says_nothing_of_them_to_the_server() {
    for (settings, statements) in [(TopicSettings::default(), false), (traced(), true)] {
        let mut scene = Scene::with(&settings).await;
        let recorder = Recorder::start(scene.db.url()).await;
        let mut conn = connected(recorder.url()).await;
        enqueue(&mut conn, &scene.topic.name, &NewMessage::new("m")).await.unwrap();
        let worker = scene.worker_with(|options| options.url = recorder.url().clone()).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        settle(&worker, all(&got, &Settlement::Ack)).await;
        let texts = recorder.distinct();
        let said = texts.iter().any(|run| run.sql.contains("queue_trace"));
        assert_eq!(said, statements, "{texts:?}");
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn a_settle_that_is_fenced_or_set_aside_is_not_told() {
    let mut scene = Scene::with(&traced()).await;
    let sent = scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let mut stranger = scene.db.connect().await;
    stranger.batch("BEGIN").await.unwrap();
    let lock = format!("UPDATE queue_message SET conn_id = 0 WHERE id = {}", got[0].row.0);
    stranger.batch(&lock).await.unwrap();
    scene.sql(&format!("DELETE FROM queue_message WHERE id = {}", got[1].row.0)).await;
    let outcomes = worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    use SettleOutcome::{Deferred, Fenced};
    assert_eq!(outcomes, [Deferred, Fenced, SettleOutcome::Settled]);
    let claimed = [event(Event::Enqueued, 0, ""), event(Event::Claimed, 1, "")];
    for message in &sent[..2] {
        assert_eq!(told(&scene.trace(message.msg_id).await), claimed);
    }
    assert_eq!(told(&scene.trace(sent[2].msg_id).await)[2], event(Event::Settled, 1, "ack"));
    stranger.batch("ROLLBACK").await.unwrap();
    until("what was set aside is settled", async || scene.trace(sent[0].msg_id).await.len() == 3)
        .await;
}

#[tokio::test]
async fn a_rescue_tells_whose_claim_it_was_and_what_became_of_the_message() {
    let mut scene = Scene::with(&traced()).await;
    let sent = scene.enqueue(2).await;
    let dying = scene.worker().await;
    let id = dying.id();
    claim_n(&dying, scene.topic.id, 2).await;
    for claim in crash(&mut scene.conn, dying).await {
        take(&mut scene.conn, &claim, Why::Crashed { rows_held: 2 }).await;
    }
    let records = scene.trace(sent[0].msg_id).await;
    assert_eq!(told(&records)[2], event(Event::Rescued, 1, "ready"));
    assert_eq!(records[2].worker, Some(id));
    assert_eq!(records[2].error.as_deref(), Some("its worker crashed"));

    scene.sql("UPDATE queue_message SET crashes = 2").await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    for claim in crash(&mut scene.conn, dying).await {
        take(&mut scene.conn, &claim, Why::Crashed { rows_held: 1 }).await;
    }
    let last = told(&scene.trace(sent[0].msg_id).await).pop();
    assert_eq!(last, Some(event(Event::Rescued, 2, "dead_letter")));
    assert_eq!(scene.trace(sent[1].msg_id).await.len(), 3);
}

/// Succeeds, without effects.
struct Nothing;

impl Perform for Nothing {
    async fn perform(&self, _: &[Context], _: &mut AsyncMysqlConnection) -> RunOutcome {
        RunOutcome::Returned(Ok(()))
    }
}

#[tokio::test]
async fn an_ack_in_a_handlers_transaction_is_told_by_that_transaction() {
    let mut scene = Scene::with(&traced()).await;
    let sent = scene.enqueue(1).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let contexts = [Context {
        topic: scene.topic.name.clone(),
        delivery: Arc::new(got[0].clone()),
        cancelled: CancellationToken::new(),
        deadline: None,
        checkpoints: rowmq_core::checkpoint::Checkpoints::default(),
    }];
    let effects = Effects::new(scene.db.url().clone(), &worker, 1).unwrap();
    let give_up = CancellationToken::new();
    let endings = effects.run(&contexts, &scene.topic.settings, &Nothing, &give_up).await;
    assert!(matches!(endings[..], [Ending::Committed]), "{endings:?}");
    worker.forget(vec![(got[0].claim_no, got[0].row)]).await.unwrap();
    let records = told(&scene.trace(sent[0].msg_id).await);
    assert_eq!(records[2..], [event(Event::Settled, 1, "ack")]);
}

#[tokio::test]
async fn a_lanes_batch_and_its_trace_are_one() {
    let mut scene = Scene::with(&traced()).await;
    let id = scene.topic.id;
    let lane = lane::open(&mut scene.conn, LaneKind::Passing, uuid::Uuid::new_v4()).await.unwrap();
    let messages = [NewMessage::new("a")];
    let send = async |conn: &mut AsyncMysqlConnection| {
        insert_in_lane(conn, id, &messages, lane, 1).await?;
        trace::enqueued(conn, id, Sampling::ALL, &messages).await
    };
    transaction(&mut scene.conn, "send", send).await.unwrap();
    assert_eq!(scene.trace(messages[0].msg_id).await.len(), 1);
    trace::enqueued(&mut scene.conn, id, Sampling::OFF, &messages).await.unwrap();
    assert_eq!(scene.trace(messages[0].msg_id).await.len(), 1);
}

#[tokio::test]
async fn events_are_pruned_at_the_end_of_their_time() {
    let mut scene = Scene::with(&traced()).await;
    let sent = scene.enqueue(5).await;
    let hour = Duration::from_secs(3600);
    assert_eq!(trace::prune(&mut scene.conn, hour, 10).await.unwrap(), 0);
    scene.sql("UPDATE queue_trace SET at = at - INTERVAL 2 HOUR LIMIT 4").await;
    assert_eq!(trace::prune(&mut scene.conn, hour, 3).await.unwrap(), 3);
    assert_eq!(trace::prune(&mut scene.conn, hour, 3).await.unwrap(), 1);
    assert_eq!(scene.trace(sent[4].msg_id).await.len(), 1);
}

#[tokio::test]
async fn the_story_of_a_message_is_told_with_a_trace_and_without() {
    let mut scene = Scene::with(&traced()).await;
    let sent = scene.enqueue(1).await;
    let mut session = scene.session().await;
    let message = tell(&mut session, None, sent[0].msg_id).await.unwrap();
    assert_eq!(message.topic.as_ref(), Some(&scene.topic.name));
    assert!(message.sampled && message.events.len() == 1 && message.found.len() == 1);
    let off =
        TopicSettings { on_done: OnDone::Keep(Duration::from_secs(60)), ..Default::default() };
    topic::set(&mut scene.conn, &scene.topic.name, &off).await.unwrap();
    assert_eq!(trace::sampling_of(&mut scene.conn, scene.topic.id).await.unwrap(), Sampling::OFF);
    let quiet = scene.enqueue(1).await;
    // Without a trace, an id alone does not find a ready message.
    let message = tell(&mut session, None, quiet[0].msg_id).await.unwrap();
    assert_eq!((message.topic, message.found.len()), (None, 0));
    let named = Some(scene.topic.clone());
    let message = tell(&mut session, named, quiet[0].msg_id).await.unwrap();
    assert_eq!((message.events.len(), message.found.len()), (0, 1));
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    assert!(got.iter().all(|one| !one.traced));
    let done = got.iter().map(|one| Settled::new(one, Settlement::Ack, off.on_done));
    settle(&worker, done.collect()).await;
    let message = tell(&mut session, None, quiet[0].msg_id).await.unwrap();
    assert_eq!((message.topic.is_some(), message.found.len()), (true, 1));
}

#[tokio::test]
async fn a_group_has_no_trace_of_its_own() {
    let mut stream = crate::streams::Stream::new(1).await;
    let name = stream.topic.name.clone();
    topic::set(&mut stream.conn, &name, &traced()).await.unwrap();
    let group = stream.group("late", false).await;
    assert_eq!(group.settings.trace, Sampling::ALL);
    topic::set(&mut stream.conn, &name, &TopicSettings::default()).await.unwrap();
    let group = topic::existing(&mut stream.conn, &group.name).await.unwrap();
    assert_eq!(group.settings.trace, Sampling::OFF);
    let refused = topic::set(&mut stream.conn, &group.name, &traced()).await.unwrap_err();
    assert!(matches!(refused, Error::Setting { name: "trace", .. }), "{refused}");
    topic::set(&mut stream.conn, &group.name, &group.settings).await.unwrap();
}
