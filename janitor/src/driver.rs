use std::cell::RefCell;
use std::time::Duration;

use rowmq_core::connection::ServerUrl;
use rowmq_core::store::duty::{is_held, take_office};
use rowmq_core::store::installation::Office;
use rowmq_core::{Error, Result, telemetry};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::duties::{
    Backlogs, Depths, Promote, Prune, Rescue, RescueOptions, Restore, Retain, Ring, Sequence, Tick,
    Watch, Weigh,
};
use crate::shift::Shift;

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

/// Performs the duties, each when it is due. Rescue and ring each have a session of their own, so
/// that no other duty makes them wait; the others take turns over the session that holds the
/// sweeper's lock.
pub struct Driver {
    upkeep: Upkeep,
    rescue: Shift,
    ring: Shift,
    /// The longest that a run for cron waits for a missing worker.
    grace: Duration,
}

/// All duties but rescue and ring, over the session that holds the sweeper's lock.
struct Upkeep {
    options: DriverOptions,
    shift: Shift,
    /// Whether this driver is the one that sweeps.
    sweeps: watch::Sender<bool>,
    asked: Instant,
}

impl Driver {
    /// Makes a driver with every duty.
    #[must_use]
    pub fn new(options: DriverOptions) -> Self {
        let shift = || Shift::new(options.url.clone(), options.lease, options.holder.clone());
        let (mut upkeep, mut rescue, mut ring) = (shift(), shift(), shift());
        rescue.add(Rescue::new(options.rescue.clone()));
        ring.add(Ring::default());
        upkeep.add(Promote::default());
        upkeep.add(Tick::default());
        upkeep.add(match options.role {
            Role::Janitor => Prune::of_janitor(options.audit_retention),
            Role::StandIn => Prune::of_stand_in(),
        });
        upkeep.add(Backlogs::default());
        upkeep.add(Sequence);
        upkeep.add(Retain::default());
        if options.measures {
            upkeep.add(Depths::default());
            upkeep.add(Weigh::default());
            upkeep.add(Restore::default());
            upkeep.add(Watch::default());
        }
        let grace = options.rescue.grace_of_many();
        let (sweeps, asked) = (watch::Sender::new(false), Instant::now());
        let upkeep = Upkeep { options, shift: upkeep, sweeps, asked };
        Self { upkeep, rescue, ring, grace }
    }

    /// Sweeps until `stop`. Never fails: errors are logged and the sweep is tried again. Calls
    /// `ticked` after every round, for the process's health, with the last error if there is one.
    pub async fn run(mut self, stop: CancellationToken, ticked: impl FnMut(Result<()>)) {
        let (stop, failed) = (stop.child_token(), RefCell::new(None));
        let sweeps = self.upkeep.sweeps.subscribe();
        let upkeep = async {
            self.upkeep.run(&stop, ticked, &failed).await;
            stop.cancel();
        };
        let (no_ring, rings) = (RefCell::new(None), sweeps.clone());
        tokio::join!(
            upkeep,
            work_while(&mut self.rescue, sweeps, &stop, &failed),
            work_while(&mut self.ring, rings, &stop, &no_ring),
        );
        telemetry::sweeping(false);
    }

    /// Makes one run, for cron: performs every duty at least twice, and repeatedly until no missing
    /// worker waits for the end of its grace. Returns true unless another process sweeps; it first
    /// waits for a stand-in to give way.
    pub async fn run_once(mut self) -> Result<bool> {
        let give_up = Instant::now() + GIVES_WAY_WITHIN;
        while self.upkeep.round().await?.is_none() {
            if Instant::now() >= give_up {
                return Ok(false);
            }
            tokio::time::sleep(RETRY).await;
        }
        let end = Instant::now() + self.grace + RETRY;
        loop {
            self.rescue_for(RETRY).await?;
            let is_last = !self.rescue.wants_run() || Instant::now() >= end;
            self.upkeep.shift.hurry();
            if self.upkeep.round().await?.is_none() {
                return Ok(false);
            }
            if is_last {
                return Ok(true);
            }
        }
    }

    /// Looks for missing workers for this time, as often as rescue wants to.
    async fn rescue_for(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let due = self.rescue.round().await?;
            tokio::time::sleep_until(due.min(until)).await;
        }
        Ok(())
    }
}

/// The error that was logged last, until a round succeeds. While the server is away, three rounds
/// a second fail with the same one.
#[derive(Default)]
struct Warned(Option<String>);

impl Warned {
    /// Logs the error of a round, once.
    fn of<T>(&mut self, what: &str, round: &Result<T>) {
        if let Some(error) = self.news_of(round) {
            tracing::warn!(error, "{what} fails; trying again.");
        }
    }

