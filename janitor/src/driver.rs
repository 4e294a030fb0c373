use std::time::Duration;

use rowmq_core::connection::{ServerUrl, Session, SessionKind};
use rowmq_core::store::duty::{is_held, take_office};
use rowmq_core::store::installation::Office;
use rowmq_core::{Result, store, telemetry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::duties::{
    Backlogs, Depths, Promote, Prune, Rescue, RescueOptions, Restore, Retain, Sequence, Tick,
    Watch, Weigh,
};
use crate::duty::{AnyDuty, Duty, Sweep};

/// The settings that a driver starts with.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// The server, account and database.
    pub url: ServerUrl,
    /// Which process sweeps, for people to read: host, address, process.
    pub holder: String,
    /// Whether a janitor runs it, or a consumer that stands in for one.
    pub role: Role,
    /// After this silence the server drops the sweeper's session, and with it the sweeper's lock.
    pub lease: Duration,
    /// The settings of rescue.
    pub rescue: RescueOptions,
    /// How long the audit keeps its entries; `None`: for ever. Set for a janitor only: a consumer
    /// that stands in for it must not apply a shorter time than the janitor's.
    pub audit_retention: Option<Duration>,
    /// Whether to measure the topics and the server for the metrics endpoint.
    pub measures: bool,
}

impl DriverOptions {
    /// Returns a janitor's options with the defaults. The audit then keeps everything.
    #[must_use]
    pub fn new(url: ServerUrl, holder: impl Into<String>) -> Self {
        Self {
            url,
            holder: holder.into(),
            role: Role::Janitor,
            lease: Duration::from_secs(10),
            rescue: RescueOptions::default(),
            audit_retention: None,
            measures: false,
        }
    }
}

/// Which kind of process runs a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A janitor: stands ready while another one sweeps; a stand-in gives way to it.
    Janitor,
    /// A consumer in a fleet without a janitor: ends when another process sweeps or a janitor is
    /// there. Only a janitor also measures the topics, prunes the audit and the dead letters, and
    /// restores messages without a topic.
    StandIn,
}

/// How long a driver that could not sweep waits before it tries again.
const RETRY: Duration = Duration::from_millis(300);

/// How often a stand-in that sweeps asks whether a janitor is there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long a single run waits for a stand-in to give way.
const GIVES_WAY_WITHIN: Duration = Duration::from_secs(5);

/// A duty that failed waits at least this long: it is likely to fail again.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// How often each duty's status is recorded. This also proves that the server accepts writes;
/// without that proof, a beat that stands still means nothing.
const RECORD_EVERY: Duration = Duration::from_millis(2500);

/// Performs the duties, each when it is due, over one session that holds the sweeper's lock.
pub struct Driver {
    options: DriverOptions,
    duties: Vec<Scheduled>,
    session: Option<Session>,
    sweeps: bool,
    asked: Instant,
    steady_since: Instant,
    last_sweep: Instant,
}

struct Scheduled {
    duty: Box<dyn AnyDuty>,
    due: Instant,
    recorded: Option<Instant>,
}

impl Driver {
    /// Makes a driver with every duty.
    #[must_use]
    pub fn new(options: DriverOptions) -> Self {
        let now = Instant::now();
        let rescue = Rescue::new(options.rescue.clone());
        let prune = match options.role {
            Role::Janitor => Prune::of_janitor(options.audit_retention),
            Role::StandIn => Prune::of_stand_in(),
        };
        let measures = options.measures;
        let mut driver = Self {
            options,
            duties: Vec::new(),
            session: None,
            sweeps: false,
            asked: now,
            steady_since: now,
            last_sweep: now,
        };
        driver.add(rescue);
        driver.add(Promote::default());
        driver.add(Tick::default());
        driver.add(prune);
        driver.add(Backlogs::default());
        driver.add(Sequence);
        driver.add(Retain::default());
        if measures {
            driver.add(Depths::default());
            driver.add(Weigh::default());
            driver.add(Restore::default());
            driver.add(Watch::default());
        }
        driver
    }

    fn add(&mut self, duty: impl Duty + 'static) {
        let duty = Box::new(duty);
        self.duties.push(Scheduled { duty, due: Instant::now(), recorded: None });
    }

