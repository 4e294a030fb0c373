//! The lanes of a producer: each an actor that owns its connection, so that a caller who goes away
//! cancels no database call. All of them live on one thread of their own, so that code that blocks
//! the caller's runtime never keeps a transaction, and its locks, open.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use rowmq_core::connection::ServerUrl;
use rowmq_core::{Enqueued, Error, Fault, NewMessage, Result, telemetry, wake};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::batch::Batch;
use crate::error::SendError;
use crate::lane::{Lane, Turns, Unsent};
use crate::options::ProducerOptions;
use crate::resend::Tries;

/// The way to the lanes. Cheap to clone; they are closed when the last clone is gone.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    options: Arc<ProducerOptions>,
    /// As many permits as idle lanes.
    free: Arc<Semaphore>,
    idle: Idle,
    count: u32,
    /// Its sender goes when every lane is closed.
    ended: watch::Receiver<()>,
}

/// The idle lanes. The one used last is taken first, so that no more connections are open than
/// there are batches under way.
type Idle = Arc<Mutex<Vec<mpsc::Sender<Job>>>>;

struct Job {
    batch: Batch,
    reply: oneshot::Sender<Sent>,
    seat: Seat,
}

/// What became of a batch.
pub(crate) struct Sent {
    pub(crate) outcome: Result<Vec<Enqueued>, Unsent>,
    /// Its messages; none when the lanes are closed.
    pub(crate) messages: Vec<NewMessage>,
}

impl Sent {
    fn closed() -> Self {
        Self { outcome: Err(SendError::Closed.into()), messages: Vec::new() }
    }
}

/// A lane taken out of the idle ones; dropped, it goes back.
pub(crate) struct Seat {
    lane: Option<mpsc::Sender<Job>>,
    idle: Idle,
    /// Declared last: a permit goes back after its lane.
    permit: OwnedSemaphorePermit,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // Of closed lanes, the last sender ends its lane.
            if !self.permit.semaphore().is_closed() {
                idle.push(lane);
            }
        }
    }
}

impl Lanes {
    /// Opens the first lane, so that what is wrong with the server shows now, and starts them all,
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
        // The stack's top, which is taken first, is the lane that is open.
        let idle = Arc::new(Mutex::new(senders.into_iter().rev().collect()));
        let free = Arc::new(Semaphore::new(count as usize));
        let started = Self { options: Arc::clone(&options), free, idle, count, ended };
        let users = started.clone();
        on_own_thread(move || async move {
            let turns = Turns::default();
            let lane = || Lane::new(url.clone(), Arc::clone(&options), turns.clone());
            let mut first = lane();
            let open = first.open().await.map(drop).or_else(|error| {
                // With a journal, a server that is away keeps nobody waiting.
                let may_wait = options.spill.is_some() && error.is_transient();
                if may_wait { Ok(()) } else { Err(error) }
            });
            let failed = open.is_err();
            if ready.send(open).is_err() || failed {
                return;
            }
            let others = (1..count).map(|_| lane());
            let lanes = std::iter::once(first).chain(others);
            // The server drops a connection that is silent for the lease; go before it does.
            let rest = options.lease / 2;
            let lanes = join_all(lanes.zip(jobs).map(|(lane, jobs)| run(lane, jobs, &url, rest)));
            join(lanes.map(|_| drop(ending)), beside(users)).await;
        })?;
        opened.await.map_err(|_| thread_failed("it ended at once"))??;
        Ok(started)
    }

    /// Waits for a lane that is free; none when they are closed. May be dropped while it waits.
    pub(crate) async fn seat(&self) -> Option<Seat> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let lane = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Seat { lane: Some(lane), idle: Arc::clone(&self.idle), permit })
    }

    /// Sends a batch through the lane of a seat. One whose topic is full waits for room, keeps no
    /// lane from the other topics meanwhile, and goes through the first that is free then.
    pub(crate) async fn send(&self, mut seat: Option<Seat>, mut batch: Batch) -> Sent {
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

    async fn send_now(seat: Option<Seat>, batch: Batch) -> Sent {
        let lane = seat.as_ref().and_then(|seat| seat.lane.clone());
        let (Some(seat), Some(lane)) = (seat, lane) else { return Sent::closed() };
        let (reply, answer) = oneshot::channel();
        // There is room: whoever has the seat is alone with the lane. A lane that has ended drops
        // the job, and with it the reply.
        drop(lane.try_send(Job { batch, reply, seat }));
        // Whoever does not poll this must not keep the lane from being closed.
        drop(lane);
        answer.await.unwrap_or_else(|_| Sent::closed())
    }

    /// Lets what is under way end, then closes the lanes.
    pub(crate) async fn close(&self) {
        // Not for ever: a seat may be given to a future that nobody polls.
        let most = self.options.resend.give_up_after.saturating_add(self.options.lease * 2);
        let all = tokio::time::timeout(most, self.free.acquire_many(self.count)).await;
        self.free.close();
        drop(all);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // Nothing is ever sent: it ends with its sender.
        drop(self.ended.clone().changed().await);
    }
}

/// Serves one lane until nobody can send to it any more.
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
        // Nobody waits for it and nothing of it is sent: there is no need to begin.
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
        // First the seat, so that whoever sends next finds the same lane.
        drop(seat);
        drop(reply.send(Sent { outcome, messages: batch.messages }));
    }
    lane.close().await;
}

/// Runs `actors` on a thread and runtime of their own until they end.
fn on_own_thread<F>(actors: impl FnOnce() -> F + Send + 'static) -> Result<()>
where
    F: Future<Output = ()> + 'static,
{
    // A simulation is one thread, on which its scheduler decides who goes on.
    #[cfg(feature = "simulation")]
    if rowmq_core::connection::simulation::is_on() {
        drop(tokio::task::spawn_local(actors()));
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| thread_failed(&error.to_string()))?;
    std::thread::Builder::new()
        .name("rowmq-lanes".to_owned())
        .spawn(move || runtime.block_on(actors()))
        .map_err(|error| thread_failed(&error.to_string()))?;
    Ok(())
}

fn thread_failed(reason: &str) -> Error {
    Error::Database {
        operation: "start the producer's thread",
        fault: Fault::Other,
        message: reason.to_owned(),
    }
}
