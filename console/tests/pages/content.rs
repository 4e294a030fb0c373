//! A queue with something of everything.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use rowmq_core::AsyncMysqlConnection;
use rowmq_core::connection::transaction;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::{
    Backlog, Checkpoint, Limits, OffsetSpec, OnDone, Percent, Retention, RetryPolicy, Sampling,
    Topic, TopicSettings,
};
use rowmq_core::store::{self, backlog, checkpoint, duty};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::stream::group::{create_group, create_stream, group_settings};
use rowmq_core::worker::{Member, Worker, WorkerOptions};
use rowmq_core::{MsgId, NewMessage, TopicName};
use rowmq_test::until;

use crate::fixture::Fixture;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The queue, the stream and its groups.
pub(crate) const QUEUE: &str = "mail";
pub(crate) const STREAM: &str = "orders";
const GROUPS: [&str; 2] = ["orders@billing", "orders@all"];

/// The messages of the queue, each in another state, and those of the stream. Claimed ones stay
/// claimed as long as this value is kept.
pub(crate) struct Content {
    pub(crate) queued: Vec<MsgId>,
    pub(crate) logged: Vec<MsgId>,
    _worker: Worker,
}

impl Content {
    pub(crate) async fn of(place: &Fixture) -> Self {
        let mut conn = place.queue.connect().await;
        create(place, &mut conn).await;
        let options = WorkerOptions::new(place.queue.url().clone(), "somebody");
        let worker = Worker::start(options).await.expect("a worker");
        let queued = fill_queue(place, &mut conn, &worker).await;
        let logged = fill_stream(place, &mut conn, &worker).await;
        let report = br#"{"moved":7,"topics":["mail"]}"#;
        duty::record(&mut conn, "promote", "somebody", report).await.expect("recorded");
        Self { queued, logged, _worker: worker }
    }
}

async fn topic(conn: &mut AsyncMysqlConnection, topic: &str) -> Topic {
    store::topic::existing(conn, &name(topic)).await.expect("a topic")
}

fn name(text: &str) -> TopicName {
    TopicName::new(text).expect("a name")
}

/// Returns settings with every field set.
fn settings() -> TopicSettings {
    TopicSettings {
        retry: RetryPolicy::Ladder(vec![DAY]),
        max_run_time: Some(DAY),
        on_done: OnDone::Keep(DAY),
        dead_letter_topic: Some(name("graves")),
        ledger_window: Some(DAY),
        max_depth: NonZeroU64::new(1000),
        max_bytes: NonZeroU64::new(1_000_000),
        limits: Limits {
            max_running: NonZeroU32::new(100),
            max_running_per_key: NonZeroU32::new(50),
            rate: Some("1000/1s".parse().expect("a rate")),
        },
        searchable: Some(DAY),
        dedupe_window: Some(DAY),
        trace: Sampling::ALL,
        ..TopicSettings::default()
    }
}

async fn create(place: &Fixture, conn: &mut AsyncMysqlConnection) {
    place.queue.topic("graves").await;
    place.queue.topic_with("plain", &TopicSettings::default()).await;
    place.queue.topic_with(QUEUE, &settings()).await;
    let retention = Retention { time: Some(DAY), bytes: Some(1_000_000), ..Retention::default() };
    let of_stream = TopicSettings { retention, trace: Sampling::ALL, ..TopicSettings::default() };
    let mut of_group = group_settings();
    of_group.filter = vec!["tenant=acme".parse().expect("a condition")].into();
    transaction(conn, "create", async |conn| {
        create_stream(conn, &name(STREAM), 2, &of_stream).await?;
        create_group(conn, &name(GROUPS[0]), false, OffsetSpec::Earliest, &of_group).await?;
        create_broadcast(conn, &name(GROUPS[1]), OffsetSpec::Earliest, &broadcast_settings()).await
    })
    .await
    .expect("created");
}

/// Does with a message what its body says.
struct AsTold;

impl RawHandler for AsTold {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        match context.delivery.body.as_slice() {
            b"retry" => Err(HandlerError::retry("the mail server is away")),
            b"dead" => Err(HandlerError::dead("no such address")),
            b"discard" => Err(HandlerError::discard("nobody wants it")),
            _ => Ok(()),
        }
    }
}

fn message(body: &str) -> NewMessage {
    NewMessage::new(body).with_key(body).with_biz_id(body).with_header("tenant", "acme")
}

async fn fill_queue(
    place: &Fixture,
    conn: &mut AsyncMysqlConnection,
    worker: &Worker,
) -> Vec<MsgId> {
    let settled = ["done", "retry", "dead", "discard"].map(message).to_vec();
    let again = message("done");
    let late = message("late").with_delay(DAY);
    let (claimed, ready) = (message("claimed"), message("ready"));
    let all = settled.iter().chain([&again, &late, &claimed, &ready]);
    let ids = all.map(|message| message.msg_id).collect();
    for some in [settled, vec![again]] {
        place.queue.enqueue_all(QUEUE, &some).await;
        let drained = place.queue.drain_raw(QUEUE, &AsTold).await;
        assert!(drained.acked + drained.repeated > 0, "{drained:?}");
    }
    place.queue.enqueue_all(QUEUE, &[late, claimed, ready]).await;
    let topic = topic(conn, QUEUE).await;
    let mut got = Vec::new();
    until("a message is claimed", async || {
        got = worker.claim(topic.id, 1).await.expect("claimed").deliveries;
        !got.is_empty()
    })
    .await;
    let half = Checkpoint::new("half").at(Percent::new(50));
    checkpoint::save(conn, worker.id(), &got[0], &half).await.expect("saved");
    let measured = Backlog { depth: 2, bytes: Some(100), full: false };
    transaction(conn, "measure", async |conn| backlog::publish(conn, &topic, measured).await)
        .await
        .expect("measured");
    // Another dead letter, which stays where it is.
    place.queue.enqueue_all("plain", &[message("x")]).await;
    place.queue.dead_letter("plain", "no such address").await;
    ids
}

/// The group has claimed one of the messages, and the member of the broadcast group all of them.
async fn fill_stream(
    place: &Fixture,
    conn: &mut AsyncMysqlConnection,
    worker: &Worker,
) -> Vec<MsgId> {
    let messages = ["a", "b", "c"].map(message).to_vec();
    let ids = messages.iter().map(|message| message.msg_id).collect();
    place.queue.enqueue_all(STREAM, &messages).await;
    let group = topic(conn, GROUPS[0]).await.group().expect("a group");
    let claim =
        async || !worker.claim_range(group, 1).await.expect("claimed").deliveries.is_empty();
    until("the group has claimed", claim).await;
    let broadcast = topic(conn, GROUPS[1]).await;
    let named = Some("ada".parse().expect("a name"));
    let member = Member::new(&broadcast, named).expect("a member");
    let read = async || !worker.read(&member, 1).await.expect("read").deliveries.is_empty();
    until("the member has read", read).await;
    ids
}
