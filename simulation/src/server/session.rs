//! The server's end of a connection.

use std::rc::Rc;
use std::time::Duration;

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error};
use rowmq_core::connection::simulation::{Answer, Value as Bound};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::client::Request;
use super::hole::Hole;
use super::rings::{Echo, hush, is_rung, is_wait};
use super::{Handle, Server};
use crate::model::{Failure, Outcome, Value, Wait};
use crate::sql::Statement;

/// The fate of a statement on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives, and so does its reply.
    Served,
    /// The connection breaks before it arrives.
    Unsent,
    /// The connection breaks after it arrives: it is executed, and its reply is lost.
    Unheard,
    /// The same, but the server executes it only after this many milliseconds (history H6).
    Late(u32),
    /// The server takes this many milliseconds to execute it.
    Slow(u32),
    /// It is killed, and the server reports success with no row matched, as MariaDB does for a
    /// statement whose range it is planning.
    Hushed,
    /// It is killed, and fails. It changes nothing: a ROLLBACK leaves its transaction open.
    Killed,
}

/// How long the server waits for a silent client unless the client sets it: 8 h.
const WAIT_TIMEOUT: Duration = Duration::from_secs(28_800);

pub(super) struct Session {
    pub(super) server: Rc<Server>,
    pub(super) id: u64,
    pub(super) handle: Rc<Handle>,
    pub(super) hole: Rc<Hole>,
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
    /// The last statement, if it was hushed: two kills do not follow each other so closely.
    pub(super) hushed: Option<String>,
    /// Whether the last statement was killed.
    pub(super) killed: bool,
    /// The answer to the next wait for a bell, if the last ring is told twice.
    pub(super) echo: Option<Answer>,
}

impl Session {
    /// Serves the client until either side ends the connection.
    pub(super) async fn serve(mut self) {
        let mut wait_timeout = WAIT_TIMEOUT;
        while let Some(request) = self.next(wait_timeout).await {
            let fate = self.fate(&request.text);
            self.server.statements.set(self.server.statements.get() + 1);
            let Request { text, values, reply } = request;
            let mut reply = Some(reply);
            if fate == Fate::Unsent {
                break;
            }
            if matches!(fate, Fate::Late(_)) {
                // The client sees the connection break at once.
                reply = None;
            }
            self.server.latency(1).await;
            if let Fate::Slow(ms) | Fate::Late(ms) = fate {
                sleep(Duration::from_millis(ms.into())).await;
            }
            if self.is_over() {
                break;
            }
            let statement = self.server.parse(&text);
            let executed = self.answer(fate, &text, &statement, &values, reply.is_some()).await;
            self.killed = fate == Fate::Killed;
            let Some(mut outcome) = executed else { break };
            self.hide_count(&text, &values, &mut outcome);
            if let (Statement::Set(variables), Ok(_)) = (&*statement, &outcome) {
                let seconds = variables.iter().find(|(name, _)| name == "wait_timeout");
                wait_timeout = seconds.map_or(wait_timeout, |(_, s)| Duration::from_secs(*s));
            }
            self.note(&text, &values, fate, &outcome);
            if self.handle.killed.get() || matches!(fate, Fate::Unheard | Fate::Late(_)) {
                break;
            }
            if self.server.below(8) == 0 {
                self.server.latency(3).await;
            }
            if let Some(reply) = reply {
                self.reply(reply, outcome);
            }
        }
        self.end();
    }

    /// Returns the next statement; `None` when the connection is over.
    async fn next(&mut self, wait_timeout: Duration) -> Option<Request> {
        let silence = Instant::now() + wait_timeout;
        let request = loop {
            if self.is_over() {
                return None;
            }
            tokio::select! {
                biased;
                () = self.handle.signal.notified() => {}
                request = self.requests.recv() => break request,
                () = sleep_until(silence) => return None,
            }
        };
        // Neither a statement nor the end of the connection comes through a hole.
        while self.hole.is_dark() {
            if self.is_over() {
                return None;
            }
            tokio::select! {
                biased;
                () = self.handle.signal.notified() => {}
                () = self.hole.passed() => {}
                () = sleep_until(silence) => return None,
            }
        }
        request
    }

