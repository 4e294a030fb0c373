//! The life session: name lock, beats, probes. What it learns goes to a watch channel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::quiet::Quiet;
use super::take_up::{take_name_lock, take_up};
use super::{Life, Phase, WorkerOptions};
use crate::actor;
use crate::connection::{Session, SessionKind};
use crate::model::{Error, Result, WorkerId};
use crate::store::floor::{self, Pulse};
use crate::store::throughput;
use crate::store::worker::{self, Registration, Role};
use crate::telemetry;
use crate::throughput::Counter;

/// How often the pulse is read.
const PULSE: Duration = Duration::from_millis(200);

/// How often the session is probed while the worker holds anything. The worker must reopen a lost
/// session before the janitor's grace (0.3 s) is over, or a mere reconnect would cost a second run.
const PROBE: Duration = Duration::from_millis(50);

/// The first pause between attempts to reopen a lost session; each pause is twice as long as the
/// one before, up to the time between two reads of the pulse.
const RETRY: Duration = Duration::from_millis(10);

/// A worker without answers stops trusting its claims this long before its lease ends.
const MARGIN: Duration = Duration::from_secs(1);

/// How long to wait for a stop after the work has ended without one (a panic of its actor).
const WORK_END: Duration = Duration::from_millis(500);

/// How often the throughput is written.
const RECORD_EVERY: Duration = Duration::from_secs(2);

/// The wait after a failed write: the session has more important work.
const RECORD_RETRY: Duration = Duration::from_secs(30);

pub(super) struct Started {
    pub(super) id: WorkerId,
    pub(super) watch: watch::Receiver<Life>,
    pub(super) stop: mpsc::Sender<oneshot::Sender<()>>,
}

/// The slot of the next worker of this process.
static NEXT_SLOT: AtomicU32 = AtomicU32::new(0);

