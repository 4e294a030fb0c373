//! One topic of one worker: claim, run, settle, in that order and for ever.

mod cancelled;
mod pause;
mod room;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::RunOutcome;
use rowmq_core::telemetry;
use rowmq_core::wake::Wakes;
use rowmq_core::worker::{Claimed, Life, Phase};
use rowmq_core::{Error, Result, Topic};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bell::Bell;
use crate::breaker::{Breaker, Era};
use crate::crew::{BUSY_PAUSE, SUSPECT_PAUSE};
use crate::order::Order;
use crate::permit::{HeldCount, Holding, Pass};
use crate::poll::Poll;
use crate::run::{Post, Ran, Waiting};
use crate::runs::Runs;
use crate::shares::{Share, Slot};

/// How often the loop shows that it turns.
const TURN: Duration = Duration::from_secs(5);

/// A claim that takes longer than this hangs: with a lease of 10 s, its own deadline ends it long
/// before that.
const HUNG: Duration = Duration::from_secs(30);

pub(crate) struct TopicLoop {
    pub(crate) post: Arc<Post>,
    pub(crate) topic: watch::Receiver<Arc<Topic>>,
    /// The topic's share of the consumer's concurrency, if that is shared.
    pub(crate) share: Option<Share>,
    pub(crate) wakes: Wakes,
    pub(crate) bell: Bell,
    /// How often it polls while the doorbell is active.
    pub(crate) safety_poll: Duration,
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
    Claimed(Claimed, Arc<Pass>),
    /// The suspect could not be alone.
    Busy,
}

struct State {
    waiting: VecDeque<Waiting>,
    runs: Runs<(Option<Era>, Ran)>,
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
    held: HeldCount,
    /// Mean time of a run, for the prefetch.
    run_time: Option<Duration>,
    suspect_at: Option<Instant>,
    /// The worker's count of lost claims when the loop last looked for their messages.
    losses: u64,
}

impl TopicLoop {
    /// Runs until the drain is over and everything is handed to the settler, or the worker is dead.
    pub(crate) async fn run(mut self) {
        let mut life = self.post.crew.worker.life();
        let mut state = State {
            waiting: VecDeque::new(),
            runs: Runs::default(),
            order: self.is_ordered().then(Order::default),
            breaker: self.post.registration.options.breaker(),
            slot: None,
            parked: false,
            turn_at: Instant::now(),
            poll: Poll::new(self.safety_poll),
            held: HeldCount::default(),
            run_time: None,
            suspect_at: None,
            losses: self.post.crew.worker.losses(),
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
            self.post.meter.in_flight(state.runs.len(), state.held.get());
            let room = self.room(&state);
            if asking.is_none() && room > 0 && state.poll.due() <= Instant::now() {
                asking = Some(self.ask(room, &mut state));
                asked_at = Instant::now();
            }
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
                () = self.wakes.next() => {
                    if self.bell.is_ringing() {
                        state.poll.rang(Instant::now());
                    } else {
                        state.poll.wake();
                    }
                }
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
        self.post.registration.topic.as_str()
    }

    fn is_ordered(&self) -> bool {
        self.topic.borrow().group().is_some_and(|group| group.ordered)
    }

    fn ask(&self, room: usize, state: &mut State) -> BoxFuture<'static, Result<Asked>> {
        let crew = self.post.crew.clone();
        let topic = self.topic.borrow().clone();
        state.poll.begun();
        if state.suspect_at.take_if(|at| *at <= Instant::now()).is_some() {
            return async move {
                Ok(match crew.claim_alone(&topic).await? {
                    Some((claimed, alone)) => Asked::Claimed(claimed, Arc::new(alone)),
                    None => Asked::Busy,
                })
            }
            .boxed();
        }
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        async move {
            let shared = Arc::clone(&crew.gate).read_owned().await;
            let claimed = crew.claim(&topic, limit).await?;
            Ok(Asked::Claimed(claimed, Arc::new(Pass::Shared(shared))))
        }
        .boxed()
    }

