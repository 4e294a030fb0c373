//! Rescue: decides which workers are dead, and takes their claims back.

mod deaths;
mod facts;
mod grace;
mod observation;
mod overdue;
mod ranges;
mod taking;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rowmq_core::model::{ClaimNo, WorkerId};
use rowmq_core::rescue::Why;
use rowmq_core::store::claim::Fence;
use rowmq_core::store::process_list;
use rowmq_core::store::rescue;
use rowmq_core::store::worker;
use rowmq_core::{Result, telemetry};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::deaths::{Deaths, declare};
use self::facts::SessionFacts;
use self::observation::{Evidence, Observations, Verdict};
use self::overdue::Overdue;
use self::ranges::Lost;
use self::taking::{Found, Taking, What};
use crate::duty::{Duty, Sweep};
use crate::gauges::Gauges;

/// How many claims are read at once.
const PAGE: u32 = 500;

/// The most pages of one run: the next look waits for it.
const PAGES_PER_RUN: usize = 20;

/// How often the sweeper looks for claims of unknown workers, which reads every claim.
const ORPHANS_EVERY: Duration = Duration::from_secs(10);

/// How often the sweeper looks for workers whose sessions are gone. A look finds a death after half
/// of this time in the mean.
const LOOK: Duration = Duration::from_millis(8);

/// The sweeper waits this many times as long as its last look took: the looks at a large fleet take
/// at most one part in twenty of its session's time.
const LOOK_SHARE: u32 = 20;

/// A longer time between two looks than was planned, by this much, is a pause of this process or of
/// its server: the workers may have stood still too.
const PAUSE: Duration = Duration::from_millis(50);

/// How rescue decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescueOptions {
    /// How often the sweeper reads everything about the workers. It looks for workers whose
    /// sessions are gone far more often, unless the server's locks prove nothing.
    pub sweep: Duration,
    /// The least time that a worker's sessions must have been missing, on this sweeper's own clock.
    /// It is longer if reconnects have taken long, if the server answers slowly, and if many
    /// workers are missing at once. A shorter grace rescues sooner; a grace that is too short for a
    /// reconnect (a worker notices the loss within 0.2 s, and within 50 ms if it holds messages)
    /// lets messages run twice.
    pub grace: Duration,
    /// The most workers declared dead in a second, so that an error of our own observation never
    /// takes the whole fleet at once.
    pub deaths_per_second: usize,
}

impl RescueOptions {
    /// The grace while many workers are missing at once.
    pub(crate) fn grace_of_many(&self) -> Duration {
        grace::of_many(self.grace)
    }
}

impl Default for RescueOptions {
    fn default() -> Self {
        Self {
            sweep: Duration::from_millis(300),
            grace: Duration::from_millis(300),
            deaths_per_second: 10,
        }
    }
}

/// What a run of [`Rescue`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct RescueReport {
    /// Workers that are not known to have ended.
    pub workers_alive: usize,
    /// Whether the process list is proved complete for all of them.
    pub list_proved: bool,
    /// Workers declared dead by this run.
    pub declared_dead: Vec<WorkerId>,
    /// Messages made ready again.
    pub rescued: usize,
    /// Messages dead-lettered because they crashed their worker alone too often.
    pub dead_lettered: usize,
    /// Rows that a session of a dead worker still has locked.
    pub still_locked: u64,
}

/// Declares workers dead and takes their claims back.
#[derive(Debug)]
pub struct Rescue {
    options: RescueOptions,
    observations: Observations,
    overdue: Overdue,
    taking: Taking,
    facts: Option<SessionFacts>,
    gauges: Gauges,
    hurry: Option<Instant>,
    orphans_at: Option<Instant>,
    /// When the workers are to be read next, whether any are missing or not.
    sweep_at: Option<Instant>,
    /// The workers that the last sweep saw to be missing.
    missing: HashSet<WorkerId>,
    /// Workers without a lock that a sweep has seen in the process list.
    listed: HashSet<WorkerId>,
    /// When the next look was planned.
    planned: Option<Instant>,
    deaths: Deaths,
    /// What the last sweep reported, without what it did.
    seen: RescueReport,
    /// When to look next, counted from the start of the last run.
    look_after: Duration,
}

