//! The work session: claims and settles, one after the other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::cursor::{Claimed, Cursor};
use super::held::Held;
use super::life::lock_held;
use super::settling::{Batch, Care, SettleOutcome, Settled};
use super::{ClaimStrategy, Life, Phase, WorkerOptions, actor};
use crate::connection::{Session, SessionKind};
use crate::error::{Error, Result};
use crate::message::{ClaimNo, Delivery, RowId, Settlement, WorkerId};
use crate::rescue::{Why, take_back};
use crate::store::claim::{self, Fence, Marks};
use crate::store::moves::equal;
use crate::store::row_set::RowSet;
use crate::store::worker::{self, Role};
use crate::telemetry;
use crate::topic::{OnDone, TopicId};

/// The name lock is asked for in whole seconds; see [`worker::take_lock`].
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// The first wait before a failed settle is tried again; it doubles up to a second.
const BACKOFF: Duration = Duration::from_millis(20);

pub(super) enum Command {
    Claim { topic: TopicId, limit: u32, reply: oneshot::Sender<Result<Handover>> },
    ClaimSuspect { topic: TopicId, reply: oneshot::Sender<Result<Handover>> },
    Settle { batch: Vec<Settled>, reply: oneshot::Sender<Result<Vec<SettleOutcome>>> },
    Stop { reply: oneshot::Sender<Result<()>> },
}

/// Opens the work session and leaves it to an actor.
pub(super) async fn start(
    options: WorkerOptions,
    instance: Uuid,
    id: WorkerId,
    life: watch::Receiver<Life>,
) -> Result<mpsc::UnboundedSender<Command>> {
    let (ready, opened) = oneshot::channel();
    let (commands, receiver) = mpsc::unbounded_channel();
    let back = commands.downgrade();
    actor::spawn("queue-work", move || async move {
        let mut work = Work {
            options,
            instance,
            id,
            life,
            session: None,
            last_claim: 0,
            held: Held::default(),
            cursors: HashMap::new(),
            compared: Instant::now(),
            commands: back,
        };
        let open = work.reopen().await;
        let is_open = open.is_ok();
        if ready.send(open).is_ok() && is_open {
            work.run(receiver).await;
        }
    })?;
    opened.await.map_err(|_| Error::WorkerStopped)??;
    Ok(commands)
}

struct Work {
    options: WorkerOptions,
    instance: Uuid,
    id: WorkerId,
    life: watch::Receiver<Life>,
    session: Option<Session>,
    last_claim: u64,
    held: Held,
    cursors: HashMap<TopicId, Cursor>,
    compared: Instant,
    commands: mpsc::WeakUnboundedSender<Command>,
}

