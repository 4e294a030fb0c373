//! What a topic's loop does with messages that it must give up, with runs that have ended, and at
//! its own end.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rowmq_core::Result;
use rowmq_core::handler::RunOutcome;
use rowmq_core::worker::Life;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Asked, State, TURN, TopicLoop, is_dead, poll_option};
use crate::breaker::Generation;
use crate::run::{RunReport, Waiting};

impl TopicLoop {
    /// Gives up messages of ranges that the worker has lost; the worker that has such a range now
    /// handles them.
    pub(super) fn give_up_lost(&self, state: &mut State) {
        let worker = &self.runner.services.worker;
        let losses = worker.losses();
        if std::mem::replace(&mut state.losses, losses) == losses {
            return;
        }
        let lost = |it: &Waiting| worker.has_lost(it.delivery.claim_no);
        let (lost, rest) = std::mem::take(&mut state.waiting).into_iter().partition(lost);
        state.waiting = rest;
        self.give_back(lost);
    }

    pub(super) fn give_back(&self, all: VecDeque<Waiting>) {
        let topic = Arc::clone(&self.topic.borrow());
        for waiting in all {
            self.runner.finish(&topic, waiting, RunOutcome::Interrupted);
        }
    }

    /// Processes the report of a run that has ended, and gives back messages that must not overtake
    /// a message of that run.
    pub(super) fn ran(
        &self,
        (generation, ran): (Option<Generation>, RunReport),
        state: &mut State,
    ) {
        state.learn(ran.took);
        if let (Some(breaker), Some(generation)) = (&mut state.breaker, generation) {
            let change = breaker.ended(generation, &ran.tally, Instant::now());
            self.changed(change, state);
        }
        let Some(order) = &mut state.order else { return };
        order.ended(ran.partition);
        let held_back = |it: &Waiting| ran.held_back == Some(it.delivery.claim_no);
        let (held_back, rest) = std::mem::take(&mut state.waiting).into_iter().partition(held_back);
        state.waiting = rest;
        self.give_back(held_back);
    }

    /// Gives back messages that no handler has begun, and waits for the running handlers.
    pub(super) async fn wind_up(
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
        self.runner.meter.in_flight(0, state.held.get());
    }
}