impl Rescue {
    /// Makes the duty with these options.
    #[must_use]
    pub fn new(options: RescueOptions) -> Self {
        let observations = Observations::new(options.grace);
        let deaths = Deaths::new(options.deaths_per_second);
        Self {
            deaths,
            options,
            observations,
            overdue: Overdue::default(),
            taking: Taking::default(),
            facts: None,
            gauges: Gauges::default(),
            hurry: None,
            orphans_at: None,
            sweep_at: None,
            missing: HashSet::new(),
            listed: HashSet::new(),
            planned: None,
            seen: RescueReport::default(),
            look_after: LOOK,
        }
    }

    /// Looks at every worker, and declares dead those that are.
    async fn decide(
        &mut self,
        sweep: &mut Sweep<'_>,
        report: &mut RescueReport,
    ) -> Result<HashMap<WorkerId, u64>> {
        let new_session = self.observations.restarted(sweep.steady_since);
        if new_session {
            self.overdue = Overdue::default();
        }
        if new_session || self.facts.is_none() {
            self.facts = Some(SessionFacts::read(sweep.session).await?);
        }
        let Some(facts) = self.facts.clone() else { return Ok(HashMap::new()) };
        let alive = async |conn: &mut _| worker::alive(conn).await;
        let workers = sweep.session.call("list the workers", alive).await?;
        report.workers_alive = workers.len();
        // Read after the candidates: a session that opens in between is already in the list.
        let list = if workers.iter().any(|worker| !(worker.locked && facts.locks_count)) {
            let show = async |conn: &mut _| match facts.has_view {
                true => process_list::through_view(conn, &facts.visibility).await,
                false => process_list::show(conn).await.map(Some),
            };
            sweep.session.call("read the process list", show).await?
        } else {
            None
        };
        let evidence = Evidence {
            visibility: &facts.visibility,
            incarnation: &facts.incarnation,
            group: facts.group.as_ref(),
            locks_count: facts.locks_count,
            sees_all: facts.visibility.process || facts.has_view,
            // A list without the sweeper's own session is not valid (seed defect S8).
            list: list.filter(|list| list.contains(&facts.visibility.conn)),
        };
        report.list_proved = workers.iter().all(|worker| evidence.is_proved_for(worker));
        let mut held = HashMap::new();
        self.hurry = None;
        self.missing.clear();
        let verdicts = self.observations.judge_all(&workers, &evidence, sweep.now);
        for (worker, verdict) in workers.iter().zip(verdicts) {
            match verdict {
                // The server frees the locks of a session before it takes it off the list: the next
                // look sweeps again.
                Verdict::Alive
                    if !worker.locked
                        && evidence.is_proved_for(worker)
                        && self.listed.insert(worker.id) =>
                {
                    self.look_after = self.pause(sweep.now.elapsed());
                }
                Verdict::Alive => {
                    if !worker.locked {
                        self.missing.insert(worker.id);
                    }
                }
                Verdict::Wait { until } => {
                    self.missing.insert(worker.id);
                    self.hurry_until(until);
                }
                Verdict::Dead(death) => {
                    self.missing.insert(worker.id);
                    if let Some(until) = self.deaths.barred_until(sweep.now) {
                        self.hurry_until(until);
                    } else if let Some(rows) = declare(sweep.session, worker, death).await? {
                        self.deaths.declared(sweep.now);
                        held.insert(worker.id, rows);
                        report.declared_dead.push(worker.id);
                    }
                }
            }
        }
        self.listed.retain(|id| workers.iter().any(|worker| worker.id == *id && !worker.locked));
        self.observations.forget_all_but(&workers);
        self.gauges.swept(report.workers_alive, report.list_proved);
        Ok(held)
    }
}

impl Rescue {
    fn hurry_until(&mut self, until: Instant) {
        self.hurry = Some(self.hurry.map_or(until, |hurry| hurry.min(until)));
    }

    /// Returns how long to wait before the next look, after one that took this time.
    fn pause(&self, took: Duration) -> Duration {
        (took * LOOK_SHARE).max(LOOK).min(self.options.sweep)
    }