/// Claimed rows on their way to the caller. Dropped on the way, because the caller has gone, it
/// has them released: nobody else would settle them.
pub(super) struct Handover {
    claimed: Claimed,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl Handover {
    /// The caller has them.
    pub(super) fn accept(mut self) -> Claimed {
        std::mem::take(&mut self.claimed)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let release =
            |delivery: &Delivery| Settled::new(delivery, Settlement::Release, OnDone::Delete);
        let batch: Vec<_> = self.claimed.deliveries.iter().map(release).collect();
        if let (false, Some(commands)) = (batch.is_empty(), self.commands.upgrade()) {
            let (reply, _nobody) = oneshot::channel();
            // An actor that has ended has released everything, or cannot.
            drop(commands.send(Command::Settle { batch, reply }));
        }
    }
}

impl Work {
    fn hand_over(&self, claimed: Claimed) -> Handover {
        Handover { claimed, commands: self.commands.clone() }
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                // Only a channel and a timer are waited on here, never the connection.
                tokio::select! {
                    command = commands.recv() => match command {
                        Some(command) => waiting.push_back(command),
                        None => return,
                    },
                    () = tokio::time::sleep(self.options.beat) => self.keep_alive().await,
                }
            }
            if self.compared.elapsed() >= self.options.lease {
                self.keep_alive().await;
            }
            while let Ok(command) = commands.try_recv() {
                waiting.push_back(command);
            }
            match waiting.pop_front() {
                Some(Command::Claim { topic, limit, reply }) => {
                    // A caller that is gone has no use for rows: nobody would settle them.
                    if !reply.is_closed() {
                        let claimed = self.claim(topic, limit).await;
                        drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
                    }
                }
                Some(Command::ClaimSuspect { topic, reply }) => {
                    if !reply.is_closed() {
                        let claimed = self.claim_suspect(topic).await;
                        drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
                    }
                }
                Some(Command::Settle { batch, reply }) => {
                    let outcome = self.settle(batch).await;
                    drop(reply.send(outcome));
                }
                Some(Command::Stop { reply }) => {
                    let released = self.release_all().await;
                    drop(reply.send(released));
                    return;
                }
                None => {}
            }
        }
    }

    /// Says something while there is nothing to say, because the server drops a session that is
    /// silent for the lease; what it says is the comparison of history H6.
    async fn keep_alive(&mut self) {
        let compared = match self.session().await {
            Ok(_) => self.reconcile().await,
            Err(error) => Err(error),
        };
        // A session found lost is taken up again at once: the next claim should not wait for it.
        let kept = match compared {
            Err(_) => self.session().await.map(|_| ()),
            Ok(()) => Ok(()),
        };
        if let Err(error) = kept {
            tracing::debug!(worker.id = %self.id, %error, "Work session fails.");
        }
    }

    /// The open session, after a reconnect if it was lost.
    async fn session(&mut self) -> Result<&mut Session> {
        if let Phase::Dead { reason } = &self.life.borrow().phase {
            return Err(Error::WorkerDead { reason: reason.clone() });
        }
        let lost = self.session.as_ref().is_none_or(Session::is_lost);
        if lost {
            if self.session.take().is_some() {
                telemetry::session_lost(Role::Work);
                tracing::warn!(worker.id = %self.id, "Work session lost; reconnecting.");
            }
            self.reopen().await?;
        }
        self.session.as_mut().ok_or(Error::WorkerStopped)
    }

    /// A new connection takes the name lock first, so that no statement of the old one can commit;
    /// then it adopts the worker, and gives back what a lost commit claimed unheard.
    async fn reopen(&mut self) -> Result<()> {
        let (id, instance) = (self.id, self.instance);
        let kind = SessionKind::Leased(self.options.lease);
        let mut session = Session::open(&self.options.url, kind, self.options.deadline()).await?;
        let adopted = session.call("adopt the worker", async |conn| {
            if !worker::take_lock(conn, instance, Role::Work, LOCK_WAIT).await? {
                return Err(lock_held());
            }
            let incarnation = worker::incarnation(conn).await?;
            worker::adopt(conn, id, Role::Work, &incarnation).await
        });
        if adopted.await? == 0 {
            return Err(Error::WorkerDead { reason: "found on reconnecting".to_owned() });
        }
        self.session = Some(session);
        self.reconcile().await
    }

    /// Releases claims that the database has and this worker does not hold: their commit was lost.
    async fn reconcile(&mut self) -> Result<()> {
        let id = self.id;
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let claims =
            session.call("compare claims", async |conn| claim::of_worker(conn, id).await).await?;
        for claim in claims.iter().filter(|claim| !self.held.has(claim.fence.claim_no)) {
            let taken = session
                .transaction("release a claim", async |conn| {
                    take_back(conn, claim, Why::NotNeeded).await
                })
                .await?;
            tracing::info!(worker.id = %id, rows = taken.freed, "Released a claim whose reply was lost.");
        }
        self.compared = Instant::now();
        Ok(())
    }

    async fn claim(&mut self, topic: TopicId, limit: u32) -> Result<Claimed> {
        let life = self.life.borrow().clone();
        if life.phase != Phase::Alive || life.pulse.paused.contains(&topic) {
            return Ok(Claimed::default());
        }
        let cursor = self.cursors.entry(topic).or_insert_with(Cursor::new);
        for floor in life.pulse.floors.iter().filter(|floor| floor.topic == topic) {
            cursor.see(floor);
        }
        if cursor.may_walk(Instant::now()) && !self.walk(topic).await? {
            return Ok(Claimed {
                deliveries: Vec::new(),
                suspect_waits: self.suspect_waits(topic),
            });
        }
        let fence = self.next_fence();
        let strategy = self.options.strategy;
        let marks = self.cursors.get(&topic).map_or(Marks::START, |cursor| cursor.marks.clone());
        let session = self.session().await?;
        let deliveries = session
            .transaction("claim", async |conn| match strategy {
                ClaimStrategy::SkipLocked => {
                    let rows =
                        claim::lock_ready(conn, topic, &marks, limit, fence.claim_no).await?;
                    make_own(conn, fence, rows).await
                }
                ClaimStrategy::UpdateThenSelect => {
                    update_then_select(conn, fence, topic, limit).await
                }
            })
            .await?;
        Ok(self.keep(topic, fence, deliveries))
    }

    async fn claim_suspect(&mut self, topic: TopicId) -> Result<Claimed> {
        let fence = self.next_fence();
        let session = self.session().await?;
        let deliveries = session
            .transaction("claim", async |conn| {
                let rows = claim::lock_suspect(conn, topic, fence.claim_no).await?;
                make_own(conn, fence, rows).await
            })
            .await?;
        Ok(self.keep(topic, fence, deliveries))
    }

    fn keep(&mut self, topic: TopicId, fence: Fence, deliveries: Vec<Delivery>) -> Claimed {
        if !deliveries.is_empty() {
            self.held.add(fence.claim_no, &deliveries);
        }
        let cursor = self.cursors.entry(topic).or_insert_with(Cursor::new);
        cursor.claimed(&deliveries);
        Claimed { deliveries, suspect_waits: cursor.suspect_waits }
    }

    fn next_fence(&mut self) -> Fence {
        self.last_claim += 1;
        Fence { worker: self.id, claim_no: ClaimNo(self.last_claim) }
    }

    fn suspect_waits(&self, topic: TopicId) -> bool {
        self.cursors.get(&topic).is_some_and(|cursor| cursor.suspect_waits)
    }

    /// Looks from the start of the topic; whether anything is ready.
    async fn walk(&mut self, topic: TopicId) -> Result<bool> {
        let session = self.session().await?;
        let at = Instant::now();
        let walk = session.call("walk", async |conn| claim::walk(conn, topic).await).await?;
        let took = at.elapsed();
        let cursor = self.cursors.entry(topic).or_insert_with(Cursor::new);
        Ok(cursor.walked(&walk, at, took))
    }

    /// Settles a batch, trying again until it is settled or the worker is dead.
    async fn settle(&mut self, batch: Vec<Settled>) -> Result<Vec<SettleOutcome>> {
        let keys: Vec<(ClaimNo, RowId)> = batch.iter().map(|one| (one.claim_no, one.row)).collect();
        let emptied = self.held.emptied_by(&keys);
        let batch = Batch::new(self.id, batch);
        let (mut care, mut in_doubt, mut backoff) = (Care::Quick, false, BACKOFF);
        let missing = loop {
            match self.try_settle(&batch, &emptied, care).await {
                Ok(missing) => break missing,
                Err(error @ (Error::WorkerDead { .. } | Error::WorkerStopped)) => {
                    return Err(error);
                }
                Err(Error::Counts { .. }) if care == Care::Quick => {}
                Err(error) => {
                    in_doubt |= matches!(error, Error::UnknownOutcome { .. });
                    tracing::warn!(worker.id = %self.id, %error, "Settling fails; trying again.");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(Duration::from_secs(1));
                }
            }
            care = Care::LockFirst;
        };
        self.held.remove(&keys);
        let lost = if in_doubt { SettleOutcome::Unknown } else { SettleOutcome::Fenced };
        let outcome = |key| if missing.contains(key) { lost } else { SettleOutcome::Settled };
        Ok(keys.iter().map(outcome).collect())
    }

    async fn try_settle(
        &mut self,
        batch: &Batch,
        emptied: &[ClaimNo],
        care: Care,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let id = self.id;
        let session = self.session().await?;
        session.transaction("settle", async |conn| batch.run(conn, id, emptied, care).await).await
    }

    /// Gives back every row that any claim of this worker still has.
    async fn release_all(&mut self) -> Result<()> {
        self.held = Held::default();
        self.session().await?;
        self.reconcile().await
    }
}

