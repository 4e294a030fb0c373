//! Cancelling a message wherever it is: while it waits, while it is ready, while its handler runs.
//!
//! A message that nobody has begun is taken away under its row's lock. Of one that is claimed the
//! worker is asked: it cancels the handler, and discards the message unless that gets through all
//! the same. A worker that does not answer in time is fenced: the row is taken away, and whatever
//! the handler still does, it can neither ack the message nor commit a transaction that would.

use crate::connection::{Link, Session};
use crate::error::Result;
use crate::find::{Filter, Found, Query, State, StateWord, find};
use crate::handler::CANCELLED;
use crate::message::{MsgId, Settlement, WorkerId};
use crate::store::cancel::{self, HotRow, LockedRow};
use crate::store::find::Bodies;
use crate::store::trace;
use crate::topic::Topic;
use crate::trace::Traced;
use crate::waiting;
use crate::worker::{Settled, end_for};

/// A message that is being cancelled.
#[derive(Debug)]
pub struct Cancellation<'t> {
    topic: &'t Topic,
    id: MsgId,
    /// Where it was seen last.
    at: Option<HotRow>,
    /// The row whose worker was asked.
    asked: Option<HotRow>,
}

/// How far an attempt went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// It is cancelled.
    Cancelled(Was),
    /// Its worker is asked, and has not answered yet: try again in a moment.
    Asked(WorkerId),
    /// Somebody has locked it for the moment: try again.
    Locked,
    /// It is over, or not to be cancelled: a dead letter, a message of a log.
    Over(StateWord),
    /// There is no such message, or none any more.
    Unknown,
}

/// What a cancelled message was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    /// It waited for its time.
    Waiting,
    /// It was ready.
    Ready,
    /// Its handler was running, and has stopped.
    Stopped,
    /// Its handler was running, and may be still: its claim was taken away.
    Fenced,
}

/// What to do with a claim whose worker has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// Its worker has more time.
    Ask,
    /// It is taken away.
    TakeAway,
}

enum Taken {
    Away(Was),
    Held(WorkerId),
    Locked,
    Gone,
}

impl<'t> Cancellation<'t> {
    /// Of the message `id` of a queue, or one that a group tries again.
    #[must_use]
    pub fn new(topic: &'t Topic, id: MsgId) -> Self {
        Self { topic, id, at: None, asked: None }
    }

    /// Tries to cancel it. Without a [lookup](crate::find) of the topic a ready message is searched
    /// for row by row.
    ///
    /// # Errors
    /// A database failure.
    pub async fn attempt(&mut self, session: &mut Session, claims: Claims) -> Result<Attempt> {
        let (topic, id) = (self.topic, self.id);
        let waiting = async |conn: &mut Link| waiting::cancel(conn, &topic.name, id).await;
        if session.transaction("cancel", waiting).await? {
            return self.over(session, Attempt::Cancelled(Was::Waiting)).await;
        }
        if self.at.is_none() {
            let found = self.search(session).await?;
            match found.as_ref().map(|found| (&found.state, hot_row(topic, found))) {
                Some((State::Ready { .. } | State::Claimed { .. }, at)) => self.at = at,
                Some((State::Discarded { .. }, _)) if self.asked.is_some() => {
                    return self.over(session, Attempt::Cancelled(Was::Stopped)).await;
                }
                Some((state, _)) => {
                    // It has moved between the two looks; the next attempt finds it there.
                    let moved = matches!(state, State::Scheduled { .. });
                    let attempt = if moved { Attempt::Locked } else { Attempt::Over(state.word()) };
                    return if moved { Ok(attempt) } else { self.over(session, attempt).await };
                }
                None => return self.over(session, Attempt::Unknown).await,
            }
        }
        let Some(at) = self.at else { return Ok(Attempt::Locked) };
        let take = async |conn: &mut Link| take(conn, topic, at, id, claims).await;
        match session.transaction("cancel", take).await? {
            Taken::Away(was) => self.over(session, Attempt::Cancelled(was)).await,
            Taken::Held(worker) => {
                self.asked = Some(at);
                Ok(Attempt::Asked(worker))
            }
            Taken::Locked => Ok(Attempt::Locked),
            Taken::Gone => {
                self.at = None;
                Ok(Attempt::Locked)
            }
        }
    }

    /// Leaves the message to its worker.
    ///
    /// # Errors
    /// A database failure.
    pub async fn give_up(mut self, session: &mut Session) -> Result<()> {
        self.ask_no_more(session).await
    }

    async fn over(&mut self, session: &mut Session, attempt: Attempt) -> Result<Attempt> {
        self.ask_no_more(session).await?;
        Ok(attempt)
    }

    async fn ask_no_more(&mut self, session: &mut Session) -> Result<()> {
        if let Some(asked) = self.asked.take() {
            let end = async |conn: &mut Link| cancel::ask_no_more(conn, asked.row).await;
            session.call("cancel: ask no more", end).await?;
        }
        Ok(())
    }

    /// The message, wherever it is.
    async fn search(&self, session: &mut Session) -> Result<Option<Found>> {
        let filter = Filter { msg_id: Some(self.id), ..Filter::default() };
        let mut query = Query { filter, after: None, limit: 1, bodies: Bodies::Leave };
        loop {
            let answer = find(session, self.topic, &query).await?;
            if let Some(found) = answer.found.into_iter().next() {
                return Ok(Some(found));
            }
            let Some(next) = answer.next else { return Ok(None) };
            query.after = Some(next);
        }
    }
}

fn hot_row(topic: &Topic, found: &Found) -> Option<HotRow> {
    let trace = found.trace.as_ref()?;
    Some(HotRow { topic: topic.id, priority: trace.priority, row: trace.row })
}

/// Takes the message away if nobody has it, or if it is to be taken away; else asks its worker.
async fn take(
    conn: &mut Link,
    topic: &Topic,
    at: HotRow,
    id: MsgId,
    claims: Claims,
) -> Result<Taken> {
    let Some(locked) = cancel::lock(conn, at, id).await? else {
        let there = cancel::is_there(conn, at, id).await?;
        return Ok(if there { Taken::Locked } else { Taken::Gone });
    };
    let LockedRow { fence, delivery_no, is_unique } = locked;
    let is_claimed = fence.worker != WorkerId(0);
    if is_claimed && claims == Claims::Ask {
        cancel::ask(conn, at.row).await?;
        return Ok(Taken::Held(fence.worker));
    }
    let sampling = trace::sampling_of(conn, topic.id).await?;
    let settled = Settled {
        topic: at.topic,
        priority: at.priority,
        row: at.row,
        claim_no: fence.claim_no,
        settlement: Settlement::Discard { reason: CANCELLED.to_owned() },
        on_done: topic.settings.on_done,
        ledger_window: None,
        is_unique,
        // One more look does no harm.
        has_checkpoint: true,
        position: None,
        traced: sampling.takes(id).then_some(Traced { msg_id: id, delivery_no }),
    };
    end_for(conn, fence.worker, settled).await?;
    Ok(Taken::Away(if is_claimed { Was::Fenced } else { Was::Ready }))
}