    fn is_over(&self) -> bool {
        self.handle.dead.get() || self.handle.killed.get()
    }

    fn fate(&self, text: &str) -> Fate {
        let fates = self.server.fates.borrow();
        if fates.is_empty() {
            return Fate::Served;
        }
        // A session that kills one statement often kills the next one too.
        if self.killed && text == "ROLLBACK" && self.server.below(2) == 0 {
            return Fate::Killed;
        }
        // Commits are where outcomes become unknown.
        let commits = text == "COMMIT" || text.contains("ON DUPLICATE KEY UPDATE claim_no");
        let weight = match text {
            _ if commits => 250,
            // It takes seconds.
            _ if is_wait(text) => 60,
            _ => 1000,
        };
        let mut at = self.server.below(weight);
        for (fate, share) in fates.iter() {
            if at < *share {
                return match fate {
                    Fate::Late(most) => Fate::Late(self.server.below(*most)),
                    Fate::Slow(most) => Fate::Slow(self.server.below(*most)),
                    // A COMMIT that has begun ends before the kill.
                    Fate::Killed if text == "COMMIT" => Fate::Served,
                    other => *other,
                };
            }
            at -= share;
        }
        Fate::Served
    }

    /// Returns whether the statement is not executed, but reported as successful. A client that
    /// repeats it gets the true answer, unless the rule is off.
    fn hushes(&mut self, fate: Fate, text: &str) -> bool {
        match self.hushed.take() {
            Some(last) => last == text && self.server.believes_at_once(),
            None if fate == Fate::Hushed && may_be_hushed(text) => {
                self.hushed = Some(text.to_owned());
                true
            }
            None => false,
        }
    }

    /// Returns the outcome of a statement with its fate; `None` if the server crashes before it.
    async fn answer(
        &mut self,
        fate: Fate,
        text: &str,
        statement: &Rc<Statement>,
        values: &[Bound],
        is_known: bool,
    ) -> Option<Outcome> {
        if self.hushes(fate, text) {
            return Some(Ok(Answer::default()));
        }
        if fate == Fate::Killed {
            return Some(self.server.killed(statement));
        }
        if is_wait(text)
            && let Some(echo) = self.echo.take()
        {
            return Some(Ok(echo));
        }
        let mut outcome = self.execute(statement, values, is_known).await?;
        if let Ok(answer) = &mut outcome
            && is_wait(text)
            && is_rung(answer)
        {
            self.echo(answer).await;
        }
        Some(outcome)
    }

    /// Tells a session that was rung, or not: wake-ups are lost, late and doubled.
    async fn echo(&mut self, answer: &mut Answer) {
        match self.server.echo() {
            Echo::Plain => {}
            Echo::Lost => hush(answer),
            Echo::Late(by) => sleep(by).await,
            Echo::Doubled => self.echo = Some(answer.clone()),
        }
    }

    /// Runs a statement to its end; `None` if the server crashes before it. A wait for a name ends
    /// when its client leaves, if the server can learn that.
    async fn execute(
        &mut self,
        statement: &Rc<Statement>,
        values: &[Bound],
        is_known: bool,
    ) -> Option<Outcome> {
        let params = values.iter().map(value).collect();
        self.server.act(|engine| engine.begin(self.id, Rc::clone(statement), params));
        loop {
            let wait = self.server.act(|engine| match engine.outcome(self.id) {
                Some(outcome) => Err(outcome),
                None => Ok(engine.wait(self.id)),
            });
            let may_leave = is_known && matches!(wait, Ok(Some(Wait::Name(_))));
            let longest = match wait {
                Err(outcome) => return Some(outcome),
                Ok(Some(Wait::Row)) | Ok(None) => Duration::from_secs(1),
                Ok(Some(Wait::Name(seconds))) => Duration::from_secs(seconds),
            };
            let until = Instant::now() + longest;
            let (requests, hole) = (&mut self.requests, &self.hole);
            tokio::select! {
                biased;
                () = self.handle.signal.notified() => {}
                () = left(requests, hole), if may_leave => {
                    self.server.act(|engine| engine.interrupt(self.id));
                }
                () = sleep_until(until) => self.server.act(|engine| engine.time_out(self.id)),
            }
            if self.handle.dead.get() {
                return None;
            }
            if self.handle.killed.get() {
                self.server.act(|engine| engine.interrupt(self.id));
            }
        }
    }