/// Makes rows locked by this transaction the claim's own and records the claim.
async fn make_own(
    conn: &mut diesel_async::AsyncMysqlConnection,
    fence: Fence,
    deliveries: Vec<Delivery>,
) -> Result<Vec<Delivery>> {
    if let Some(first) = deliveries.first() {
        let rows: RowSet = deliveries.iter().map(|delivery| delivery.row).collect();
        let (topic, priority) = (first.topic_id, first.priority);
        let owned = claim::own(conn, fence, topic, priority, &rows).await?;
        equal("claim", rows.len(), owned)?;
        claim::record(conn, fence, topic, priority, &rows).await?;
    }
    Ok(deliveries)
}

/// The seeds' way: the first priority that has a ready row, UPDATE … LIMIT, then SELECT by fence.
async fn update_then_select(
    conn: &mut diesel_async::AsyncMysqlConnection,
    fence: Fence,
    topic: TopicId,
    limit: u32,
) -> Result<Vec<Delivery>> {
    let walk = claim::walk(conn, topic).await?;
    let Some(&(priority, from)) = walk.ready.first() else { return Ok(Vec::new()) };
    let owned = claim::own_ready(conn, fence, topic, priority, from, limit).await?;
    let deliveries = claim::owned(conn, fence, topic, priority, from, limit).await?;
    equal("claim", owned, deliveries.len())?;
    let rows: RowSet = deliveries.iter().map(|delivery| delivery.row).collect();
    claim::record(conn, fence, topic, priority, &rows).await?;
    Ok(deliveries)
}
