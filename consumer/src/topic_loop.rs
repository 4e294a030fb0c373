//! One topic of one worker: claim, run, settle, in that order and for ever.

mod cancelled;
mod ending;
mod pause;
mod prefetch;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::doorbell::Idleness;
use rowmq_core::handler::RunOutcome;
use rowmq_core::telemetry;
use rowmq_core::wake::Wakes;
use rowmq_core::worker::{Claimed, Life, Phase};
use rowmq_core::{Error, Result, Topic};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bell::Bell;
use crate::breaker::{Breaker, Generation};
use crate::order::Order;
use crate::permit::{GatePermit, HeldCount, Permit};
use crate::poll::Poll;
use crate::run::{RunReport, Runner, Waiting};
use crate::runs::Runs;
use crate::services::{BUSY_PAUSE, SUSPECT_PAUSE};
use crate::shares::{Share, Slot};

/// How often the loop reports that it is alive.
const TURN: Duration = Duration::from_secs(5);

/// A claim that takes longer than this hangs: with a lease of 10 s, its own deadline ends it long
/// before that.
const HUNG: Duration = Duration::from_secs(30);

pub(crate) struct TopicLoop {
    pub(crate) runner: Arc<Runner>,
    pub(crate) topic: watch::Receiver<Arc<Topic>>,
    /// The topic's share of the consumer's concurrency, if that is shared.
    pub(crate) share: Option<Share>,
    pub(crate) wakes: Wakes,
    pub(crate) bell: Bell,
    /// Once this is cancelled, nothing more is claimed.
    pub(crate) drain: CancellationToken,
    /// Called with the result of the last claim, for the process's health.
    pub(crate) ticked: Arc<dyn Fn(Result<(), String>) + Send + Sync>,
    /// Called every few seconds while the loop turns, even if every handler is busy and nothing is
    /// claimed; not while a claim hangs.
    pub(crate) turned: Arc<dyn Fn() + Send + Sync>,
}

/// The result of a claim.
enum Asked {
    Claimed(Claimed, Arc<GatePermit>),
    /// The suspect could not be alone.
    Busy,
}

struct State {
    waiting: VecDeque<Waiting>,
    runs: Runs<(Option<Generation>, RunReport)>,
    /// Set for an ordered group.
    order: Option<Order>,
    /// Set for a topic that is paused on errors.
    breaker: Option<Breaker>,
    /// Held if it is the topic's turn and its next message is being claimed.
    slot: Option<Slot>,
    /// Whether it has given back what it held, and claims nothing until it is its turn.
    parked: bool,
    /// When it last was its turn.
    turn_at: Instant,
    poll: Poll,
    /// Set for a consumer with a doorbell.
    idleness: Option<Idleness>,
    held: HeldCount,
    /// Whether the last claim left messages that wait for others to be settled.
    blocked: bool,
    /// Mean time of a run, for the prefetch.
    run_time: Option<Duration>,
    /// When the last run ended.
    ended_at: Instant,
    /// Mean bytes of the bodies of the last claim.
    body: usize,
    suspect_at: Option<Instant>,
    /// The worker's count of lost claims when the loop last looked for their messages.
    losses: u64,
}

impl TopicLoop {
    /// Runs until the drain is over and everything is handed to the settler, or the worker is dead.
    pub(crate) async fn run(mut self) {
        tracing::trace!(step = "run");
        let mut life = self.runner.services.worker.life();
        let mut state = State {
            waiting: VecDeque::new(),
            runs: Runs::default(),
            order: self.is_ordered().then(Order::default),
            breaker: self.runner.registration.options.breaker(),
            slot: None,
            parked: false,
            turn_at: Instant::now(),
            poll: Poll::new(),
            idleness: self.bell.idleness(),
            held: HeldCount::default(),
            blocked: false,
            run_time: None,
            ended_at: Instant::now(),
            body: 0,
            suspect_at: None,
            losses: self.runner.services.worker.losses(),
        };
        let mut asking: Option<BoxFuture<'static, Result<Asked>>> = None;
        let mut asked_at = Instant::now();
        if state.breaker.is_some() {
            telemetry::may_pause_on_errors(self.name());
        }
        let mut turn = tokio::time::interval(TURN);
        while !self.drain.is_cancelled() && !is_dead(&life) {
            self.turn_breaker(&mut state);
            self.give_up_cancelled(&mut state, &life);
            self.start_runs(&mut state);
            self.give_back_surplus(&mut state);
            self.runner.meter.in_flight(state.runs.len(), state.held.get());
            let room = self.room(&state);
            if asking.is_none() && room > 0 && state.poll.due() <= Instant::now() {
                asking = Some(self.ask(room, &mut state));
                asked_at = Instant::now();
            }
            let is_idle = room > 0 && state.poll.is_idle();
            state.idleness.as_mut().into_iter().for_each(|idleness| idleness.set(is_idle));
            let next = self.next(&state, room);
            // No future that holds a connection is among these: claims run in the worker's actor.
            tokio::select! {
                asked = poll_option(&mut asking), if asking.is_some() => {
                    asking = None;
                    self.take(asked, &mut state);
                }
                Some(ran) = state.runs.next() => {
                    self.ran(ran, &mut state);
                    // Most runs end together; a turn of the loop for each would cost as much as its
                    // handler.
                    while let Some(Some(ran)) = state.runs.next().now_or_never() {
                        self.ran(ran, &mut state);
                    }
                }
                () = sleep_until(next), if asking.is_none() => {}
                () = self.wakes.next() => state.poll.wake(),
                // A settled message may have freed the place that another message waits for.
                () = state.held.settled(), if state.blocked => state.poll.wake(),
                () = self.bell.turned() => state.poll.wake(),
                () = turn_of(self.share.as_ref()) => {}
                changed = life.changed() => {
                    if changed.is_err() { break }
                    state.poll.wake();
                }
                () = self.drain.cancelled() => {}
                _ = turn.tick() => if asking.is_none() || asked_at.elapsed() < HUNG {
                    (self.turned)();
                },
            }
        }
        self.wind_up(asking, state, life).await;
    }

