//! What this sweeper has seen of each worker, and what follows from it. Pure: all times are passed
//! in, and are from the sweeper's own monotonic clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rowmq_core::model::{ConnId, WorkerId};
use rowmq_core::store::process_list::Visibility;
use rowmq_core::store::worker::{Incarnation, WorkerRow};
use tokio::time::Instant;

use super::grace::{self, Grace, are_many};

/// What one sweep knows about the server.
#[derive(Debug)]
pub(super) struct Evidence<'s> {
    pub(super) visibility: &'s Visibility,
    pub(super) incarnation: &'s Incarnation,
    /// The servers of this server's group, if it is in one and shows them.
    pub(super) group: Option<&'s HashSet<String>>,
    pub(super) locks_count: bool,
    /// Whether the list holds the sessions of every account, not only of the sweeper's own.
    pub(super) sees_all: bool,
    /// The process list, if it could be read and holds the sweeper itself.
    pub(super) list: Option<HashSet<ConnId>>,
}

impl Evidence<'_> {
    /// Returns whether the list would hold the worker's sessions if they were alive: the server is
    /// still the one they connected to, and this account may see them.
    pub(super) fn is_proved_for(&self, worker: &WorkerRow) -> bool {
        self.incarnation.is_same(&worker.incarnation)
            && (self.sees_all || self.visibility.account == worker.account)
    }

    /// Returns whether the server that the worker last connected to is gone, and its sessions with
    /// it: this one has restarted since, or the group has lost that member. Connection ids prove
    /// nothing then: this server may have given the same ones to others.
    fn has_lost_server_of(&self, worker: &WorkerRow) -> bool {
        let server = &worker.incarnation;
        self.incarnation.succeeds(server)
            || self.group.is_some_and(|group| !group.contains(&server.server_uid))
    }

    /// Returns whether the worker has no session, as far as the server knows.
    fn misses(&self, worker: &WorkerRow) -> bool {
        let unlisted = || {
            self.is_proved_for(worker)
                && self.list.as_ref().is_some_and(|list| {
                    !list.contains(&worker.conn) && !list.contains(&worker.life_conn)
                })
        };
        self.locks_count && !worker.locked && (self.has_lost_server_of(worker) || unlisted())
    }
}

/// Why a worker is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    /// Its name locks are free and both its sessions have left the process list.
    SessionsGone,
    /// Its name locks are free and its beat stood still for its whole lease.
    Silent,
}

impl Death {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::SessionsGone => "sessions_gone",
            Self::Silent => "silent",
        }
    }

    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::SessionsGone => "both sessions left the process list",
            Self::Silent => "no beat for a whole lease",
        }
    }
}

/// What the observations mean for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Alive,
    /// Its sessions are missing; the grace ends at `until`.
    Wait {
        until: Instant,
    },
    Dead(Death),
}

#[derive(Debug)]
struct Observation {
    /// When its sessions were first seen missing, and which; other sessions restart the grace.
    missing: Option<Missing>,
    beat_no: u64,
    beat_since: Instant,
}

#[derive(Debug)]
struct Missing {
    since: Instant,
    sessions: (ConnId, ConnId),
}

/// What this sweeper has seen of each worker.
#[derive(Debug)]
pub(super) struct Observations {
    pub(super) grace: Grace,
    steady_since: Option<Instant>,
    workers: HashMap<WorkerId, Observation>,
}

impl Observations {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace: Grace::new(grace), steady_since: None, workers: HashMap::new() }
    }

    /// Forgets everything if the sweeper itself had a gap: a new session, a stop, a failed write.
    /// Every worker then has its whole grace or lease again.
    pub(super) fn restarted(&mut self, steady_since: Instant) -> bool {
        let restarted = self.steady_since != Some(steady_since);
        if restarted {
            self.workers.clear();
            self.steady_since = Some(steady_since);
        }
        restarted
    }

    /// Leaves out of every grace the time that this sweeper did not look for so long.
    pub(super) fn paused(&mut self, pause: Duration) {
        let missing = self.workers.values_mut().filter_map(|seen| seen.missing.as_mut());
        missing.for_each(|missing| missing.since += pause);
    }

    pub(super) fn forget_all_but(&mut self, workers: &[WorkerRow]) {
        let known: HashSet<WorkerId> = workers.iter().map(|worker| worker.id).collect();
        self.workers.retain(|id, _| known.contains(id));
    }

    /// Judges every worker by what one sweep knows.
    pub(super) fn judge_all(
        &mut self,
        workers: &[WorkerRow],
        evidence: &Evidence<'_>,
        now: Instant,
    ) -> Vec<Verdict> {
        let many = are_many(workers.iter().filter(|worker| evidence.misses(worker)), workers);
        let grace = self.grace.now(many, now);
        workers.iter().map(|worker| self.judge(worker, evidence, now, grace)).collect()
    }

    fn judge(
        &mut self,
        worker: &WorkerRow,
        evidence: &Evidence<'_>,
        now: Instant,
        grace: Duration,
    ) -> Verdict {
        let fresh = Observation { missing: None, beat_no: worker.beat_no, beat_since: now };
        let seen = self.workers.entry(worker.id).or_insert(fresh);
        let has_beaten = std::mem::replace(&mut seen.beat_no, worker.beat_no) != worker.beat_no;
        if worker.locked && evidence.locks_count {
            if let Some(missing) = seen.missing.take() {
                self.grace.reconnected(now.duration_since(missing.since), now);
            }
            seen.beat_since = now;
            return Verdict::Alive;
        }
        if has_beaten {
            seen.beat_since = now;
            seen.missing = None;
        }
        if now.duration_since(seen.beat_since) >= worker.lease {
            return Verdict::Dead(Death::Silent);
        }
        if !evidence.misses(worker) {
            seen.missing = None;
            return Verdict::Alive;
        }
        let moves = evidence.has_lost_server_of(worker);
        let grace = if moves { grace.max(grace::OF_A_MOVE) } else { grace };
        let sessions = (worker.conn, worker.life_conn);
        match &seen.missing {
            Some(missing) if missing.sessions == sessions => {
                let until = missing.since + grace;
                if now >= until {
                    Verdict::Dead(Death::SessionsGone)
                } else {
                    Verdict::Wait { until }
                }
            }
            _ => {
                seen.missing = Some(Missing { since: now, sessions });
                Verdict::Wait { until: now + grace }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
