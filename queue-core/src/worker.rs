//! A worker: a consumer's registration, and the two dedicated sessions that are its lease.
//!
//! *Life* holds a name lock and beats; *work* claims and settles. Each is driven by an actor on a
//! thread of its own, so that a handler that blocks its runtime stops no beat, and no query is
//! cancelled half-way. Callers talk to them through channels.

pub(crate) mod cursor;
mod effects;
mod gate;
mod held;
mod life;
mod lost;
mod member;
mod options;
mod quiet;
mod ranges;
mod settling;
mod whole;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::cursor::Claimed;
#[cfg(feature = "simulation")]
pub use self::effects::Links;
pub use self::effects::{Effects, Ending, Ground, Held, Perform};
pub use self::member::Member;
pub use self::options::{ClaimStrategy, WorkerOptions};
pub(crate) use self::settling::end_for;
pub use self::settling::{SettleOutcome, Settled};

use self::lost::LostClaims;
use self::quiet::Quiet;
use self::work::{Command, Handover};
use crate::chance;
use crate::model::{ClaimNo, Error, Group, Result, RowId, Settlement, TopicId, WorkerId};
use crate::store::floor::Pulse;
use crate::store::stream::range::Wanted;
use crate::throughput::Counter;

/// How a worker fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Its sessions speak with the server.
    Alive,
    /// The server has not answered for almost a lease: others may soon take the claims back, so
    /// handlers should stop. It may come alive again.
    Silent,
    /// Declared dead: its claims are lost for ever; register anew.
    Dead {
        /// What its row says, if it could be read.
        reason: String,
    },
}

/// What the life session last learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// How the worker fares.
    pub phase: Phase,
    /// Floors, paused and traced topics, and whether anybody sweeps.
    pub pulse: Arc<Pulse>,
}

/// A registered worker. Cheap to clone; it ends with [`Worker::stop`] or with the process.
#[derive(Debug, Clone)]
pub struct Worker {
    id: WorkerId,
    instance: Uuid,
    lease: Duration,
    life: watch::Receiver<Life>,
    stopping: Arc<AtomicBool>,
    commands: mpsc::UnboundedSender<Command>,
    stop_life: mpsc::Sender<oneshot::Sender<()>>,
    lost: LostClaims,
    counter: Counter,
}

impl Worker {
    /// Registers a worker and starts its sessions.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::Schema`]; a database failure.
    pub async fn start(options: WorkerOptions) -> Result<Self> {
        options.check()?;
        let instance = chance::name();
        let lease = options.lease;
        let stopping = Arc::new(AtomicBool::new(false));
        let ended = CancellationToken::new();
        let holds = watch::Sender::new(false);
        let quiet = || Quiet::new(options.doorbell.as_ref(), holds.subscribe());
        let (for_life, for_work) = (quiet(), quiet());
        let counter = Counter::default();
        let counted = counter.clone();
        let life = life::start(options.clone(), instance, ended.clone(), for_life, counted).await?;
        let lost = LostClaims::default();
        let commands = work::start(work::Start {
            options,
            instance,
            id: life.id,
            life: life.watch.clone(),
            stopping: Arc::clone(&stopping),
            ended,
            holds,
            quiet: for_work,
            lost: lost.clone(),
        })
        .await?;
        Ok(Self {
            stopping,
            id: life.id,
            instance,
            lease,
            life: life.watch,
            commands,
            stop_life: life.stop,
            lost,
            counter,
        })
    }

    /// Its registration.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Random for this registration.
    #[must_use]
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// After this silence the server drops its sessions.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How it fares, and what the topics do.
    #[must_use]
    pub fn life(&self) -> watch::Receiver<Life> {
        self.life.clone()
    }

    /// Where it is counted what the worker gets done; its totals are written down every
    /// two seconds, if there is anything new.
    #[must_use]
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Whether somebody wants the message in this row of the hot table
    /// [cancelled](crate::cancellation). The worker hears of it within a fraction of a second
    /// while it holds anything.
    #[must_use]
    pub fn is_cancelled(&self, row: RowId) -> bool {
        self.life.borrow().pulse.is_cancelled(row)
    }

