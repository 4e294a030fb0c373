//! A consumer that takes its deliveries one by one from a `Receiver`, and has several in hand.

use std::rc::Rc;
use std::time::Duration;

use rowmq_consumer::{ConsumerOptions, DoorbellMode, Received, Receiver};
use rowmq_core::Delivery;
use rowmq_core::handler::{HandlerError, RunOutcome, settlement_for};
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::worker::SettleOutcome;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::rules::Rule;
use crate::stage::Stage;

/// Runs it until it is killed.
pub(crate) async fn receive(stage: Rc<Stage>, name: String) {
    let options = ConsumerOptions {
        lease: stage.settings.lease,
        beat: stage.settings.lease / 4,
        claim_strategy: stage.settings.strategy,
        // It would run in a separate thread.
        sweep: false,
        doorbell: match stage.settings.bells {
            Some(_) => DoorbellMode::Auto,
            None => DoorbellMode::Off,
        },
        safety_poll: safety(&stage),
        ..ConsumerOptions::default()
    };
    loop {
        let (topic, batch) = (stage.topic.clone(), 1 + stage.below(3));
        match Receiver::connect(stage.url(&name), topic, batch, options.clone()).await {
            Ok(receiver) => hand_out(&stage, &name, receiver).await,
            Err(error) => {
                stage.server.note(&format!("{name} does not start: {error}"));
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Returns how long a receiver relies on the sweeper: without the rule, for ever.
fn safety(stage: &Stage) -> Duration {
    match (stage.settings.rule, stage.settings.bells) {
        (Some(Rule::ListenersLook), _) => Duration::from_secs(3600),
        (_, Some(bells)) => bells.safety,
        (_, None) => ConsumerOptions::default().safety_poll,
    }
}

/// Takes deliveries, some of them while others are in hand, until it wants to register again.
async fn hand_out(stage: &Rc<Stage>, name: &str, mut receiver: Receiver) {
    let most = 1 + stage.below(4) as usize;
    let mut in_hand = JoinSet::new();
    while stage.strict.get() || stage.below(200) > 0 {
        while in_hand.try_join_next().is_some() {}
        if in_hand.len() == most {
            in_hand.join_next().await;
        }
        stage.vigil.borrow_mut().receives(name, true);
        let received = receiver.receive().await;
        stage.vigil.borrow_mut().receives(name, false);
        match received {
            Ok(received) => {
                stage.vigil.borrow_mut().takes(name);
                let worker = stage.claimant(&received);
                let one = std::slice::from_ref(&*received);
                stage.recorder.borrow_mut().deliver(name, worker, one);
                in_hand.spawn_local(handle(Rc::clone(stage), name.to_owned(), received));
            }
            Err(error) => {
                stage.server.note(&format!("{name} receives nothing: {error}"));
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    while in_hand.join_next().await.is_some() {}
    stage.vigil.borrow_mut().leaves(name);
    let closed = receiver.close().await;
    stage.server.note(&format!("{name} closes: {closed:?}"));
}

async fn handle(stage: Rc<Stage>, name: String, received: Received) {
    settle(&stage, &name, received).await;
    stage.vigil.borrow_mut().settles(&name);
}

async fn settle(stage: &Rc<Stage>, name: &str, received: Received) {
    stage.doze(stage.run_time()).await;
    stage.die_of_poison(name, std::slice::from_ref(&*received)).await;
    let delivery: Delivery = (*received).clone();
    let ask = |settlement| stage.recorder.borrow_mut().ask(name, &delivery, &settlement);
    if stage.below(12) == 0 {
        ask(Settlement::Release);
        drop(received);
        return stage.recorder.borrow_mut().abandon(name, &delivery);
    }
    let (lot, delay) = (stage.below(12), Duration::from_millis(stage.below(400).into()));
    let outcome = RunOutcome::Returned(verdict(lot, delay));
    ask(settlement_for(outcome, &delivery, &TopicSettings::default()));
    let told = match verdict(lot, delay) {
        Ok(()) => received.ack().await,
        Err(error) => received.fail(error).await,
    };
    let mut recorder = stage.recorder.borrow_mut();
    match told {
        // It is settled, or its commit got no answer and the row is gone.
        Ok(()) => recorder.told(name, &delivery, SettleOutcome::Unknown),
        // It is fenced, or its worker was dead before the answer arrived.
        Err(_) => recorder.abandon(name, &delivery),
    }
}

fn verdict(lot: u32, delay: Duration) -> Result<(), HandlerError> {
    match lot {
        0 | 1 => Err(HandlerError::RetryAfter(delay, "it failed".into())),
        2 => Err(HandlerError::Snooze(delay)),
        3 => Err(HandlerError::Release),
        4 => Err(HandlerError::discard("it is not wanted")),
        5 => Err(HandlerError::dead("it failed")),
        _ => Ok(()),
    }
}