    fn locks_count(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.locks_count)
    }

    /// Returns whether to sweep: it is time, or other workers are missing than at the last sweep.
    async fn wants_sweep(&mut self, sweep: &mut Sweep<'_>) -> Result<bool> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| sweep.now >= at);
        if self.sweep_at.is_none() || is_due(self.sweep_at) || is_due(self.hurry) {
            return Ok(true);
        }
        let look = async |conn: &mut _| worker::missing(conn).await;
        let missing = sweep.session.call("look for missing workers", look).await?;
        let took = sweep.now.elapsed();
        self.look_after = self.pause(took);
        self.observations.grace.looked(took, sweep.now);
        Ok(missing.len() != self.missing.len()
            || !missing.iter().all(|id| self.missing.contains(id)))
    }

    /// Looks at the workers, and takes back what is to be taken back.
    async fn sweep(&mut self, sweep: &mut Sweep<'_>) -> Result<RescueReport> {
        self.sweep_at = Some(sweep.now + self.options.sweep);
        let mut report = RescueReport::default();
        let held = self.decide(sweep, &mut report).await?;
        self.seen = report.clone();
        self.seen.declared_dead.clear();
        self.take_back(sweep, Find::Zombies, &held, &mut report).await?;
        self.take_ranges_back(sweep, Lost::Zombies, &held, &mut report).await?;
        self.take_overdue(sweep, &mut report).await?;
        if self.orphans_at.is_none_or(|at| sweep.now >= at) {
            self.orphans_at = Some(sweep.now + ORPHANS_EVERY);
            self.take_back(sweep, Find::Orphans, &held, &mut report).await?;
            self.take_ranges_back(sweep, Lost::Orphans, &held, &mut report).await?;
        }
        telemetry::rescued(report.rescued, report.dead_lettered);
        Ok(report)
    }
}

/// Why no worker can settle a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Find {
    Zombies,
    Orphans,
}

impl Rescue {
    /// Takes every such claim back, page by page, so that claims that cannot be freed do not hide
    /// others.
    async fn take_back(
        &mut self,
        sweep: &mut Sweep<'_>,
        find: Find,
        held: &HashMap<WorkerId, u64>,
        report: &mut RescueReport,
    ) -> Result<()> {
        let mut after = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };
        for _ in 0..PAGES_PER_RUN {
            let page = sweep
                .session
                .call("find claims to rescue", async |conn| match find {
                    Find::Zombies => rescue::zombie_claims(conn, after, PAGE).await,
                    Find::Orphans => rescue::orphan_claims(conn, after, PAGE).await,
                })
                .await?;
            let Some(last) = page.last() else { break };
            after = last.claim.fence;
            let whole = page.len() == PAGE as usize;
            let found = page.into_iter().map(|zombie| {
                let why = why(zombie.claim.fence.worker, zombie.crashed, held);
                Found::new(What::Claim(zombie.claim), why)
            });
            self.taking.take(sweep.session, found.collect(), sweep.now, report).await?;
            if !whole {
                break;
            }
        }
        Ok(())
    }

    /// Takes back what living workers have held for longer than a run may take.
    async fn take_overdue(
        &mut self,
        sweep: &mut Sweep<'_>,
        report: &mut RescueReport,
    ) -> Result<()> {
        let claims = self.overdue.claims(sweep.session, sweep.now).await?;
        self.taking.take(sweep.session, claims, sweep.now, report).await?;
        let ranges = self.overdue.ranges(sweep.session, sweep.now).await?;
        self.taking.take(sweep.session, ranges, sweep.now, report).await
    }
}

impl Duty for Rescue {
    const NAME: &'static str = "rescue";
    type Report = RescueReport;

    fn interval(&self) -> Duration {
        if self.locks_count() { self.look_after } else { self.options.sweep }
    }

    /// Sweeps right when the grace of a missing worker is over, not up to a sweep later.
    fn wants_run_at(&self) -> Option<Instant> {
        self.hurry
    }

    fn is_notable(report: &RescueReport) -> bool {
        !report.declared_dead.is_empty() || report.rescued + report.dead_lettered > 0
    }

    fn rest(&mut self) {
        self.gauges.forget();
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<RescueReport> {
        let late = self.planned.map(|planned| sweep.now.saturating_duration_since(planned));
        if let Some(pause) = late.filter(|late| *late > PAUSE) {
            self.observations.paused(pause);
        }
        let report = if self.wants_sweep(sweep).await? {
            self.sweep(sweep).await?
        } else {
            self.seen.clone()
        };
        self.planned = Some(Instant::now().max(sweep.now + self.look_after));
        Ok(report)
    }
}

/// It is not known that a single message caused the crash.
const SHARED_BLAME: Why = Why::Crashed { rows_held: u64::MAX };

/// Finds why a claim is taken back. Only the sweep that declared the death knows how many rows the
/// worker held: what a later sweep finds may be the last of many, and must not be taken for a lone
/// crash (history H22).
fn why(worker: WorkerId, crashed: bool, held: &HashMap<WorkerId, u64>) -> Why {
    match held.get(&worker) {
        Some(rows) => Why::Crashed { rows_held: *rows },
        None if crashed => SHARED_BLAME,
        None => Why::NotNeeded,
    }
}
