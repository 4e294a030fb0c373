//! Messages that are accepted and not stored yet. They are collected into batches for each topic,
//! with one batch in flight at a time, so that a topic's messages are stored in the order in which
//! they were accepted.
//!
//! A batch begins as soon as the one before it has ended, with everything that has arrived by then
//! (Nagle's rule). No message waits for others, and batches grow with the load.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use rowmq_core::store::enqueue::rows_kept_at_most;
use rowmq_core::{MsgId, NewMessage, TopicName, telemetry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::batch::Batch;
use crate::error::SendError;
use crate::options::Batching;
use crate::outlet::{Destinations, Outlet, Unit};
use crate::receipt::Tell;

/// What a message occupies besides its bytes: the struct itself, its place in a queue and its
/// receipt.
const OVERHEAD: usize = 512;

/// The entrance: accepts messages while there is room.
#[derive(Debug)]
pub(crate) struct Accumulator {
    /// As many permits as there are bytes of room.
    room: Arc<Semaphore>,
    size: u32,
    orders: mpsc::UnboundedSender<Order>,
}

/// A request to the accumulator.
#[derive(Debug)]
pub(crate) enum Order {
    Store(Box<Accepted>),
    /// Messages no longer linger for others.
    Hurry,
}

/// A message that waits to be stored.
#[derive(Debug)]
pub(crate) struct Accepted {
    topic: TopicName,
    message: NewMessage,
    ticket: Ticket,
}

/// What is kept of a message while it is in flight.
#[derive(Debug)]
struct Ticket {
    id: MsgId,
    accepted_at: Instant,
    tell: Tell,
    /// Released with the outcome.
    room: OwnedSemaphorePermit,
}

impl Accumulator {
    /// Returns the entrance, and the receiver of its orders, to be passed to [`run`].
    pub(crate) fn new(batching: &Batching) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, incoming) = mpsc::unbounded_channel();
        let size = batching.buffer_bytes.get();
        let room = Arc::new(Semaphore::new(size as usize));
        (Self { room, size, orders }, incoming)
    }

    /// Waits until there is room for the message, and accepts it.
    pub(crate) async fn accept(
        &self,
        topic: &TopicName,
        message: NewMessage,
        tell: Tell,
    ) -> Result<(), SendError> {
        let bytes = u32::try_from(bytes(&message)).unwrap_or(u32::MAX).min(self.size);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let room = room.map_err(|_| SendError::Closed)?;
        let ticket = Ticket { id: message.msg_id, accepted_at: Instant::now(), tell, room };
        let accepted = Accepted { topic: topic.clone(), message, ticket };
        self.orders.send(Order::Store(Box::new(accepted))).map_err(|_| SendError::Closed)?;
        telemetry::accepted(bytes as usize);
        Ok(())
    }

    /// Waits until every accepted message is stored or given up, and accepts no more.
    pub(crate) async fn close(&self) {
        drop(self.orders.send(Order::Hurry));
        if let Ok(all) = self.room.acquire_many(self.size).await {
            self.room.close();
            drop(all);
        }
    }
}

fn bytes(message: &NewMessage) -> usize {
    let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let headers = message.headers.0.iter().map(|(name, value)| name.len() + value.len());
    let keys = len(&message.key) + len(&message.biz_id);
    let keys = keys + message.unique.as_ref().map_or(0, |unique| unique.key().len());
    OVERHEAD + message.body.len() + keys + headers.sum::<usize>()
}

/// Sends incoming messages until all senders are gone and every message has its outcome.
pub(crate) async fn run(
    mut incoming: mpsc::UnboundedReceiver<Order>,
    outlet: Outlet,
    batching: Batching,
) {
    let most = batching.max_messages.get();
    let mut flow =
        Flow { outlet, batching, queues: BTreeMap::new(), steps: FuturesUnordered::new() };
    let mut arrived = Vec::with_capacity(most);
    let mut open = true;
    while open || !flow.steps.is_empty() {
        // Only channels and timers are waited on here: the connections belong to the lanes.
        tokio::select! {
            biased;
            Some(step) = flow.steps.next(), if !flow.steps.is_empty() => flow.stepped(&step),
            n = incoming.recv_many(&mut arrived, most), if open => {
                open = n > 0;
                if !open || arrived.iter().any(|order| matches!(order, Order::Hurry)) {
                    flow.hurry();
                }
                flow.take(arrived.drain(..));
            }
        }
    }
}

/// Where the messages of a topic are.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(NewMessage, Ticket)>,
    bytes: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Idle,
    /// The first message waits for others.
    Lingering,
    /// A batch is in flight.
    Sending,
}

/// What has happened in a topic.
enum Step {
    Lingered(TopicName),
    Sent(TopicName),
}

struct Flow {
    outlet: Outlet,
    batching: Batching,
    /// The topics that have messages waiting or in flight.
    queues: BTreeMap<TopicName, Queue>,
    steps: FuturesUnordered<LocalBoxFuture<'static, Step>>,
}

