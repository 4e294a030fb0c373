//! A shift: duties that take turns over one session.

use std::time::Duration;

use rowmq_core::connection::{ServerUrl, Session, SessionKind};
use rowmq_core::{Result, store, telemetry};
use tokio::time::Instant;

use crate::duty::{AnyDuty, Duty, Sweep};

/// A duty that failed waits at least this long: it is likely to fail again.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// How often each duty's status is recorded. This also proves that the server accepts writes;
/// without that proof, a beat that stands still means nothing.
const RECORD_EVERY: Duration = Duration::from_millis(2500);

/// Performs its duties over a session of its own, each when it is due. A duty waits for the others
/// of its shift only.
pub(crate) struct Shift {
    url: ServerUrl,
    /// After this silence the server drops the session.
    lease: Duration,
    holder: String,
    duties: Vec<Scheduled>,
    session: Option<Session>,
    /// Since when it has worked without a gap, and all its own writes have succeeded.
    steady_since: Instant,
    last_round: Instant,
}

struct Scheduled {
    duty: Box<dyn AnyDuty>,
    due: Instant,
    recorded: Option<Instant>,
}

impl Shift {
    /// Makes a shift without duties.
    pub(crate) fn new(url: ServerUrl, lease: Duration, holder: String) -> Self {
        let now = Instant::now();
        Self {
            url,
            lease,
            holder,
            duties: Vec::new(),
            session: None,
            steady_since: now,
            last_round: now,
        }
    }

    pub(crate) fn add(&mut self, duty: impl Duty + 'static) {
        let duty = Box::new(duty);
        self.duties.push(Scheduled { duty, due: Instant::now(), recorded: None });
    }

    /// Returns the session, after opening one if there is none.
    pub(crate) async fn session(&mut self) -> Result<&mut Session> {
        let session = match self.session.take().filter(|session| !session.is_lost()) {
            Some(session) => session,
            None => {
                let kind = SessionKind::Leased(self.lease);
                let session = Session::open(&self.url, kind, self.lease / 2).await?;
                self.is_steady_from_now();
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Whether the shift has a session, as far as it knows.
    pub(crate) fn has_session(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_lost())
    }

    /// Makes every duty due.
    pub(crate) fn hurry(&mut self) {
        let now = Instant::now();
        self.duties.iter_mut().for_each(|scheduled| scheduled.due = now);
    }

    /// Whether a duty has left something to do or to look at.
    pub(crate) fn wants_run(&self) -> bool {
        self.duties.iter().any(|scheduled| scheduled.duty.wants_run_at().is_some())
    }

    /// Clears what the duties have published: another process sweeps.
    pub(crate) fn rest(&mut self) {
        self.duties.iter_mut().for_each(|scheduled| scheduled.duty.rest());
    }

    /// Closes the session.
    pub(crate) fn leave(&mut self) {
        self.session = None;
    }

    /// What the duties have observed before proves nothing about time.
    pub(crate) fn is_steady_from_now(&mut self) {
        self.steady_since = Instant::now();
        self.last_round = self.steady_since;
    }

    /// Performs the duties that are due. Returns when the next one is due.
    pub(crate) async fn round(&mut self) -> Result<Instant> {
        if let Err(error) = self.session().await {
            let names = self.duties.iter().map(|scheduled| scheduled.duty.name());
            names.for_each(|name| telemetry::duty_ran(name, false, Duration::ZERO));
            return Err(error);
        }
        let started = Instant::now();
        // If the sweeper itself paused (stopped, starved), its earlier observations are stale.
        if started.duration_since(self.last_round) > self.lease / 2 {
            self.steady_since = started;
        }
        self.last_round = started;
        // A duty's failure does not stop the other duties; only a lost session does.
        let mut failed = None;
        for index in 0..self.duties.len() {
            if self.duties[index].due <= Instant::now()
                && let Err(error) = self.perform(index).await
            {
                self.steady_since = Instant::now();
                failed.get_or_insert(error);
            }
            if !self.has_session() {
                break;
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(self.duties.iter().map(|it| it.due).min().unwrap_or(started)),
        }
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
            let holder = &self.holder;
            let record =
                async |conn: &mut _| store::duty::record(conn, name, holder, &done.report).await;
            session.call("record the duty", record).await?;
        }
        Ok(())
    }
}