    fn name(&self) -> &str {
        self.runner.registration.topic.as_str()
    }

    fn is_ordered(&self) -> bool {
        self.topic.borrow().group().is_some_and(|group| group.ordered)
    }

    /// Returns how many messages to claim now; 0 while there are enough.
    fn room(&self, state: &State) -> usize {
        tracing::trace!(step = "room");
        if state.parked {
            return 0;
        }
        if let Some(limit) = state.breaker.as_ref().and_then(Breaker::limit) {
            return limit.saturating_sub(state.waiting.len());
        }
        if let Some(order) = &state.order {
            let busy = state.runs.len() >= self.concurrency();
            let enough = busy || order.has_next(&state.waiting);
            return if enough { 0 } else { self.runner.registration.options.max_batch as usize };
        }
        let max_batch = self.runner.registration.options.max_batch as usize;
        let prefetch = self.prefetch(state);
        let room = (self.free(state) + prefetch).saturating_sub(state.waiting.len());
        // Small claims cost as much as large ones: wait until half of the prefetch is used up.
        let worth = (prefetch / 2).max(1);
        if room < worth && !state.waiting.is_empty() { 0 } else { room.min(max_batch) }
    }

    /// Returns when the loop must act without being woken: at the next poll if there is `room`, at
    /// the end of a pause, or when a message has waited too long for its turn.
    fn next(&self, state: &State, room: usize) -> Option<Instant> {
        let pause = state.breaker.as_ref().and_then(Breaker::until);
        let next = pause.or_else(|| (room > 0).then(|| state.poll.due()));
        let is_free = state.runs.len() < self.runner.registration.options.concurrency;
        let turn = self.turn_due(state).filter(|_| is_free);
        let surplus = self.surplus_due(state);
        [next, turn, surplus].into_iter().flatten().min()
    }

    /// Returns how many handlers of this topic may run at once.
    fn concurrency(&self) -> usize {
        let slots = self.share.as_ref().map_or(usize::MAX, Share::slots);
        self.runner.registration.options.concurrency.min(slots)
    }

    /// Returns how many messages the free handlers of this topic could take.
    fn free(&self, state: &State) -> usize {
        let handlers = self.concurrency().saturating_sub(state.runs.len());
        handlers * self.runner.registration.run_size
    }

    /// Returns whether a claimed message takes the place of another one that could run.
    fn bounds_running(&self) -> bool {
        self.topic.borrow().settings.limits.bounds_running()
    }

    /// Returns whether a claimed message costs something while it waits in memory.
    fn is_limited(&self) -> bool {
        let topic = self.topic.borrow();
        topic.settings.max_run_time.is_some() || !topic.settings.limits.is_off()
    }