    /// Sweeps until `stop`. Never fails: errors are logged and the sweep is tried again. Calls
    /// `ticked` after every round, for the process's health, with the last error if there is one.
    pub async fn run(mut self, stop: CancellationToken, mut ticked: impl FnMut(Result<()>)) {
        while !stop.is_cancelled() {
            let wait = match self.round().await {
                Ok(Some(due)) => {
                    ticked(Ok(()));
                    due.saturating_duration_since(Instant::now())
                }
                Ok(None) if self.options.role == Role::StandIn => break,
                Ok(None) => {
                    ticked(Ok(()));
                    RETRY
                }
                Err(error) => {
                    tracing::warn!(%error, "Sweep fails; trying again.");
                    ticked(Err(error));
                    RETRY
                }
            };
            // Only a timer and a token are waited on here, never the connection.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        telemetry::sweeping(false);
    }

    /// Makes one run, for cron: performs every duty repeatedly until the grace is over, so that a
    /// worker found missing can be declared dead. Returns true unless another process sweeps; it
    /// first waits for a stand-in to give way.
    pub async fn run_once(mut self) -> Result<bool> {
        let give_up = Instant::now() + GIVES_WAY_WITHIN;
        while self.round().await?.is_none() {
            if Instant::now() >= give_up {
                return Ok(false);
            }
            tokio::time::sleep(RETRY).await;
        }
        let end = Instant::now() + self.options.rescue.grace + RETRY;
        loop {
            tokio::time::sleep(RETRY).await;
            let now = Instant::now();
            for scheduled in &mut self.duties {
                scheduled.due = now;
            }
            if self.round().await?.is_none() {
                return Ok(false);
            }
            if now >= end {
                return Ok(true);
            }
        }
    }

    /// Performs the duties that are due. Returns when the next one is due, or `None` while another
    /// process sweeps.
    async fn round(&mut self) -> Result<Option<Instant>> {
        let holds_lock = self.holds_lock().await;
        if !matches!(holds_lock, Ok(true)) {
            telemetry::sweeping(false);
            self.duties.iter_mut().for_each(|scheduled| scheduled.duty.rest());
            return holds_lock.map(|_| None);
        }
        telemetry::sweeping(true);
        let started = Instant::now();
        // If the sweeper itself paused (stopped, starved), its earlier observations are stale.
        if started.duration_since(self.last_sweep) > self.options.lease / 2 {
            self.steady_since = started;
        }
        self.last_sweep = started;
        // A duty's failure does not stop the other duties; only a lost session does.
        let mut failed = None;
        for index in 0..self.duties.len() {
            if self.duties[index].due <= Instant::now()
                && let Err(error) = self.perform(index).await
            {
                failed.get_or_insert(error);
            }
            if self.session.as_ref().is_none_or(Session::is_lost) {
                break;
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(self.duties.iter().map(|scheduled| scheduled.due).min()),
        }
    }

    /// Returns whether this driver's session holds the sweeper's lock; opens a session if there is
    /// none.
    async fn holds_lock(&mut self) -> Result<bool> {
        if self.session.as_ref().is_none_or(Session::is_lost) {
            self.sweeps = false;
            let kind = SessionKind::Leased(self.options.lease);
            let session = Session::open(&self.options.url, kind, self.options.lease / 2).await?;
            self.session = Some(session);
        }
        let Some(session) = self.session.as_mut() else { return Ok(false) };
        match self.options.role {
            // A live session cannot lose the lock, and the next call fails if the session is dead.
            Role::Janitor if self.sweeps => return Ok(true),
            // One of several janitors gets it, which is enough.
            Role::Janitor => {
                let take = async |conn: &mut _| take_office(conn, Office::Janitor).await;
                session.call("say that a janitor is there", take).await?;
            }
            Role::StandIn if self.sweeps && self.asked.elapsed() < ASK_EVERY => return Ok(true),
            Role::StandIn => {
                let ask = async |conn: &mut _| is_held(conn, Office::Janitor).await;
                if session.call("ask whether a janitor is there", ask).await? {
                    if self.sweeps {
                        tracing::info!("A janitor is there; this consumer no longer sweeps.");
                    }
                    self.session = None;
                    return Ok(false);
                }
                self.asked = Instant::now();
            }
        }
        if !self.sweeps {
            let take = async |conn: &mut _| take_office(conn, Office::Sweeper).await;
            self.sweeps = session.call("take the sweeper's lock", take).await?;
            if self.sweeps {
                tracing::info!(holder = self.options.holder, "Sweeping.");
                self.steady_since = Instant::now();
                self.last_sweep = self.steady_since;
            }
        }
        Ok(self.sweeps)
    }

    async fn perform(&mut self, index: usize) -> Result<()> {
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let scheduled = &mut self.duties[index];
        let name = scheduled.duty.name();
        let now = Instant::now();
        let mut sweep = Sweep { session, now, steady_since: self.steady_since };
        let result = scheduled.duty.run(&mut sweep).await;
        telemetry::duty_ran(name, result.is_ok(), now.elapsed());
        let regular = now + scheduled.duty.interval();
        scheduled.due = scheduled.duty.wants_run_at().map_or(regular, |wanted| wanted.min(regular));
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                scheduled.due = now + scheduled.duty.interval().max(FAILED_PAUSE);
                if name == Rescue::NAME {
                    self.steady_since = Instant::now();
                }
                return Err(error);
            }
        };
        if done.notable {
            let report = String::from_utf8_lossy(&done.report).into_owned();
            tracing::info!(duty = name, report, "Duty did something.");
        }
        let is_old = scheduled.recorded.is_none_or(|at| at.elapsed() >= RECORD_EVERY);
        if done.notable || is_old {
            scheduled.recorded = Some(now);
            let holder = self.options.holder.clone();
            let Some(session) = self.session.as_mut() else { return Ok(()) };
            let recorded = session
                .call("record the duty", async |conn| {
                    store::duty::record(conn, name, &holder, &done.report).await
                })
                .await;
            if let Err(error) = recorded {
                self.steady_since = Instant::now();
                return Err(error);
            }
        }
        Ok(())
    }
}
