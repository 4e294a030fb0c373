//! The work session: claims and settles, one after the other, in an actor of its own.

mod ack_and_claim;
mod claiming;
pub(super) mod limited;
mod members;
mod ranges;
mod session;
mod settle;
pub(super) mod shares;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cursor::{Claimed, Cursor};
use super::held::Held;
use super::lost::LostClaims;
use super::member::Member;
use super::quiet::Quiet;
use super::ranges::HeldRanges;
use super::settling::{SettleOutcome, Settled};
use super::{Life, WorkerOptions};
use crate::actor;
use crate::connection::Session;
use crate::model::{ClaimNo, Error, Group, Result, RowId, TopicId, WorkerId};
use crate::store::stream::range::Wanted;

pub(super) enum Command {
    Claim {
        topic: TopicId,
        limit: u32,
        reply: oneshot::Sender<Result<Handover>>,
    },
    ClaimSuspect {
        topic: TopicId,
        reply: oneshot::Sender<Result<Handover>>,
    },
    ClaimRange {
        group: Group,
        limit: u32,
        wanted: Wanted,
        reply: oneshot::Sender<Result<Handover>>,
    },
    Read {
        member: Member,
        limit: u32,
        reply: oneshot::Sender<Result<Handover>>,
    },
    Settle {
        batch: Vec<Settled>,
        in_doubt: bool,
        reply: oneshot::Sender<Result<Vec<SettleOutcome>>>,
    },
    Forget {
        gone: Vec<(ClaimNo, RowId)>,
        reply: oneshot::Sender<Result<()>>,
    },
    Stop {
        reply: oneshot::Sender<Result<()>>,
    },
}

/// The parameters of the work session.
pub(super) struct Start {
    pub(super) options: WorkerOptions,
    pub(super) instance: Uuid,
    pub(super) id: WorkerId,
    pub(super) life: watch::Receiver<Life>,
    /// Set when the worker begins to stop: from then on no settle is retried for ever.
    pub(super) stopping: Arc<AtomicBool>,
    /// Cancelled when the actor ends, in order or by a panic: life must not outlive it.
    pub(super) ended: CancellationToken,
    /// Publishes whether the worker holds anything.
    pub(super) holds: watch::Sender<bool>,
    pub(super) quiet: Quiet,
    pub(super) lost: LostClaims,
}