    fn ask(&self, room: usize, state: &mut State) -> BoxFuture<'static, Result<Asked>> {
        tracing::trace!(step = "ask");
        let services = self.runner.services.clone();
        let topic = self.topic.borrow().clone();
        state.poll.begun();
        if state.suspect_at.take_if(|at| *at <= Instant::now()).is_some() {
            return async move {
                Ok(match services.claim_alone(&topic).await? {
                    Some((claimed, alone)) => Asked::Claimed(claimed, Arc::new(alone)),
                    None => Asked::Busy,
                })
            }
            .boxed();
        }
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        async move {
            let shared = Arc::clone(&services.gate).read_owned().await;
            let member = services.members.of(&topic)?;
            let claimed = services.worker.claim_of(&topic, member.as_ref(), limit).await?;
            Ok(Asked::Claimed(claimed, Arc::new(GatePermit::Shared(shared))))
        }
        .boxed()
    }

    /// Takes the claimed messages into the queue of this loop.
    fn take(&self, asked: Result<Asked>, state: &mut State) {
        tracing::trace!(step = "take");
        let now = Instant::now();
        match asked {
            Ok(Asked::Claimed(claimed, gate)) => {
                (self.ticked)(Ok(()));
                let found = claimed.deliveries.len();
                state.blocked = claimed.more_later && self.bounds_running();
                telemetry::lost_to_retention(self.name(), claimed.lost);
                telemetry::filtered(self.name(), claimed.filtered);
                if found > 0 {
                    telemetry::claimed(self.name(), found);
                    state.poll.found(now);
                } else if claimed.filtered > 0 {
                    state.poll.found(now);
                } else {
                    // The doorbell does not ring for messages that other workers hold and may give
                    // back.
                    state.poll.empty(now, self.bell.is_ringing() && !claimed.more_later);
                }
                if claimed.suspect_waits && state.suspect_at.is_none() {
                    state.suspect_at = Some(now + SUSPECT_PAUSE);
                }
                let bytes: usize = claimed.deliveries.iter().map(|it| it.body.len()).sum();
                state.body = bytes.checked_div(found).unwrap_or(state.body);
                let topic_id = self.topic.borrow().id;
                for delivery in claimed.deliveries {
                    self.runner.meter.picked_up(&delivery);
                    self.runner.services.picked_up(topic_id, &delivery);
                    let counts = [state.held.clone(), self.runner.services.settler.held()];
                    let permit = Permit::new(Arc::clone(&gate), counts);
                    let waiting = Waiting { delivery: Arc::new(delivery), permit, since: now };
                    if waiting.delivery.is_expired() {
                        let topic = self.topic.borrow().clone();
                        self.runner.finish(&topic, waiting, RunOutcome::Expired);
                    } else {
                        state.waiting.push_back(waiting);
                    }
                }
                // These messages were claimed before the pause.
                self.give_up_paused(state);
                if state.waiting.is_empty() {
                    state.slot = None;
                } else {
                    // They were claimed while the earlier ones were given back.
                    state.parked = false;
                }
            }
            Ok(Asked::Busy) => {
                state.slot = None;
                state.suspect_at = Some(now + BUSY_PAUSE);
                state.poll.found(now);
            }
            Err(error) => {
                state.slot = None;
                (self.ticked)(Err(error.to_string()));
                tracing::debug!(topic.name = self.name(), %error, "Claim fails; trying again.");
                match error {
                    Error::MemberInUse { .. } => state.poll.stands_by(now),
                    _ => state.poll.failed(now),
                }
            }
        }
    }

    /// Starts as many runs as there are free handlers, in the order of the claims.
    fn start_runs(&self, state: &mut State) {
        tracing::trace!(step = "start_runs");
        self.give_up_lost(state);
        if !self.is_unparked(state) {
            return;
        }
        while state.runs.len() < self.runner.registration.options.concurrency {
            let size = match state.breaker.as_ref().and_then(Breaker::limit) {
                Some(0) => break,
                Some(few) => few,
                None => self.runner.registration.run_size,
            };
            if !state.has_next() {
                break;
            }
            let Some(slot) = self.take_turn(state) else { return };
            let batch: Vec<Waiting> = match &mut state.order {
                Some(order) => order.next(&mut state.waiting).into_iter().collect(),
                None => state.waiting.drain(..size.min(state.waiting.len())).collect(),
            };
            let generation = state.breaker.as_mut().map(Breaker::begun);
            let token = self.runner.services.interruption.token().child_token();
            let run = |batch, token| self.run_batch(batch, token, generation, slot);
            state.runs.begin(batch, token, run);
        }
        self.want_no_turn();
    }

    fn run_batch(
        &self,
        batch: Vec<Waiting>,
        stop: CancellationToken,
        generation: Option<Generation>,
        slot: Option<Slot>,
    ) -> BoxFuture<'static, (Option<Generation>, RunReport)> {
        let runner = Arc::clone(&self.runner);
        let topic = self.topic.borrow().clone();
        async move {
            let ran = runner.run(&topic, batch, stop).await;
            drop(slot);
            (generation, ran)
        }
        .boxed()
    }
}

fn is_dead(life: &watch::Receiver<Life>) -> bool {
    matches!(life.borrow().phase, Phase::Dead { .. })
}

async fn turn_of(share: Option<&Share>) {
    match share {
        Some(share) => share.turn().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn poll_option<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
