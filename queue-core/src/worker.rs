//! A worker: a consumer's registration, and the two dedicated sessions that are its lease.
//!
//! *Life* holds a name lock and beats; *work* claims and settles. Each is driven by an actor on its
//! own thread, so a handler that blocks its runtime stops no beat and cancels no query half-way.
//! Callers talk to the actors through channels.

pub(crate) mod cursor;
mod deal;
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
mod take_up;
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
use crate::model::{ClaimNo, Error, Group, Result, RowId, Settlement, Topic, TopicId, WorkerId};
use crate::store::floor::Pulse;
use crate::store::stream::range::Wanted;
use crate::throughput::Counter;

/// The state of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Its sessions reach the server.
    Alive,
    /// The server has not answered for almost a lease. Other workers may soon take the claims back,
    /// so handlers should stop. The worker may come alive again.
    Silent,
    /// Declared dead: its claims are lost for ever. Register a new worker.
    Dead {
        /// The reason in its row, if it could be read.
        reason: String,
    },
}

/// What the life session last learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The worker's state.
    pub phase: Phase,
    /// Floors, paused and traced topics, and whether any janitor sweeps.
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
        if let Some(doorbell) = &options.doorbell {
            doorbell.attend(life.id, instance, ended.clone())?;
        }
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

    /// The worker's id.
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

    /// The worker's state, and what is known of the topics.
    #[must_use]
    pub fn life(&self) -> watch::Receiver<Life> {
        self.life.clone()
    }

    /// The counter of the work that this worker completes. The worker writes its totals to the
    /// database every two seconds if they have changed.
    #[must_use]
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Whether the message in this row of the hot table is to be [cancelled](crate::cancellation).
    /// The worker learns of a cancellation within a fraction of a second while it holds anything.
    #[must_use]
    pub fn is_cancelled(&self, row: RowId) -> bool {
        self.life.borrow().pulse.is_cancelled(row)
    }

    /// Whether the worker has lost the stream range of this claim, because the range's group was
    /// moved to another place. Another worker handles the range's remaining messages, so handlers
    /// need not begin those they have. The worker notices the loss when it reports on the range and
    /// with its next beat.
    #[must_use]
    pub fn has_lost(&self, claim: ClaimNo) -> bool {
        self.lost.has(claim)
    }

    /// The number of ranges lost this way. It rises with each.
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

    /// Claims one suspect of a topic. Call it only while nothing else is held, so that a crash
    /// implicates this suspect alone.
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect(&self, topic: TopicId) -> Result<Claimed> {
        let claimed = self.ask(|reply| Command::ClaimSuspect { topic, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Claims up to `limit` messages of a group's stream. First assigns offsets to the messages in
    /// the stream's inbox.
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_range(&self, group: Group, limit: u32) -> Result<Claimed> {
        let wanted = Wanted::Shared;
        let claimed = self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Claims one stream message that must be handled alone; as [`Worker::claim_suspect`].
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect_range(&self, group: Group) -> Result<Claimed> {
        let (limit, wanted) = (1, Wanted::Suspect);
        let claimed = self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?;
        claimed.map(Handover::accept)
    }

    /// Reads up to `limit` messages of the stream for a member of a broadcast group. First assigns
    /// offsets to the messages in the stream's inbox. The first read fixes where the member begins,
    /// even if it finds no message.
    ///
    /// # Errors
    /// [`Error::MemberInUse`] while another worker has the member's name; as [`Worker::claim`].
    pub async fn read(&self, member: &Member, limit: u32) -> Result<Claimed> {
        self.ask_for_member(member, limit).await.map(Handover::accept)
    }

    /// Claims up to `limit` messages of a topic. A group's retries and the messages redriven to it
    /// come before the next ones of its stream, which a broadcast group's `member` reads.
    ///
    /// # Errors
    /// As [`Worker::claim`]; as [`Worker::read`].
    pub async fn claim_of(
        &self,
        topic: &Topic,
        member: Option<&Member>,
        limit: u32,
    ) -> Result<Claimed> {
        tracing::trace!(step = "claim_of");
        let id = topic.id;
        if let Some(member) = member {
            member.wants_as(&topic.settings.filter);
        }
        let own = self.ask(|reply| Command::Claim { topic: id, limit, reply }).await??;
        let rest = limit.saturating_sub(u32::try_from(own.len()).unwrap_or(u32::MAX));
        // The caller owns no messages until both claims are answered. If it is dropped before, the
        // messages are given back.
        let of_stream = match (topic.group(), member) {
            (Some(group), _) if rest > 0 => self.ask_for_range(group, rest).await,
            (None, Some(member)) if rest > 0 => self.ask_for_member(member, rest).await,
            _ => return Ok(own.accept()),
        };
        match of_stream {
            Ok(of_stream) => Ok(both(own.accept(), of_stream.accept())),
            Err(error @ (Error::WorkerDead { .. } | Error::WorkerStopped)) => Err(error),
            Err(error) if own.len() == 0 => Err(error),
            // They are claimed, and must be handled whatever becomes of the stream.
            Err(error) => {
                tracing::warn!(
                    worker.id = %self.id(), topic.name = %topic.name, %error,
                    "A claim from a stream fails; the group's own messages are still handled."
                );
                Ok(own.accept())
            }
        }
    }

    /// Claims one message of a topic that must be handled alone; as [`Worker::claim_suspect`].
    ///
    /// # Errors
    /// As [`Worker::claim`].
    pub async fn claim_suspect_of(&self, topic: &Topic) -> Result<Claimed> {
        let claimed = self.claim_suspect(topic.id).await?;
        match topic.group() {
            Some(group) if claimed.deliveries.is_empty() => self.claim_suspect_range(group).await,
            _ => Ok(claimed),
        }
    }

    /// Settles deliveries. Waits while the server is away; see [`SettleOutcome`].
    ///
    /// # Errors
    /// [`Error::WorkerDead`] when the claims have been taken back.
    pub async fn settle(&self, batch: Vec<Settled>) -> Result<Vec<SettleOutcome>> {
        tracing::trace!(step = "settle");
        self.ask(|reply| Command::Settle { batch, in_doubt: false, reply }).await?
    }

    /// Gives back deliveries whose ack by [`Effects`] had no answer and may have been committed. A
    /// row that is gone is [unknown](SettleOutcome::Unknown), not fenced.
    ///
    /// # Errors
    /// As [`Worker::settle`].
    pub async fn release_in_doubt(&self, batch: Vec<Settled>) -> Result<Vec<SettleOutcome>> {
        let release = |one| Settled { settlement: Settlement::Release, ..one };
        let batch = batch.into_iter().map(release).collect();
        self.ask(|reply| Command::Settle { batch, in_doubt: true, reply }).await?
    }

    /// Records that [`Effects`] have acked these rows. The acks must be certain: if a claim is
    /// forgotten while it still has rows, no worker finds these rows.
    ///
    /// # Errors
    /// [`Error::WorkerDead`]; a database failure, after which the worker's next comparison with the
    /// database forgets them.
    pub async fn forget(&self, gone: Vec<(ClaimNo, RowId)>) -> Result<()> {
        self.ask(|reply| Command::Forget { gone, reply }).await?
    }

    /// Stops settles from waiting for a server that is away: the janitor releases what cannot be
    /// settled.
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

    async fn ask_for_member(&self, member: &Member, limit: u32) -> Result<Handover> {
        let member = member.clone();
        self.ask(|reply| Command::Read { member, limit, reply }).await?
    }

    async fn ask_for_range(&self, group: Group, limit: u32) -> Result<Handover> {
        let wanted = Wanted::Shared;
        self.ask(|reply| Command::ClaimRange { group, limit, wanted, reply }).await?
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

fn both(mut own: Claimed, of_stream: Claimed) -> Claimed {
    own.deliveries.extend(of_stream.deliveries);
    own.suspect_waits |= of_stream.suspect_waits;
    own.lost += of_stream.lost;
    own.filtered += of_stream.filtered;
    own.more_later = of_stream.more_later;
    own
}