/// Opens the work session and hands it to an actor.
pub(super) async fn start(start: Start) -> Result<mpsc::UnboundedSender<Command>> {
    let (ready, opened) = oneshot::channel();
    let (commands, receiver) = mpsc::unbounded_channel();
    let back = commands.downgrade();
    actor::spawn("rowmq-work", move || async move {
        let _ended = start.ended.clone().drop_guard();
        let mut work = Work {
            options: start.options,
            instance: start.instance,
            id: start.id,
            life: start.life,
            stopping: start.stopping,
            ended: start.ended,
            session: None,
            last_claim: 0,
            compared_from: ClaimNo(0),
            reopened: Instant::now(),
            doubtful: HashSet::new(),
            held: Held::default(),
            left: HashMap::new(),
            ranges: HeldRanges::default(),
            members: HashMap::new(),
            deferred: Vec::new(),
            cursors: HashMap::new(),
            compared: Instant::now(),
            spoke: Instant::now(),
            holds: start.holds,
            quiet: start.quiet,
            lost: start.lost,
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
    stopping: Arc<AtomicBool>,
    ended: CancellationToken,
    session: Option<Session>,
    last_claim: u64,
    /// Every claim before this one is known to be gone from the database.
    compared_from: ClaimNo,
    /// When the session was last opened.
    reopened: Instant,
    /// Claims that were held when the session was last reopened, until they are forgotten. The new
    /// server may have lost their settlements, so their rows may exist again.
    doubtful: HashSet<ClaimNo>,
    held: Held,
    /// Rows of each topic that the last comparison found in claims that the worker does not hold,
    /// and could not release: another session had locked them.
    left: HashMap<TopicId, u32>,
    ranges: HeldRanges,
    /// The members of broadcast groups that it reads for.
    members: HashMap<TopicId, Member>,
    /// Settled by their handlers, but not yet in the database: another transaction locks their
    /// rows, or the server refuses. Retried with every comparison.
    deferred: Vec<Settled>,
    cursors: HashMap<TopicId, Cursor>,
    compared: Instant,
    /// When the session last sent anything.
    spoke: Instant,
    holds: watch::Sender<bool>,
    quiet: Quiet,
    /// Claims of ranges that are no longer the worker's.
    lost: LostClaims,
    commands: mpsc::WeakUnboundedSender<Command>,
}

/// Claimed rows on their way to the caller. If the caller has gone and they are dropped on the way,
/// they are released: no worker would settle them.
pub(super) struct Handover {
    claimed: Claimed,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl Handover {
    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.claimed.deliveries.len()
    }

    /// Hands the rows to the caller.
    pub(super) fn accept(mut self) -> Claimed {
        std::mem::take(&mut self.claimed)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let batch: Vec<_> = self.claimed.deliveries.iter().map(Settled::release).collect();
        if let (false, Some(commands)) = (batch.is_empty(), self.commands.upgrade()) {
            let (reply, _nobody) = oneshot::channel();
            // An actor that has ended has released everything, or cannot.
            drop(commands.send(Command::Settle { batch, in_doubt: false, reply }));
        }
    }
}

impl Work {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let idle = self.keep_alive_in();
                let idle = self.ranges.due_in().map_or(idle, |due| due.min(idle));
                let idle = self.members_due_in().map_or(idle, |due| due.min(idle));
                // Only a channel and a timer are waited on here, never the connection.
                tokio::select! {
                    biased;
                    command = commands.recv() => match command {
                        Some(command) => waiting.push_back(command),
                        None => return,
                    },
                    () = tokio::time::sleep(idle) => {}
                }
            }
            // Needed while commands come, too: polls of a paused topic send nothing to the server.
            if self.keep_alive_in().is_zero() {
                self.keep_alive().await;
            }
            if self.ranges.due_in().is_some_and(|due| due.is_zero())
                && let Err(error) = self.report_ranges(false).await
            {
                tracing::debug!(worker.id = %self.id, %error, "Work session fails.");
                self.ranges.wait_all();
            }
            if self.members_due_in().is_some_and(|due| due.is_zero())
                && let Err(error) = self.report_members(false).await
            {
                tracing::debug!(worker.id = %self.id, %error, "Work session fails.");
                self.members.values().for_each(Member::wait);
            }
            while let Ok(command) = commands.try_recv() {
                waiting.push_back(command);
            }
            if !self.ack_and_claim_next(&mut waiting).await
                && let Some(command) = waiting.pop_front()
                && !self.perform(command).await
            {
                return;
            }
            let holds = !self.held.is_empty()
                || !self.deferred.is_empty()
                || !self.ranges.is_empty()
                || self.members.values().any(|member| member.state().has_open());
            self.holds.send_if_modified(|held| std::mem::replace(held, holds) != holds);
        }
    }

    /// How soon the session must send something again, and compare its claims. Normally every beat.
    /// While it is quiet, it sends twice a lease (polls count) and compares once a lease.
    fn keep_alive_in(&self) -> Duration {
        let beat = self.options.beat;
        let left = |since: Instant, time: Duration| time.saturating_sub(since.elapsed());
        if self.quiet.is_quiet() {
            left(self.spoke, beat * 2).min(left(self.compared, beat * 4))
        } else {
            left(self.compared, beat)
        }
    }

    /// Performs one command; false after the last one.
    async fn perform(&mut self, command: Command) -> bool {
        tracing::trace!(step = "perform");
        match command {
            // A caller that is gone has no use for rows: no worker would settle them.
            Command::Claim { reply, .. }
            | Command::ClaimSuspect { reply, .. }
            | Command::ClaimRange { reply, .. }
            | Command::Read { reply, .. }
                if reply.is_closed() => {}
            Command::Claim { topic, limit, reply } => {
                let claimed = self.claim(topic, limit).await;
                drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
            }
            Command::ClaimSuspect { topic, reply } => {
                let claimed = self.claim_suspect(topic).await;
                drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
            }
            Command::ClaimRange { group, limit, wanted, reply } => {
                let claimed = self.claim_range(group, limit, wanted).await;
                drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
            }
            Command::Read { member, limit, reply } => {
                let claimed = self.read_for(&member, limit).await;
                drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
            }
            Command::Settle { batch, in_doubt, reply } => {
                let outcome = self.settle(batch, in_doubt).await;
                drop(reply.send(outcome));
            }
            Command::Forget { gone, reply } => {
                drop(reply.send(self.forget(&gone).await));
            }
            Command::Stop { reply } => {
                let released = self.release_all().await;
                drop(reply.send(released));
                return false;
            }
        }
        true
    }

    fn hand_over(&self, claimed: Claimed) -> Handover {
        Handover { claimed, commands: self.commands.clone() }
    }
}
