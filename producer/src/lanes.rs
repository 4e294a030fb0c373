//! The lanes of a producer. Each is an actor that owns its connection, so that a caller who goes
//! away cancels no database call. All of them live on one thread of their own, so that code that
//! blocks the caller's runtime never keeps a transaction and its locks open.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use rowmq_core::connection::ServerUrl;
use rowmq_core::{Enqueued, Error, Fault, NewMessage, Result, actor, telemetry, wake};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::batch::Batch;
use crate::error::SendError;
use crate::lane::{Lane, Turns, Unsent};
use crate::options::ProducerOptions;
use crate::resend::Tries;

/// A handle to the lanes. Cheap to clone; the lanes are closed when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    options: Arc<ProducerOptions>,
    /// As many permits as idle lanes.
    free: Arc<Semaphore>,
    idle: Idle,
    count: u32,
    /// Its sender is dropped when every lane is closed.
    ended: watch::Receiver<()>,
}

/// The idle lanes. The most recently used is taken first, so that no more connections are open than
/// there are batches in flight.
type Idle = Arc<Mutex<Vec<mpsc::Sender<Job>>>>;

struct Job {
    batch: Batch,
    reply: oneshot::Sender<Sent>,
    seat: LaneGuard,
}

/// The outcome of a batch.
pub(crate) struct Sent {
    pub(crate) outcome: Result<Vec<Enqueued>, Unsent>,
    /// The batch's messages; none when the lanes are closed.
    pub(crate) messages: Vec<NewMessage>,
}

impl Sent {
    fn closed() -> Self {
        Self { outcome: Err(SendError::Closed.into()), messages: Vec::new() }
    }
}

/// A lane taken from the idle ones; it goes back on drop.
pub(crate) struct LaneGuard {
    lane: Option<mpsc::Sender<Job>>,
    idle: Idle,
    /// Declared last, so that the permit goes back after its lane.
    permit: OwnedSemaphorePermit,
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // Once the lanes are closed, dropping the last sender ends the lane.
            if !self.permit.semaphore().is_closed() {
                idle.push(lane);
            }
        }
    }
}

impl Lanes {
    /// Opens the first lane, so that a problem with the server shows now, and starts all lanes,
    /// with `beside` on their thread.
    pub(crate) async fn start<F>(
        url: ServerUrl,
        options: Arc<ProducerOptions>,
        beside: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = ()>,
    {
        let count = options.lanes.get();
        let (senders, jobs): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(1)).unzip();
        let (ready, opened) = oneshot::channel();
        let (ending, ended) = watch::channel(());
        // The open lane is at the top of the stack and is taken first.
        let idle = Arc::new(Mutex::new(senders.into_iter().rev().collect()));
        let free = Arc::new(Semaphore::new(count as usize));
        let started = Self { options: Arc::clone(&options), free, idle, count, ended };
        let users = started.clone();
        actor::spawn("rowmq-lanes", move || async move {
            let turns = Turns::default();
            let lane = || Lane::new(url.clone(), Arc::clone(&options), turns.clone());
            let mut first = lane();
            let open = first.open().await.map(drop).or_else(|error| {
                // With a journal, the producer starts even when the server is down.
                let may_wait = options.spill.is_some() && error.is_transient();
                if may_wait { Ok(()) } else { Err(error) }
            });
            let failed = open.is_err();
            if ready.send(open).is_err() || failed {
                return;
            }
            let others = (1..count).map(|_| lane());
            let lanes = std::iter::once(first).chain(others);
            // The server drops a connection that is silent for the lease; close it before that.
            let rest = options.lease / 2;
            let lanes = join_all(lanes.zip(jobs).map(|(lane, jobs)| run(lane, jobs, &url, rest)));
            join(lanes.map(|_| drop(ending)), beside(users)).await;
        })?;
        opened.await.map_err(|_| Error::Database {
            operation: "start the producer's thread",
            fault: Fault::Other,
            message: "it ended at once".to_owned(),
        })??;
        Ok(started)
    }

    /// Waits for a free lane; `None` when the lanes are closed. May be dropped while it waits.
    pub(crate) async fn seat(&self) -> Option<LaneGuard> {
        tracing::trace!(step = "seat");
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let lane = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(LaneGuard { lane: Some(lane), idle: Arc::clone(&self.idle), permit })
    }

    /// Sends a batch through the lane of a seat. A batch whose topic is full waits for room without
    /// holding a lane, and then goes through the first free one.
    pub(crate) async fn send(&self, mut seat: Option<LaneGuard>, mut batch: Batch) -> Sent {
        let mut waits = 0;
        loop {
            let (topic, since) = (batch.topic.clone(), batch.since);
            let Sent { outcome, messages } = Self::send_now(seat, batch).await;
            let error = match outcome {
                Err(Unsent { error: SendError::Refused(error), .. }) if error.is_transient() => {
                    error
                }
                outcome => return Sent { outcome, messages },
            };
            batch = Batch { topic, messages, since };
            let mut tries = Tries::for_room(waits, &batch, &self.options);
            if let Err(error) = tries.pause(error).await {
                let outcome = Err(tries.gave_up(error).into());
                return Sent { outcome, messages: batch.messages };
            }
            waits += 1;
            seat = self.seat().await;
        }
    }

    async fn send_now(seat: Option<LaneGuard>, batch: Batch) -> Sent {
        let lane = seat.as_ref().and_then(|seat| seat.lane.clone());
        let (Some(seat), Some(lane)) = (seat, lane) else { return Sent::closed() };
        let (reply, answer) = oneshot::channel();
        // There is room: the holder of the seat has the lane to itself. A lane that has ended drops
        // the job, and with it the reply.
        drop(lane.try_send(Job { batch, reply, seat }));
        // A caller that does not poll this future must not keep the lane from being closed.
        drop(lane);
        answer.await.unwrap_or_else(|_| Sent::closed())
    }

    /// Waits for the batches in flight, then closes the lanes.
    pub(crate) async fn close(&self) {
        // The wait is bounded: a seat may be held by a future that is never polled.
        let most = self.options.resend.give_up_after.saturating_add(self.options.lease * 2);
        let all = tokio::time::timeout(most, self.free.acquire_many(self.count)).await;
        self.free.close();
        drop(all);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // Nothing is ever sent on it: `changed` returns when the sender is dropped.
        drop(self.ended.clone().changed().await);
    }
}

/// Serves one lane until its last sender is dropped.
async fn run(mut lane: Lane, mut jobs: mpsc::Receiver<Job>, url: &ServerUrl, rest: Duration) {
    loop {
        // Only a channel and a timer are waited on here, never the connection.
        let job = tokio::select! {
            biased;
            job = jobs.recv() => job,
            () = tokio::time::sleep(rest), if lane.is_open() => {
                lane.close().await;
                continue;
            }
        };
        let Some(Job { batch, reply, seat }) = job else { break };
        // The caller is gone and nothing of the batch is sent: there is no need to begin.
        if reply.is_closed() {
            continue;
        }
        let outcome = lane.send(&batch, || !reply.is_closed()).await;
        if let Ok(enqueued) = &outcome {
            let stored = enqueued.iter().filter(|one| one.is_stored()).count();
            telemetry::enqueued(batch.topic.as_str(), stored);
            telemetry::duplicates(batch.topic.as_str(), enqueued.len() - stored);
            wake::wake(url, &batch.topic);
        }
        // The seat goes back first, so that the next caller finds the same lane.
        drop(seat);
        drop(reply.send(Sent { outcome, messages: batch.messages }));
    }
    lane.close().await;
}
