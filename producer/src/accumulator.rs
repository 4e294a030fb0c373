//! Messages that are accepted and not stored yet. They are collected into batches of one topic.
//!
//! A batch begins as soon as an earlier one has ended, with everything that has arrived by then
//! (Nagle's rule, and the group commit of databases). No message waits for others, and batches grow
//! with the load.

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
use crate::options::{Batching, ProducerOptions};
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
    key: BatchKey,
    message: NewMessage,
    ticket: Ticket,
}

/// What the messages of a batch have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchKey {
    pub(crate) topic: TopicName,
    pub(crate) sequence: Sequence,
}

/// Whether messages are stored in the order in which they were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sequence {
    /// They are: one batch is in flight at a time.
    Kept,
    /// They need not be, since each of their senders waits: every lane may have a batch in flight.
    Free,
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
        key: BatchKey,
        message: NewMessage,
        tell: Tell,
    ) -> Result<(), SendError> {
        let bytes = u32::try_from(bytes(&message)).unwrap_or(u32::MAX).min(self.size);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let room = room.map_err(|_| SendError::Closed)?;
        let ticket = Ticket { id: message.msg_id, accepted_at: Instant::now(), tell, room };
        let accepted = Accepted { key, message, ticket };
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
    options: Arc<ProducerOptions>,
) {
    tracing::trace!(step = "run");
    let (batching, lanes) = (options.batching.clone(), options.lanes.get() as usize);
    let most = batching.max_messages.get();
    let (queues, steps) = (BTreeMap::new(), FuturesUnordered::new());
    let mut flow = Flow { outlet, batching, lanes, queues, steps };
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

/// Where the messages with one key are.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(NewMessage, Ticket)>,
    bytes: usize,
    /// Whether the first message waits for others.
    lingers: bool,
    /// Batches in flight.
    sending: usize,
}

/// What has happened to the messages with this key.
enum Step {
    Lingered(BatchKey),
    Sent(BatchKey),
}

struct Flow {
    outlet: Outlet,
    batching: Batching,
    lanes: usize,
    /// The keys whose messages are waiting or in flight.
    queues: BTreeMap<BatchKey, Queue>,
    steps: FuturesUnordered<LocalBoxFuture<'static, Step>>,
}

impl Flow {
    fn take(&mut self, arrived: impl Iterator<Item = Order>) {
        let mut touched: Vec<BatchKey> = Vec::new();
        for order in arrived {
            let Order::Store(accepted) = order else { continue };
            let Accepted { key, message, ticket } = *accepted;
            if touched.last() != Some(&key) {
                touched.push(key.clone());
            }
            let queue = self.queues.entry(key).or_default();
            queue.bytes += bytes(&message);
            queue.waiting.push_back((message, ticket));
        }
        for key in &touched {
            self.go_on(key);
        }
    }

    fn hurry(&mut self) {
        self.batching.linger = Duration::ZERO;
        let lingers = |(key, queue): (&BatchKey, &Queue)| queue.lingers.then(|| key.clone());
        let lingering: Vec<_> = self.queues.iter().filter_map(lingers).collect();
        for key in &lingering {
            self.go_on(key);
        }
    }

    fn stepped(&mut self, step: &Step) {
        let (Step::Lingered(key) | Step::Sent(key)) = step;
        let Some(queue) = self.queues.get_mut(key) else { return };
        match step {
            Step::Lingered(_) if queue.lingers => self.begin(key),
            // The awaited batch filled up before the time was over.
            Step::Lingered(_) => {}
            Step::Sent(_) => {
                queue.sending -= 1;
                self.go_on(key);
            }
        }
    }

    /// Begins the next batches, or waits for one to grow, or forgets a key without messages.
    fn go_on(&mut self, key: &BatchKey) {
        let Batching { linger, max_messages, max_bytes, .. } = self.batching;
        let (linger, at_once) = match key.sequence {
            Sequence::Kept => (linger, 1),
            Sequence::Free => (Duration::ZERO, self.lanes),
        };
        while let Some(queue) = self.queues.get_mut(key) {
            if queue.waiting.is_empty() && queue.sending == 0 {
                self.queues.remove(key);
                return;
            }
            if queue.waiting.is_empty() || queue.sending >= at_once {
                return;
            }
            let full = queue.waiting.len() >= max_messages.get() || queue.bytes >= max_bytes.get();
            if !full && !linger.is_zero() {
                if !std::mem::replace(&mut queue.lingers, true) {
                    let key = key.clone();
                    self.steps.push(Box::pin(async move {
                        tokio::time::sleep(linger).await;
                        Step::Lingered(key)
                    }));
                }
                return;
            }
            self.begin(key);
        }
    }

    fn begin(&mut self, key: &BatchKey) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.lingers = false;
        queue.sending += 1;
        let batch = queue.next_batch(&self.batching);
        self.steps.push(Box::pin(send(self.outlet.clone(), key.clone(), batch)));
    }
}

impl Queue {
    /// Takes the oldest messages that make a batch, but only as many rows as there is a kept
    /// prepared INSERT for: preparing one for a single use is slower (0.49 instead of 0.8 of a raw
    /// INSERT).
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
/// content, or the spill journal has no room for all of them, the batch is halved until that
/// message is alone, so that the others are still stored or spilled.
async fn send(outlet: Outlet, key: BatchKey, batch: Vec<(NewMessage, Ticket)>) -> Step {
    let mut parts = vec![batch];
    while let Some(part) = parts.pop() {
        let (messages, tickets): (Vec<_>, Vec<_>) = part.into_iter().unzip();
        let Some(since) = tickets.first().map(|oldest| oldest.accepted_at) else { continue };
        let batch = Batch { topic: key.topic.clone(), messages, since };
        let sent = outlet.send(batch, Unit::Apart).await;
        match sent.outcome {
            Err(error) if error.allows_a_part() && sent.messages.len() > 1 => {
                let mut first: Vec<_> = sent.messages.into_iter().zip(tickets).collect();
                let second = first.split_off(first.len() / 2);
                parts.extend([second, first]);
            }
            outcome => tell(tickets, outcome),
        }
    }
    Step::Sent(key)
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
