//! A process that cancels messages as `rowmq cancel` does: waiting ones, ready ones, and ones whose
//! handler runs. It first asks the worker of such a handler, and fences it if it does not answer.

use std::rc::Rc;
use std::time::Duration;

use rowmq_core::Topic;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::connection::{Session, SessionKind};
use rowmq_core::model::MsgId;
use tokio::time::{Instant, sleep};

use crate::recorder::Answer;
use crate::recorder::Share;
use crate::rules::Rule;
use crate::stage::Stage;

/// How long the canceller keeps trying beyond the time that a worker has.
const PATIENCE: Duration = Duration::from_secs(2);

/// Cancels `n` messages, one after the other.
pub(crate) async fn cancel(stage: Rc<Stage>, name: String, n: u32) {
    let mut session = None;
    for _ in 0..n {
        stage.doze(500).await;
        let (reader, id) = (stage.reader(), stage.recent_message());
        if let Some(id) = id.filter(|id| stage.recorder.borrow().knows((reader.id, *id))) {
            Wish { stage: &stage, name: &name, reader: &reader, id }.pursue(&mut session).await;
        }
    }
}

/// A message to cancel.
struct Wish<'s> {
    stage: &'s Stage,
    name: &'s str,
    reader: &'s Topic,
    id: MsgId,
}

impl Wish<'_> {
    /// Tries until there is an answer, or until it takes too long.
    async fn pursue(&self, session: &mut Option<Session>) {
        let share: Share = (self.reader.id, self.id);
        let stage = self.stage;
        let wish = stage.recorder.borrow_mut().wishes_end_of(share, self.name);
        let mut cancellation = Cancellation::new(self.reader, self.id);
        let (began, grace) = (Instant::now(), Duration::from_millis(stage.below(900).into()));
        while began.elapsed() < grace + PATIENCE {
            let claims = if began.elapsed() < grace { Claims::Ask } else { Claims::TakeAway };
            if session.as_ref().is_none_or(Session::is_lost) {
                *session = self.open().await;
            }
            let Some(open) = session.as_mut() else { continue };
            let attempt = cancellation.attempt(open, claims).await;
            let answer = match attempt {
                Ok(Attempt::Cancelled(was)) => Answer::Cancelled(was),
                Ok(Attempt::Over(_) | Attempt::Unknown) => Answer::Over,
                // Without the rule, the canceller assumes that a worker that was asked has stopped.
                Ok(Attempt::Asked(_)) if self.believes_in_asking() => {
                    Answer::Cancelled(Was::Fenced)
                }
                Ok(Attempt::Asked(_)) => Answer::Asked,
                Ok(Attempt::Locked) => Answer::Locked,
                Err(error) => {
                    stage.server.note(&format!("{} does not cancel: {error}", self.name));
                    Answer::Doubtful
                }
            };
            let begun = stage.deliveries_of(share);
            stage.recorder.borrow_mut().told_of_end(share, wish, answer, begun);
            if matches!(answer, Answer::Cancelled(_) | Answer::Over) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        if let Some(open) = session.as_mut() {
            let left = cancellation.give_up(open).await;
            stage.server.note(&format!("{} leaves {} to its worker: {left:?}", self.name, self.id));
        }
        let begun = stage.deliveries_of(share);
        stage.recorder.borrow_mut().told_of_end(share, wish, Answer::Left, begun);
    }

    async fn open(&self) -> Option<Session> {
        let lease = self.stage.settings.lease;
        let url = self.stage.url(self.name);
        let opened = Session::open(&url, SessionKind::Leased(lease), lease).await;
        if opened.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
        opened.ok()
    }

    fn believes_in_asking(&self) -> bool {
        self.stage.settings.rule == Some(Rule::AskingIsNoEnd)
    }
}
