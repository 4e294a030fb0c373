//! Code that the producer's tests share. Each of them uses a part of it.

#![allow(dead_code)]
#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

pub(crate) mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diesel::QueryDsl;
use rowmq_core::model::RowId;
use rowmq_core::store::inspect::{Depth, Peeked, peek};
use rowmq_core::store::lane::{self, LaneId, LaneKind};
use rowmq_core::{MsgId, NewMessage, TopicName, store};
use rowmq_producer::{ProducerOptions, Progress, ProgressListener};
use rowmq_test::TestDatabase;
use tokio::sync::mpsc;

/// How long an event may take before a test fails: far longer than it ever takes.
const EVENT_DEADLINE: Duration = Duration::from_secs(60);

/// Returns `n` messages with their numbers as bodies.
pub(crate) fn messages(n: usize) -> Vec<NewMessage> {
    (0..n).map(|n| NewMessage::new(n.to_string())).collect()
}

/// Returns the messages stored in the topic, in order.
pub(crate) async fn stored(database: &TestDatabase, topic: &str) -> Vec<Peeked> {
    let mut conn = database.connect().await;
    let topic = TopicName::new(topic).expect("a name");
    match store::topic::find(&mut conn, &topic).await.expect("read") {
        Some(topic) => peek(&mut conn, topic.id, 1_000_000).await.expect("read"),
        None => Vec::new(),
    }
}

/// Returns how much the topic holds, by state.
pub(crate) async fn depth(database: &TestDatabase, topic: &str) -> Depth {
    let mut conn = database.connect().await;
    let topic = TopicName::new(topic).expect("a name");
    let topic = store::topic::find(&mut conn, &topic).await.expect("read").expect("the topic");
    store::inspect::depth(&mut conn, topic.id).await.expect("read")
}

/// Returns the ids of the messages stored in the topic, in order.
pub(crate) async fn stored_ids(database: &TestDatabase, topic: &str) -> Vec<MsgId> {
    stored(database, topic).await.iter().map(|row| row.msg_id).collect()
}

/// Returns the lanes there are.
pub(crate) async fn lanes(database: &TestDatabase) -> Vec<LaneId> {
    use diesel::ExpressionMethods;
    use diesel_async::RunQueryDsl;
    use rowmq_core::schema::queue_message::dsl;
    let mut conn = database.connect().await;
    let rows: Vec<(u64, u8, Vec<u8>)> = dsl::queue_message
        .filter(dsl::topic_id.eq(0))
        .select((dsl::id, dsl::priority, dsl::msg_id))
        .load(&mut conn)
        .await
        .expect("read");
    let name = |bytes: &[u8]| uuid::Uuid::from_slice(bytes).expect("16 bytes");
    let id = |(row, priority, bytes): &(u64, u8, Vec<u8>)| LaneId {
        row: RowId(*row),
        name: name(bytes),
        kind: if *priority == 0 { LaneKind::Passing } else { LaneKind::Durable },
    };
    rows.iter().map(id).collect()
}

/// Returns how many batches were stored.
pub(crate) async fn batches(database: &TestDatabase) -> u64 {
    let mut conn = database.connect().await;
    let mut batches = 0;
    for lane in lanes(database).await {
        batches += lane::seq(&mut conn, lane).await.expect("read").expect("a lane");
    }
    batches
}

/// Returns how many lanes there are.
pub(crate) async fn lane_count(database: &TestDatabase) -> usize {
    lanes(database).await.len()
}

/// What a producer reported about its progress.
#[derive(Clone, Default)]
pub(crate) struct Told {
    waits: Arc<AtomicUsize>,
    resends: Arc<AtomicUsize>,
}

impl Told {
    /// Returns options with a listener that counts.
    pub(crate) fn options(&self) -> ProducerOptions {
        let told = self.clone();
        let listener = ProgressListener::new(move |progress| {
            let count = match progress {
                Progress::Waiting { .. } => &told.waits,
                _ => &told.resends,
            };
            count.fetch_add(1, Ordering::SeqCst);
        });
        ProducerOptions { on_progress: Some(listener), ..ProducerOptions::default() }
    }

    pub(crate) fn waits(&self) -> usize {
        self.waits.load(Ordering::SeqCst)
    }

    pub(crate) fn resends(&self) -> usize {
        self.resends.load(Ordering::SeqCst)
    }
}

/// Returns options, and the errors after which the producer waits, as they come.
pub(crate) fn errors() -> (ProducerOptions, mpsc::UnboundedReceiver<String>) {
    let (sender, errors) = mpsc::unbounded_channel();
    let listener = ProgressListener::new(move |progress| {
        if let Progress::Waiting { error, .. } = progress {
            drop(sender.send(error.to_string()));
        }
    });
    (ProducerOptions { on_progress: Some(listener), ..ProducerOptions::default() }, errors)
}