/// Registers the worker and hands its life session to an actor.
pub(super) async fn start(
    options: WorkerOptions,
    instance: Uuid,
    work_ended: CancellationToken,
    quiet: Quiet,
    counter: Counter,
) -> Result<Started> {
    let (ready, registered) = oneshot::channel();
    let (publish, watch) =
        watch::channel(Life { phase: Phase::Alive, pulse: Arc::new(Pulse::default()) });
    let (stop, stops) = mpsc::channel(1);
    let slot = NEXT_SLOT.fetch_add(1, Ordering::Relaxed);
    actor::spawn("rowmq-life", move || async move {
        let registration = Registration {
            instance,
            client_id: format!("{} {instance} {slot}", options.client_id),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease: options.lease,
        };
        match register(&options, &registration).await {
            Ok((session, id, pulse)) => {
                // Known before the first claim: what is paused, and what leaves a trace.
                publish.send_modify(|life| life.pulse = Arc::new(pulse));
                if ready.send(Ok(id)).is_ok() {
                    let answered = Answered::new();
                    let pulsed = Instant::now();
                    let life = LifeSession {
                        options,
                        instance,
                        id,
                        session,
                        publish,
                        answered,
                        quiet,
                        pulsed,
                        counter,
                        record_at: pulsed,
                        retry: Duration::ZERO,
                    };
                    life.run(stops, work_ended).await;
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    let id = registered.await.map_err(|_| Error::WorkerStopped)??;
    Ok(Started { id, watch, stop })
}

async fn register(
    options: &WorkerOptions,
    who: &Registration,
) -> Result<(Session, WorkerId, Pulse)> {
    let kind = SessionKind::Leased(options.lease);
    let mut session = Session::open(&options.url, kind, options.deadline()).await?;
    let (id, pulse) = session
        .call("register the worker", async |conn| {
            take_name_lock(conn, who.instance, Role::Life).await?;
            let incarnation = worker::incarnation(conn).await?;
            let id = worker::register(conn, who, &incarnation).await?;
            Ok((id, floor::pulse(conn).await?))
        })
        .await?;
    Ok((session, id, pulse))
}

/// When the server last answered, counted from when the question was sent: the server's count of
/// its silence starts no earlier.
#[derive(Clone)]
struct Answered(Arc<Mutex<Instant>>);

impl Answered {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn set(&self, asked: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = asked;
    }

    fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// What a probe reads, beside showing that the session is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Nothing,
    Floors,
    Pulse,
}

struct LifeSession {
    options: WorkerOptions,
    instance: Uuid,
    id: WorkerId,
    session: Session,
    publish: watch::Sender<Life>,
    answered: Answered,
    quiet: Quiet,
    /// When the pulse was last read.
    pulsed: Instant,
    counter: Counter,
    /// When the throughput is written next.
    record_at: Instant,
    /// The last pause between attempts to reopen the session.
    retry: Duration,
}

impl LifeSession {
    async fn run(
        mut self,
        mut stops: mpsc::Receiver<oneshot::Sender<()>>,
        work_ended: CancellationToken,
    ) {
        // A separate task watches for silence, because a call may take as long as its deadline.
        let silence =
            watch_silence(self.answered.clone(), self.options.lease, self.publish.clone());
        let silence = actor::beside(silence);
        let mut next_beat = Instant::now() + self.options.beat;
        let mut looked = Instant::now();
        let mut next_look = looked + PROBE;
        let stopped = loop {
            // Only a timer and channels are waited on here, never the connection. The channel is
            // closed when the last handle of the worker has been dropped without a stop.
            tokio::select! {
                biased;
                stopped = stops.recv() => break stopped,
                () = work_ended.cancelled() => break tokio::time::timeout(WORK_END, stops.recv())
                    .await
                    .ok()
                    .flatten(),
                () = tokio::time::sleep_until(next_look) => {}
                () = self.quiet.disturbed() => {
                    next_look = next_look.min(looked + PROBE);
                    continue;
                }
            }
            let began = Instant::now();
            looked = began;
            let beat_due = began >= next_beat;
            next_look = began + PROBE;
            if !beat_due && !self.is_probe_due() {
                if self.quiet.is_quiet() {
                    next_look = next_beat;
                }
                continue;
            }
            let was_lost = self.session.is_lost();
            match self.step(beat_due).await {
                Ok(pulse) => {
                    if beat_due {
                        next_beat = began + self.options.beat;
                    }
                    self.publish_alive(pulse.map(Arc::new));
                    if Instant::now() >= self.record_at {
                        self.record_throughput().await;
                    }
                }
                Err(Error::WorkerDead { reason }) => {
                    telemetry::worker_died();
                    tracing::warn!(worker.id = %self.id, reason, "Worker was declared dead.");
                    self.publish.send_modify(|life| life.phase = Phase::Dead { reason });
                    silence.abort();
                    return;
                }
                Err(error) => {
                    tracing::debug!(worker.id = %self.id, %error, "Life session fails.");
                    next_look = self.next_try(was_lost);
                }
            }
        };
        silence.abort();
        if Instant::now() + RECORD_EVERY >= self.record_at {
            while self.record_throughput().await {}
        }
        self.deregister().await;
        let reason = "it has stopped".to_owned();
        self.publish.send_modify(|life| life.phase = Phase::Dead { reason });
        if stopped.is_some_and(|done| done.send(()).is_err()) {
            tracing::debug!(worker.id = %self.id, "No caller waited for the worker's end.");
        }
    }

    /// Returns when to try again after a failure. A lost session is reopened at once, and while
    /// that fails, at growing intervals.
    fn next_try(&mut self, was_lost: bool) -> Instant {
        let again = (self.retry * 2).clamp(RETRY, PULSE);
        self.retry = if was_lost { again } else { Duration::ZERO };
        Instant::now() + if self.session.is_lost() { self.retry } else { PROBE }
    }

    /// Whether to send a probe that is not a beat.
    fn is_probe_due(&self) -> bool {
        let may_wait = self.quiet.is_quiet() || (!self.quiet.holds() && !self.is_pulse_due());
        self.session.is_lost() || !may_wait
    }

    fn is_pulse_due(&self) -> bool {
        self.pulsed.elapsed() + PROBE / 2 >= PULSE
    }

    /// Writes the throughput since the last write, in one statement that nothing depends on.
    /// Returns whether more topics remain.
    async fn record_throughput(&mut self) -> bool {
        self.record_at = Instant::now() + RECORD_EVERY;
        let (id, totals) = (self.id, self.counter.unwritten(throughput::TOPICS_AT_ONCE));
        if totals.is_empty() {
            return false;
        }
        let record = async |conn: &mut _| throughput::record(conn, id, &totals).await;
        match self.session.call("record the throughput", record).await {
            Ok(_) => {
                self.counter.mark_written(&totals);
                totals.len() == throughput::TOPICS_AT_ONCE
            }
            Err(error) => {
                self.record_at += RECORD_RETRY;
                tracing::warn!(worker.id = %id, %error, "Cannot write the throughput.");
                false
            }
        }
    }

    async fn deregister(&mut self) {
        let (id, instance) = (self.id, self.instance);
        let stop = async |conn: &mut _| worker::stop(conn, id, instance).await;
        if let Err(error) = self.session.call("deregister", stop).await {
            tracing::warn!(worker.id = %id, %error, "Worker was not deregistered.");
        }
    }

    /// Sends one probe, after a beat if one is due, after a reconnect if the session is lost.
    ///
    /// Between two reads of the pulse, a probe reads the floors only. While the worker is quiet,
    /// every other beat leaves out the pulse: the beat detects a lost session.
    async fn step(&mut self, beat_due: bool) -> Result<Option<Pulse>> {
        let (id, instance) = (self.id, self.instance);
        let was_lost = self.session.is_lost();
        if was_lost {
            self.reopen().await?;
        }
        // Counted from after the reconnect. A worker that reconnected slowly would otherwise call
        // itself silent at the moment the server answers again, and cancel its handlers for
        // nothing.
        let asked = Instant::now();
        let may_wait = self.quiet.is_quiet() && self.pulsed.elapsed() < self.options.beat * 3 / 2;
        let wanted = match (beat_due && may_wait, was_lost || self.is_pulse_due()) {
            (true, _) => Wanted::Nothing,
            (_, true) => Wanted::Pulse,
            _ => Wanted::Floors,
        };
        let known = Arc::clone(&self.publish.borrow().pulse);
        let pulse = self
            .session
            .call("probe", async |conn| {
                if beat_due && worker::beat(conn, id, instance).await? == 0 {
                    let row = worker::find(conn, id).await?;
                    let reason = row.and_then(|row| row.end_reason);
                    let reason = reason.unwrap_or_else(|| "its row is gone".to_owned());
                    return Err(Error::WorkerDead { reason });
                }
                match wanted {
                    Wanted::Nothing => Ok(None),
                    Wanted::Floors => {
                        let floors = floor::all(conn).await?;
                        Ok((floors != known.floors).then(|| Pulse { floors, ..(*known).clone() }))
                    }
                    Wanted::Pulse => floor::pulse(conn).await.map(Some),
                }
            })
            .await;
        if pulse.is_ok() {
            self.answered.set(asked);
            if wanted == Wanted::Pulse {
                self.pulsed = asked;
            }
        }
        if self.session.is_lost() && !was_lost {
            telemetry::session_lost(Role::Life.word());
            tracing::warn!(worker.id = %id, "Life session lost; reconnecting.");
        }
        pulse
    }

    async fn reopen(&mut self) -> Result<()> {
        self.session = take_up(&self.options, self.id, self.instance, Role::Life).await?;
        tracing::info!(worker.id = %self.id, "Life session taken up again.");
        Ok(())
    }

    fn publish_alive(&self, pulse: Option<Arc<Pulse>>) {
        self.publish.send_if_modified(|life| {
            let pulse = pulse.unwrap_or_else(|| Arc::clone(&life.pulse));
            let changed = life.phase != Phase::Alive || life.pulse != pulse;
            life.phase = Phase::Alive;
            life.pulse = pulse;
            changed
        });
    }
}

async fn watch_silence(answered: Answered, lease: Duration, publish: watch::Sender<Life>) {
    let limit = lease.saturating_sub(MARGIN).max(lease / 2);
    loop {
        tokio::time::sleep(PROBE).await;
        if answered.age() >= limit {
            publish.send_if_modified(|life| {
                let silent = life.phase == Phase::Alive;
                if silent {
                    tracing::warn!("The server has been silent for almost a lease.");
                    life.phase = Phase::Silent;
                }
                silent
            });
        }
    }
}
