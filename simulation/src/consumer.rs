//! A consumer as users write them, on queue-core's worker.

mod cancelled;
mod counting;

use std::rc::Rc;
use std::time::Duration;

use rowmq_core::handler::{RunOutcome, settlement_for};
use rowmq_core::model::{DeadCause, Settlement, TopicSettings};
use rowmq_core::worker::{Ending, Life, Phase, SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{Delivery, Error, Topic};
use tokio::sync::{Notify, RwLock, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::cancelled::is_cancelled;
use crate::effects;
use crate::notebook::Notebook;
use crate::rules::Rule;
use crate::stage::Stage;
use crate::stream::Turn;

/// Runs a consumer until it is killed; it registers as a new worker after each death.
pub(crate) async fn consume(stage: Rc<Stage>, name: String) {
    loop {
        let mut options = WorkerOptions::new(stage.url(&name), name.clone());
        options.lease = stage.settings.lease;
        options.beat = stage.settings.lease / 4;
        options.strategy = stage.settings.strategy;
        let worker = match Worker::start(options).await {
            Ok(worker) => worker,
            Err(error) => {
                stage.server.note(&format!("{name} does not start: {error}"));
                sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let alone = Rc::new(RwLock::new(()));
        let turn = Rc::new(Notify::new());
        tokio::task::spawn_local(call_out(worker.life(), Rc::clone(&turn)));
        let crew = (0..1 + stage.below(2)).map(|_| {
            let crew = Crew {
                stage: Rc::clone(&stage),
                name: name.clone(),
                worker: worker.clone(),
                alone: Rc::clone(&alone),
                turn: Rc::clone(&turn),
                notebook: Notebook::new(&stage, &name, worker.id()),
            };
            tokio::task::spawn_local(crew.work())
        });
        futures_util::future::join_all(crew.collect::<Vec<_>>()).await;
        let stopped = worker.stop().await;
        stage.server.note(&format!("{name} stops: {stopped:?}"));
    }
}

struct Crew {
    stage: Rc<Stage>,
    name: String,
    worker: Worker,
    /// Locked for reading while a message is handled, and for writing while a suspect is.
    alone: Rc<RwLock<()>>,
    turn: Rc<Notify>,
    notebook: Notebook,
}

/// How a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Through,
    /// The worker must not continue.
    Stopped,
    /// One of the messages was cancelled.
    Cancelled,
}

/// Announces each change of a worker's life, until its end. A `watch` wakes its waiters in a random
/// order that no seed decides; this wakes them in the order in which they came.
async fn call_out(mut life: watch::Receiver<Life>, turn: Rc<Notify>) {
    while life.changed().await.is_ok() {
        turn.notify_waiters();
    }
}

impl Crew {
    async fn work(self) {
        loop {
            if !self.stage.strict.get() && self.stage.below(200) == 0 {
                return;
            }
            let reader = self.stage.reader();
            let guard = self.alone.read().await;
            let claimed = match self.worker.claim_of(&reader, None, 1 + self.stage.below(6)).await {
                Ok(claimed) => claimed,
                Err(Error::WorkerDead { .. } | Error::WorkerStopped) => return,
                Err(_) => {
                    drop(guard);
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (idle, suspect) = (claimed.deliveries.is_empty(), claimed.suspect_waits);
            self.handle(&reader, claimed.deliveries).await;
            drop(guard);
            if suspect {
                let _alone = match self.stage.settings.rule {
                    Some(Rule::SuspectsRunAlone) => None,
                    _ => Some(self.alone.write().await),
                };
                if let Ok(claimed) = self.worker.claim_suspect_of(&reader).await {
                    self.handle(&reader, claimed.deliveries).await;
                }
            }
            if idle {
                sleep(Duration::from_millis((40 + self.stage.below(100)).into())).await;
            }
        }
    }

    /// Handles deliveries, some together and some alone; those of an ordered group one after the
    /// other.
    async fn handle(&self, reader: &Topic, mut deliveries: Vec<Delivery>) {
        let worker = Some(self.worker.id());
        self.stage.recorder.borrow_mut().deliver(&self.name, worker, &deliveries);
        deliveries.iter().for_each(|delivery| self.picked_up(delivery));
        if reader.group().is_some_and(|group| group.ordered) {
            return self.handle_in_order(deliveries).await;
        }
        while !deliveries.is_empty() {
            let n = 1 + self.stage.below(deliveries.len() as u32) as usize;
            let at = self.stage.below(2) as usize * (deliveries.len() - n);
            let batch: Vec<_> = deliveries.splice(at..at + n, []).collect();
            match self.run(&batch).await {
                Ended::Through => {
                    self.stage.die_of_poison(&self.name, &batch).await;
                    self.settle(batch, None).await;
                }
                Ended::Cancelled => self.give_up(batch).await,
                Ended::Stopped => {
                    deliveries.extend(batch);
                    return self.give_back(deliveries).await;
                }
            }
        }
    }

    /// Runs a handler. Some handlers look up where the previous run stopped and save how far they
    /// are.
    async fn run(&self, batch: &[Delivery]) -> Ended {
        if !self.notebook.is_wanted(batch) {
            return self.run_for_a_while(batch).await;
        }
        self.notebook.look_back(batch).await;
        let ended = self.run_for_a_while(batch).await;
        if ended != Ended::Through {
            return ended;
        }
        // The handler never asks whether it should go on: a refusal stops it.
        for _ in 0..=self.stage.below(4) {
            if !self.notebook.save(batch).await {
                break;
            }
            self.stage.doze(200).await;
        }
        ended
    }

    /// Handles deliveries one after the other; it stops at one that is to be retried.
    async fn handle_in_order(&self, deliveries: Vec<Delivery>) {
        let mut waiting = deliveries.into_iter();
        while let Some(delivery) = waiting.next() {
            let turn = self.stage.begin_in_order(&self.worker, &delivery);
            // Messages of a log are never cancelled.
            if self.run_for_a_while(&[]).await == Ended::Stopped {
                let rest = std::iter::once(delivery).chain(waiting).collect();
                return self.give_back(rest).await;
            }
            let one = std::slice::from_ref(&delivery);
            self.stage.die_of_poison(&self.name, one).await;
            if !self.settle(vec![delivery], turn).await {
                let rest: Vec<_> = waiting.collect();
                if !rest.is_empty() {
                    self.give_back(rest).await;
                }
                return;
            }
        }
    }

    /// Releases deliveries that will not be handled now; a dead worker has nothing to release.
    async fn give_back(&self, deliveries: Vec<Delivery>) {
        self.stage.server.note(&format!("{} cancels {}", self.name, deliveries.len()));
        let release = deliveries.iter().map(|_| Settlement::Release).collect();
        self.settle_as(deliveries, release, None).await;
    }

    /// Works for some time.
    async fn run_for_a_while(&self, batch: &[Delivery]) -> Ended {
        let stage = &self.stage;
        let heeds = self.heeds();
        let most = stage.run_time();
        let life = self.worker.life();
        let stopped = async {
            loop {
                let turn = self.turn.notified();
                if life.borrow().phase != Phase::Alive {
                    return Ended::Stopped;
                }
                if heeds && batch.iter().any(|delivery| is_cancelled(&self.worker, delivery)) {
                    return Ended::Cancelled;
                }
                turn.await;
            }
        };
        // Nothing here holds a connection.
        tokio::select! {
            biased;
            ended = stopped => ended,
            () = stage.doze(most) => Ended::Through,
        }
    }

    fn settlement(&self) -> Settlement {
        let error = "it failed".to_owned();
        match self.stage.below(20) {
            0 | 1 => {
                let delay = Duration::from_millis(self.stage.below(400).into());
                Settlement::Retry { delay, error }
            }
            2 => Settlement::DeadLetter { cause: DeadCause::Handler, error },
            3 => Settlement::Release,
            4 => Settlement::Discard { reason: error },
            5 => Settlement::Snooze { delay: Duration::from_millis(self.stage.below(400).into()) },
            6 => Settlement::RetryAt { at: self.stage.time_near_now(), error },
            _ => Settlement::Ack,
        }
    }

    /// Handles deliveries in a transaction that acks them. Returns whether all of them are over.
    async fn run_in_transaction(&self, deliveries: Vec<Delivery>, turn: Option<Turn>) -> bool {
        let ask = |delivery, settlement| {
            self.stage.recorder.borrow_mut().ask(&self.name, delivery, settlement)
        };
        deliveries.iter().for_each(|delivery| ask(delivery, &Settlement::Ack));
        let stop = CancellationToken::new();
        let watch = self.stop_if_cancelled(&deliveries, &stop);
        let endings = effects::run(&self.stage, &self.name, &self.worker, &deliveries, stop).await;
        watch.abort();
        let (mut committed, mut in_doubt) = (Vec::new(), Vec::new());
        let (mut undone, mut settlements) = (Vec::new(), Vec::new());
        for (delivery, ending) in deliveries.into_iter().zip(endings) {
            if effects::found_one(&ending) {
                self.stage.recorder.borrow_mut().has_effect_already(&delivery);
            }
            match ending {
                Ending::Committed => committed.push(delivery),
                Ending::InDoubt => in_doubt.push(delivery),
                Ending::Undone(RunOutcome::Interrupted)
                    if is_cancelled(&self.worker, &delivery) =>
                {
                    settlements.push(self.cancelled(&delivery));
                    undone.push(delivery);
                }
                Ending::Undone(outcome) => {
                    let topic = TopicSettings::default();
                    settlements.push(settlement_for(outcome, &delivery, &topic));
                    undone.push(delivery);
                }
            }
        }
        for delivery in &committed {
            self.stage.recorder.borrow_mut().committed(&self.name, delivery);
            self.count(delivery, &Settlement::Ack, SettleOutcome::Settled);
            turn.into_iter().for_each(|turn| self.stage.end_in_order(turn));
        }
        let rows = committed.iter().map(|delivery| (delivery.claim_no, delivery.row)).collect();
        if let Err(error) = self.worker.forget(rows).await {
            self.stage.server.note(&format!("{} cannot forget: {error}", self.name));
        }
        let acked = self.find_out(in_doubt, turn).await;
        let settled = undone.is_empty() || self.settle_as(undone, settlements, turn).await;
        acked && settled
    }

    /// Releases deliveries that may have been acked, and returns whether all of them were.
    async fn find_out(&self, in_doubt: Vec<Delivery>, turn: Option<Turn>) -> bool {
        if in_doubt.is_empty() {
            return true;
        }
        self.comes_back(&in_doubt, turn);
        let rows = in_doubt.iter().map(Settled::release).collect();
        let outcomes = self.worker.release_in_doubt(rows).await;
        let Ok(outcomes) = outcomes else {
            let mut recorder = self.stage.recorder.borrow_mut();
            in_doubt.iter().for_each(|delivery| recorder.abandon(&self.name, delivery));
            return false;
        };
        let acked = outcomes.iter().all(|outcome| *outcome == SettleOutcome::Unknown);
        turn.filter(|_| acked).into_iter().for_each(|turn| self.stage.end_in_order(turn));
        for (delivery, outcome) in in_doubt.iter().zip(outcomes) {
            let mut recorder = self.stage.recorder.borrow_mut();
            if outcome == SettleOutcome::Settled {
                recorder.ask(&self.name, delivery, &Settlement::Release);
            }
            recorder.outcome(&self.name, delivery, outcome);
            drop(recorder);
            if outcome == SettleOutcome::Unknown {
                self.count(delivery, &Settlement::Ack, outcome);
            }
        }
        acked
    }

    /// Settles deliveries. Returns whether all of them are over.
    async fn settle(&self, deliveries: Vec<Delivery>, turn: Option<Turn>) -> bool {
        if self.stage.below(4) == 0 {
            return self.run_in_transaction(deliveries, turn).await;
        }
        let one = (self.stage.below(2) == 0).then(|| self.settlement());
        let each = |_| one.clone().unwrap_or_else(|| self.settlement());
        let settlements = deliveries.iter().map(each).collect();
        self.settle_as(deliveries, settlements, turn).await
    }

    /// Records that messages are about to come back. In an ordered group, the rest of their claim
    /// comes back with them.
    fn comes_back(&self, deliveries: &[Delivery], turn: Option<Turn>) {
        if turn.is_some() {
            let mut recorder = self.stage.recorder.borrow_mut();
            deliveries.iter().for_each(|one| recorder.comes_back_with_the_rest(&self.name, one));
        }
    }

    async fn settle_as(
        &self,
        deliveries: Vec<Delivery>,
        settlements: Vec<Settlement>,
        turn: Option<Turn>,
    ) -> bool {
        let all_over = settlements.iter().all(Settlement::is_final);
        turn.filter(|_| all_over).into_iter().for_each(|turn| self.stage.end_in_order(turn));
        if !all_over {
            self.comes_back(&deliveries, turn);
        }
        let on_done = self.stage.settings.on_done;
        let mut batch = Vec::with_capacity(deliveries.len());
        for (delivery, settlement) in deliveries.iter().zip(&settlements) {
            self.stage.recorder.borrow_mut().ask(&self.name, delivery, settlement);
            let has_checkpoint = self.notebook.has(delivery);
            let settled = Settled::new(delivery, settlement.clone(), on_done);
            batch.push(Settled { has_checkpoint, ..settled });
        }
        let outcomes = self.worker.settle(batch).await;
        match outcomes {
            Ok(outcomes) => {
                for ((delivery, outcome), settlement) in
                    deliveries.iter().zip(outcomes).zip(&settlements)
                {
                    self.stage.recorder.borrow_mut().outcome(&self.name, delivery, outcome);
                    self.count(delivery, settlement, outcome);
                }
            }
            Err(_) => {
                let mut recorder = self.stage.recorder.borrow_mut();
                deliveries.iter().for_each(|delivery| recorder.abandon(&self.name, delivery));
            }
        }
        all_over
    }
}