    /// Returns the error of a round, unless the round before failed with it.
    fn news_of<T>(&mut self, round: &Result<T>) -> Option<&str> {
        let error = round.as_ref().err().map(ToString::to_string);
        let is_news = error != self.0;
        self.0 = error;
        self.0.as_deref().filter(|_| is_news)
    }
}

/// Performs the duties of `shift` while this driver is the one that sweeps. Keeps the last error in
/// `failed` until they succeed.
///
/// While one process takes over from another, both may rescue, until the first one's run ends. A
/// death is decided and its rows are counted once, and each row is taken back once.
async fn work_while(
    shift: &mut Shift,
    mut sweeps: watch::Receiver<bool>,
    stop: &CancellationToken,
    failed: &RefCell<Option<Error>>,
) {
    let mut warned = Warned::default();
    while !stop.is_cancelled() {
        let is_idle = !*sweeps.borrow_and_update();
        let wait = if is_idle {
            shift.rest();
            shift.leave();
            failed.take();
            None
        } else {
            let round = shift.round().await;
            warned.of("A duty", &round);
            match round {
                Ok(due) => {
                    failed.take();
                    Some(due.saturating_duration_since(Instant::now()))
                }
                Err(error) => {
                    failed.replace(Some(error));
                    Some(RETRY)
                }
            }
        };
        // Only a timer, a token and a channel are waited on here, never the connection.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            changed = sweeps.changed() => if changed.is_err() { return },
            () = async { match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            } } => {}
        }
    }
}

impl Upkeep {
    async fn run(
        &mut self,
        stop: &CancellationToken,
        mut ticked: impl FnMut(Result<()>),
        rescue_failed: &RefCell<Option<Error>>,
    ) {
        let mut warned = Warned::default();
        while !stop.is_cancelled() {
            let round = self.round().await;
            warned.of("Sweep", &round);
            let wait = match round {
                Ok(Some(due)) => {
                    ticked(rescue_failed.borrow().clone().map_or(Ok(()), Err));
                    due.saturating_duration_since(Instant::now())
                }
                Ok(None) if self.options.role == Role::StandIn => break,
                Ok(None) => {
                    ticked(Ok(()));
                    RETRY
                }
                Err(error) => {
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
    }

    /// Performs the duties that are due. Returns when the next one is due, or `None` while another
    /// process sweeps.
    async fn round(&mut self) -> Result<Option<Instant>> {
        let holds_lock = self.holds_lock().await;
        let sweeps = matches!(holds_lock, Ok(true));
        telemetry::sweeping(sweeps);
        self.sweeps.send_if_modified(|known| std::mem::replace(known, sweeps) != sweeps);
        if !sweeps {
            self.shift.rest();
            return holds_lock.map(|_| None);
        }
        self.shift.round().await.map(Some)
    }

    /// Returns whether this driver's session holds the sweeper's lock; opens a session if there is
    /// none.
    async fn holds_lock(&mut self) -> Result<bool> {
        let sweeps = *self.sweeps.borrow() && self.shift.has_session();
        let session = self.shift.session().await?;
        match self.options.role {
            // A live session cannot lose the lock, and the next call fails if the session is dead.
            Role::Janitor if sweeps => return Ok(true),
            // One of several janitors gets it, which is enough.
            Role::Janitor => {
                let take = async |conn: &mut _| take_office(conn, Office::Janitor).await;
                session.call("say that a janitor is there", take).await?;
            }
            Role::StandIn if sweeps && self.asked.elapsed() < ASK_EVERY => return Ok(true),
            Role::StandIn => {
                let ask = async |conn: &mut _| is_held(conn, Office::Janitor).await;
                if session.call("ask whether a janitor is there", ask).await? {
                    if sweeps {
                        tracing::info!("A janitor is there; this consumer no longer sweeps.");
                    }
                    self.shift.leave();
                    return Ok(false);
                }
                self.asked = Instant::now();
            }
        }
        if sweeps {
            return Ok(true);
        }
        let take = async |conn: &mut _| take_office(conn, Office::Sweeper).await;
        let taken = session.call("take the sweeper's lock", take).await?;
        if taken {
            tracing::info!(holder = self.options.holder, "Sweeping.");
            self.shift.is_steady_from_now();
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_news_until_a_round_succeeds_or_fails_with_another_one() {
        let failed = |reason: &str| -> Result<()> {
            Err(Error::ReadOnly { server: "db:3306".to_owned(), reason: reason.to_owned() })
        };
        let mut warned = Warned::default();
        let rounds = [failed("a"), failed("a"), failed("b"), Ok(()), failed("b")];
        let news = rounds.map(|round| warned.news_of(&round).is_some());
        assert_eq!(news, [true, false, true, false, true]);
    }
}