    /// Reports that as many rows were matched as were named, where the rule that this breaks is
    /// off.
    fn hide_count(&self, text: &str, values: &[Bound], outcome: &mut Outcome) {
        if let (true, Ok(answer)) = (self.server.hides_count(text), outcome) {
            // Topic and priority come before the ids, worker and claim number after them; a
            // statement that cancels has only the id.
            let ids = values.iter().skip(2).take(values.len().saturating_sub(4)).map(short);
            answer.matched = ids.collect::<std::collections::BTreeSet<_>>().len().max(1);
        }
    }

    fn reply(&self, reply: oneshot::Sender<QueryResult<Answer>>, outcome: Outcome) {
        let outcome = outcome.map_err(error);
        let hole = Rc::clone(&self.hole);
        if hole.is_dark() {
            tokio::task::spawn_local(async move {
                hole.passed().await;
                drop(reply.send(outcome));
            });
        } else {
            drop(reply.send(outcome));
        }
    }

    /// Ends the connection on the server. The client learns it at once, unless it is cut off.
    fn end(self) {
        if !self.handle.dead.get() {
            self.server.act(|engine| engine.close(self.id));
            self.server.handles.borrow_mut().remove(&self.id);
            self.server.note(&format!("conn {} ends", self.id));
        }
        let (hole, requests) = (self.hole, self.requests);
        if hole.is_dark() {
            tokio::task::spawn_local(async move {
                hole.passed().await;
                drop(requests);
            });
        }
    }

    fn note(&self, text: &str, values: &[Bound], fate: Fate, outcome: &Outcome) {
        self.server.note_with(|| {
            let outcome = match outcome {
                Ok(answer) => format!("{} matched, {} rows", answer.matched, answer.rows.len()),
                Err(failure) => format!("{failure:?}"),
            };
            let fate = if fate == Fate::Served { String::new() } else { format!(" {fate:?}") };
            let numbers: Vec<_> = values.iter().map(short).collect();
            let text: String = text.chars().take(110).collect();
            format!("conn {}{fate}: {text} [{}]: {outcome}", self.id, numbers.join(" "))
        });
    }
}

/// Waits until a client that waits for an answer has left, and its host's packets pass.
async fn left(requests: &mut mpsc::UnboundedReceiver<Request>, hole: &Hole) {
    while requests.recv().await.is_some() {}
    hole.passed().await;
}

/// Returns whether the server plans a range for it: not where keys are joined from a list, nor
/// where one whole key is read, nor where something is counted, which always has a row.
fn may_be_hushed(text: &str) -> bool {
    let changes = text.starts_with("UPDATE") || text.starts_with("DELETE");
    let finds = text.starts_with("SELECT") && text.contains(" FORCE INDEX (");
    let by_key = text.ends_with("m.topic_id = ? AND m.priority = ? AND m.id = ?");
    (changes || finds) && !by_key && !text.contains(" FROM JSON_TABLE(") && !text.contains("COUNT(")
}

fn short(bound: &Bound) -> String {
    match value(bound) {
        Value::Null => "_".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Time(micros) => micros.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned(),
    }
}

fn value(bound: &Bound) -> Value {
    bound.bytes.as_deref().map_or(Value::Null, |bytes| Value::from_wire(bytes, bound.kind))
}

fn error(failure: Failure) -> Error {
    let kind = match failure {
        Failure::Duplicate => DatabaseErrorKind::UniqueViolation,
        Failure::Check => DatabaseErrorKind::CheckViolation,
        _ => DatabaseErrorKind::Unknown,
    };
    Error::DatabaseError(kind, Box::new(failure.text().to_owned()))
}