    /// Takes the claimed messages into the queue of this loop.
    fn take(&self, asked: Result<Asked>, state: &mut State) {
        let now = Instant::now();
        match asked {
            Ok(Asked::Claimed(claimed, pass)) => {
                (self.ticked)(Ok(()));
                let found = claimed.deliveries.len();
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
                let topic_id = self.topic.borrow().id;
                for delivery in claimed.deliveries {
                    self.post.meter.picked_up(&delivery);
                    self.post.crew.picked_up(topic_id, &delivery);
                    let counts = [state.held.clone(), self.post.crew.settler.held()];
                    let holding = Holding::new(Arc::clone(&pass), counts);
                    let waiting = Waiting { delivery: Arc::new(delivery), holding, since: now };
                    if waiting.delivery.is_expired() {
                        let topic = self.topic.borrow().clone();
                        self.post.finish(&topic, waiting, RunOutcome::Expired);
                    } else {
                        state.waiting.push_back(waiting);
                    }
                }
                // These messages were claimed before the pause.
                self.give_up_paused(state);
                if state.waiting.is_empty() {
                    state.slot = None;
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
        self.give_up_lost(state);
        if !self.is_unparked(state) {
            return;
        }
        while state.runs.len() < self.post.registration.options.concurrency {
            let size = match state.breaker.as_ref().and_then(Breaker::limit) {
                Some(0) => break,
                Some(few) => few,
                None => self.post.registration.run_size,
            };
            if !state.has_next() {
                break;
            }
            let Some(slot) = self.take_turn(state) else { return };
            let batch: Vec<Waiting> = match &mut state.order {
                Some(order) => order.next(&mut state.waiting).into_iter().collect(),
                None => state.waiting.drain(..size.min(state.waiting.len())).collect(),
            };
            let era = state.breaker.as_mut().map(Breaker::begun);
            let token = self.post.crew.interruption.token().child_token();
            let run = |batch, token| self.run_batch(batch, token, era, slot);
            state.runs.begin(batch, token, run);
        }
        self.want_no_turn();
    }

    /// Gives up messages of ranges that the worker has lost; the worker that has such a range now
    /// handles them.
    fn give_up_lost(&self, state: &mut State) {
        let worker = &self.post.crew.worker;
        let losses = worker.losses();
        if std::mem::replace(&mut state.losses, losses) == losses {
            return;
        }
        let lost = |it: &Waiting| worker.has_lost(it.delivery.claim_no);
        let (lost, rest) = std::mem::take(&mut state.waiting).into_iter().partition(lost);
        state.waiting = rest;
        self.give_back(lost);
    }

    fn give_back(&self, all: VecDeque<Waiting>) {
        let topic = Arc::clone(&self.topic.borrow());
        for waiting in all {
            self.post.finish(&topic, waiting, RunOutcome::Interrupted);
        }
    }

    /// Learns from a run that has ended, and gives back messages that must not overtake one of the
    /// run's.
    fn ran(&self, (era, ran): (Option<Era>, Ran), state: &mut State) {
        state.learn(ran.took);
        if let (Some(breaker), Some(era)) = (&mut state.breaker, era) {
            let change = breaker.ended(era, &ran.tally, Instant::now());
            self.changed(change, state);
        }
        let Some(order) = &mut state.order else { return };
        order.ended(ran.partition);
        let held_back = |it: &Waiting| ran.held_back == Some(it.delivery.claim_no);
        let (held_back, rest) = std::mem::take(&mut state.waiting).into_iter().partition(held_back);
        state.waiting = rest;
        self.give_back(held_back);
    }

    fn run_batch(
        &self,
        batch: Vec<Waiting>,
        stop: CancellationToken,
        era: Option<Era>,
        slot: Option<Slot>,
    ) -> BoxFuture<'static, (Option<Era>, Ran)> {
        let post = Arc::clone(&self.post);
        let topic = self.topic.borrow().clone();
        async move {
            let ran = post.run(&topic, batch, stop).await;
            drop(slot);
            (era, ran)
        }
        .boxed()
    }

    /// Gives back messages that no handler has begun, and waits for the running handlers.
    async fn wind_up(
        &self,
        asking: Option<BoxFuture<'static, Result<Asked>>>,
        mut state: State,
        mut life: watch::Receiver<Life>,
    ) {
        self.give_back(std::mem::take(&mut state.waiting));
        self.want_no_turn();
        state.slot = None;
        let mut asking = asking.filter(|_| !is_dead(&life));
        let mut turn = tokio::time::interval(TURN);
        while asking.is_some() || !state.runs.is_empty() {
            tokio::select! {
                // The claim in flight may have found messages: they must be given back too.
                asked = poll_option(&mut asking), if asking.is_some() => {
                    asking = None;
                    self.take(asked, &mut state);
                    self.give_back(std::mem::take(&mut state.waiting));
                }
                Some(_) = state.runs.next() => {}
                changed = life.changed(), if !is_dead(&life) => {
                    if changed.is_ok() {
                        self.give_up_cancelled(&mut state, &life);
                    }
                }
                _ = turn.tick() => (self.turned)(),
            }
        }
        self.post.meter.in_flight(0, state.held.get());
    }
}

impl State {
    /// Adds the time of a run to the mean.
    fn learn(&mut self, took: Duration) {
        let mean = self.run_time.map_or(took, |mean| (mean * 7 + took) / 8);
        self.run_time = Some(mean);
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