    /// Whether the worker has found that a range of a stream that it had claimed so is not its own
    /// any more: its group was put elsewhere. Somebody else handles those of its messages that are
    /// still to be handled, so whoever has some in hand need not begin. The worker finds out when
    /// it tells of the range, and with its next beat.
    #[must_use]
    pub fn has_lost(&self, claim: ClaimNo) -> bool {
        self.lost.has(claim)
    }

    /// How many claims it has lost so; rises with each.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.lost.ever()
    }

    /// Claims up to `limit` ready messages of one priority of a topic, in order.
    ///
    /// # Errors
    /// [`Error::WorkerDead`]; a database failure, after which nothing is claimed.
    pub async fn claim(&self, topic: TopicId, limit: u32) -> Result<Claimed> {
        let claimed = self.ask(|reply| Command::Claim { topic, limit, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Claims one suspect of a topic; call it only while nothing else is held, so that a crash
    /// tells on it alone.
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect(&self, topic: TopicId) -> Result<Claimed> {
        let claimed = self.ask(|reply| Command::ClaimSuspect { topic, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Claims up to `limit` messages of a group's stream, after giving the stream's inbox its
    /// offsets.
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_range(&self, group: Group, limit: u32) -> Result<Claimed> {
        let wanted = Wanted::Shared;
        let claimed = self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Claims one message of a stream that is to be handled alone; as [`Worker::claim_suspect`].
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect_range(&self, group: Group) -> Result<Claimed> {
        let (limit, wanted) = (1, Wanted::Suspect);
        let claimed = self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Reads up to `limit` messages of the stream for a member of a broadcast group, after giving
    /// the stream's inbox its offsets. The first time says where it begins, whether there is
    /// anything or not.
    ///
    /// # Errors
    /// [`Error::MemberInUse`] while another worker has its name; as [`Worker::claim`].
    pub async fn read(&self, member: &Member, limit: u32) -> Result<Claimed> {
        self.ask_for_member(member, limit).await.map(Handover::accept)
    }

    /// Settles deliveries. While the server is away this waits for it; see [`SettleOutcome`].
    ///
    /// # Errors
    /// [`Error::WorkerDead`] when the claims have been taken back.
    pub async fn settle(&self, batch: Vec<Settled>) -> Result<Vec<SettleOutcome>> {
        self.ask(|reply| Command::Settle { batch, in_doubt: false, reply }).await?
    }

    /// Gives deliveries back whose ack by [`Effects`] had no answer and may have been committed: a
    /// row that is gone is [unknown](SettleOutcome::Unknown), not fenced.
    ///
    /// # Errors
    /// As [`Worker::settle`].
    pub async fn release_in_doubt(&self, batch: Vec<Settled>) -> Result<Vec<SettleOutcome>> {
        let release = |one| Settled { settlement: Settlement::Release, ..one };
        let batch = batch.into_iter().map(release).collect();
        self.ask(|reply| Command::Settle { batch, in_doubt: true, reply }).await?
    }

    /// Takes note that [`Effects`] have acked these rows. It must be certain: a claim that is
    /// forgotten while it has rows is found by nobody.
    ///
    /// # Errors
    /// [`Error::WorkerDead`]; a database failure, after which the worker's next comparison with the
    /// database does it.
    pub async fn forget(&self, gone: Vec<(ClaimNo, RowId)>) -> Result<()> {
        self.ask(|reply| Command::Forget { gone, reply }).await?
    }

    /// From now on no settle waits for a server that is away: what cannot be settled is left to
    /// the janitor.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Releases what is still held and deregisters.
    ///
    /// # Errors
    /// [`Error::WorkerDead`], when there is nothing left to release; a database failure, after
    /// which the janitor releases.
    pub async fn stop(&self) -> Result<()> {
        self.begin_stop();
        let released = match self.ask(|reply| Command::Stop { reply }).await {
            Ok(released) => released,
            Err(error) => Err(error),
        };
        let (done, stopped) = oneshot::channel();
        if self.stop_life.send(done).await.is_ok() {
            drop(stopped.await);
        }
        released
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| self.ended())?;
        answer.await.map_err(|_| self.ended())
    }

    fn ended(&self) -> Error {
        match &self.life.borrow().phase {
            Phase::Dead { reason } => Error::WorkerDead { reason: reason.clone() },
            _ => Error::WorkerStopped,
        }
    }
}
