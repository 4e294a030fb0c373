//! Streams: dense offsets in the order of commits, and groups that claim ranges of them.

mod broadcast;
mod by_sql;
mod direct;
mod erasure;
mod filters;
mod groups;
mod holding;
mod newer;
mod pages;
mod plans;
mod priorities;
mod reports;
mod rescue;
mod retention;
mod search;
mod sequencing;
mod trace;
mod turns;

use std::time::{Duration, Instant};

use rowmq_core::model::{ClaimNo, DeliveryNo, OffsetSpec, TopicSettings};
use rowmq_core::store::stream::log::{self, Reading, Stretch};
use rowmq_core::store::stream::partition;
use rowmq_core::stream::group::{create_group, create_stream, group_settings};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::Worker;
use rowmq_core::{
    AsyncMysqlConnection, Delivery, NewMessage, Topic, TopicName, enqueue_all, store,
};
use rowmq_test::{PATIENCE, TestDatabase};

/// A database with the stream `s` in it.
pub(crate) struct Stream {
    pub(crate) conn: AsyncMysqlConnection,
    pub(crate) topic: Topic,
    pub(crate) db: TestDatabase,
}

impl Stream {
    pub(crate) async fn new(partitions: u32) -> Self {
        let db = TestDatabase::new().await;
        let mut conn = db.connect().await;
        let name = TopicName::new("s").unwrap();
        create_stream(&mut conn, &name, partitions, &TopicSettings::default()).await.unwrap();
        let topic = store::topic::existing(&mut conn, &name).await.unwrap();
        Self { conn, topic, db }
    }

    /// A stream with a message in each row of its log, as an older release writes it.
    pub(crate) async fn in_rows(partitions: u32) -> Self {
        let mut stream = Self::new(partitions).await;
        stream.sql("UPDATE queue_partition SET pages = FALSE").await;
        stream
    }

    pub(crate) async fn group(&mut self, name: &str, ordered: bool) -> Topic {
        self.group_with(name, ordered, OffsetSpec::Earliest, &group_settings()).await
    }

    pub(crate) async fn group_with(
        &mut self,
        name: &str,
        ordered: bool,
        start: OffsetSpec,
        settings: &TopicSettings,
    ) -> Topic {
        let name = TopicName::of_group(&self.topic.name, name).unwrap();
        create_group(&mut self.conn, &name, ordered, start, settings).await.unwrap();
        store::topic::existing(&mut self.conn, &name).await.unwrap()
    }

    /// Enqueues messages with these numbers as bodies.
    pub(crate) async fn enqueue(&mut self, bodies: std::ops::Range<usize>) -> Vec<NewMessage> {
        let messages: Vec<_> = bodies.map(|n| NewMessage::new(n.to_string())).collect();
        enqueue_all(&mut self.conn, &self.topic.name, &messages).await.unwrap();
        messages
    }

    /// Gives each message of the inbox its offset.
    pub(crate) async fn sequence(&mut self) -> usize {
        let mut messages = 0;
        loop {
            let id = self.topic.id;
            let turn = rowmq_core::connection::transaction(&mut self.conn, "test", async |conn| {
                sequence(conn, id, 1000, Contention::Wait).await
            });
            let turn = turn.await.unwrap();
            messages += turn.messages;
            if !turn.more {
                return messages;
            }
        }
    }

    /// Reads the whole log, in order.
    pub(crate) async fn logged(&mut self) -> Vec<Delivery> {
        let stream = self.topic.id;
        let reading = Reading { group: stream, claim_no: ClaimNo(0), delivery_no: DeliveryNo(0) };
        let mut logged = Vec::new();
        for end in partition::all(&mut self.conn, stream).await.unwrap() {
            let stretch = Stretch { stream, partition: end.no, lo: end.first, hi: end.next };
            logged.extend(log::read(&mut self.conn, stretch, reading).await.unwrap().deliveries);
        }
        logged
    }

    /// Asserts that the offsets of each partition, from 0 to its end, are all in a log read whole.
    async fn assert_dense(&mut self, logged: &[Delivery]) {
        for end in partition::all(&mut self.conn, self.topic.id).await.unwrap() {
            let positions = logged.iter().filter_map(|one| one.position);
            let here = positions.filter(|at| at.partition == end.no);
            assert!(here.map(|at| at.offset.0).eq(0..end.next.0), "dense");
        }
    }

    pub(crate) async fn number(&mut self, query: &str) -> i64 {
        crate::scene::number(&mut self.conn, query).await
    }

    /// Returns how many sessions of this database wait for a row lock.
    async fn lock_waits(&mut self) -> usize {
        let name = self.db.name().to_owned();
        let open = crate::scene::transactions_of(&mut self.conn, &name).await;
        open.iter().filter(|transaction| transaction.waits).count()
    }

    pub(crate) async fn sql(&mut self, sql: &str) {
        rowmq_core::connection::Connection::batch(&mut self.conn, sql).await.unwrap();
    }

    pub(crate) async fn worker(&self) -> Worker {
        crate::scene::worker_at(self.db.url()).await
    }
}

/// Claims until `n` messages of the group's stream have come.
pub(crate) async fn claim_n(worker: &Worker, group: &Topic, n: usize) -> Vec<Delivery> {
    let start = Instant::now();
    let mut deliveries = Vec::new();
    while deliveries.len() < n {
        let limit = u32::try_from(n - deliveries.len()).unwrap();
        let claimed = match worker.claim_range(group.group().unwrap(), limit).await {
            // Another session has held a lock for longer than a claim waits.
            Err(error) if error.fault().is_conflict() => Vec::new(),
            claimed => claimed.unwrap().deliveries,
        };
        if claimed.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} messages instead of {n}", deliveries.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        deliveries.extend(claimed);
    }
    deliveries
}

/// Returns the offsets, in the order of the deliveries.
pub(crate) fn offsets(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|one| one.position.unwrap().offset.0).collect()
}