impl Flow {
    fn take(&mut self, arrived: impl Iterator<Item = Order>) {
        let mut touched: Vec<TopicName> = Vec::new();
        for order in arrived {
            let Order::Store(accepted) = order else { continue };
            let Accepted { topic, message, ticket } = *accepted;
            if touched.last() != Some(&topic) {
                touched.push(topic.clone());
            }
            let queue = self.queues.entry(topic).or_default();
            queue.bytes += bytes(&message);
            queue.waiting.push_back((message, ticket));
        }
        for topic in &touched {
            self.go_on(topic);
        }
    }

    fn hurry(&mut self) {
        self.batching.linger = Duration::ZERO;
        let lingers = |(topic, queue): (&TopicName, &Queue)| {
            (queue.state == State::Lingering).then(|| topic.clone())
        };
        let lingering: Vec<_> = self.queues.iter().filter_map(lingers).collect();
        for topic in &lingering {
            self.begin(topic);
        }
    }

    fn stepped(&mut self, step: &Step) {
        let (Step::Lingered(topic) | Step::Sent(topic)) = step;
        let Some(queue) = self.queues.get_mut(topic) else { return };
        match step {
            Step::Lingered(_) if queue.state == State::Lingering => self.begin(topic),
            // The awaited batch filled up before the time was over.
            Step::Lingered(_) => {}
            Step::Sent(_) => {
                queue.state = State::Idle;
                self.go_on(topic);
            }
        }
    }

    /// Begins the topic's next batch, or waits for it to grow, or forgets an idle topic.
    fn go_on(&mut self, topic: &TopicName) {
        let Some(queue) = self.queues.get_mut(topic) else { return };
        let Batching { linger, max_messages, max_bytes, .. } = self.batching;
        let full = queue.waiting.len() >= max_messages.get() || queue.bytes >= max_bytes.get();
        match queue.state {
            State::Sending => {}
            State::Idle if queue.waiting.is_empty() => drop(self.queues.remove(topic)),
            State::Idle if !full && !linger.is_zero() => {
                queue.state = State::Lingering;
                let topic = topic.clone();
                self.steps.push(Box::pin(async move {
                    tokio::time::sleep(linger).await;
                    Step::Lingered(topic)
                }));
            }
            State::Lingering if !full => {}
            State::Idle | State::Lingering => self.begin(topic),
        }
    }

    fn begin(&mut self, topic: &TopicName) {
        let Some(queue) = self.queues.get_mut(topic) else { return };
        queue.state = State::Sending;
        let batch = queue.next_batch(&self.batching);
        self.steps.push(Box::pin(send(self.outlet.clone(), topic.clone(), batch)));
    }
}

impl Queue {
    /// Takes the oldest messages that make a batch, but only as many rows as the server keeps a
    /// prepared INSERT for, so that it need not prepare one for a single use (0.49 instead of 0.8
    /// of a raw INSERT).
    fn next_batch(&mut self, batching: &Batching) -> Vec<(NewMessage, Ticket)> {
        let mut room = batching.max_bytes.get();
        let fitting =
            self.waiting.iter().take(batching.max_messages.get()).take_while(|(message, _)| {
                let bytes = bytes(message);
                let fits = bytes <= room;
                room = room.saturating_sub(bytes);
                fits
            });
        // A single message is always sent.
        let n = rows_kept_at_most(fitting.count().max(1));
        let batch: Vec<_> = self.waiting.drain(..n.min(self.waiting.len())).collect();
        self.bytes -= batch.iter().map(|(message, _)| bytes(message)).sum::<usize>();
        batch
    }
}

/// Sends a batch and reports each message's outcome. If the server refuses a message for its
/// content, the batch is halved until that message is alone, so that the others are still stored.
async fn send(outlet: Outlet, topic: TopicName, batch: Vec<(NewMessage, Ticket)>) -> Step {
    let mut parts = vec![batch];
    while let Some(part) = parts.pop() {
        let (messages, tickets): (Vec<_>, Vec<_>) = part.into_iter().unzip();
        let Some(since) = tickets.first().map(|oldest| oldest.accepted_at) else { continue };
        let batch = Batch { topic: topic.clone(), messages, since };
        let sent = outlet.send(batch, Unit::Apart).await;
        match sent.outcome {
            Err(error) if error.is_about_message() && sent.messages.len() > 1 => {
                let mut first: Vec<_> = sent.messages.into_iter().zip(tickets).collect();
                let second = first.split_off(first.len() / 2);
                parts.extend([second, first]);
            }
            outcome => tell(tickets, outcome),
        }
    }
    Step::Sent(topic)
}

fn tell(tickets: Vec<Ticket>, outcome: Result<Destinations, SendError>) {
    for (nth, Ticket { id, tell, room, .. }) in tickets.into_iter().enumerate() {
        telemetry::answered(room.num_permits());
        let outcome = match &outcome {
            Ok(places) => Ok(places.of(nth, id)),
            Err(error) => Err(error.of_one()),
        };
        tell.outcome(id, outcome);
    }
}
