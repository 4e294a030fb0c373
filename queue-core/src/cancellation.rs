//! Cancelling a message in any state: while it waits, while it is ready, while its handler runs.
//!
//! A message that no worker has claimed is removed under its row's lock. For a claimed message, the
//! session that cancels asks the worker: the worker cancels the handler, and discards the message
//! unless the handler still completes. If the worker does not answer in time, the session removes
//! the row, which fences the worker. Its handler may still run, but it can neither ack the message
//! nor commit a transaction that acks it.

use chrono::{DateTime, Utc};

use crate::audit::BulkEntry;
use crate::connection::{Link, Session};
use crate::find::{Answer, PageToken, Query, Searched, find};
use crate::handler::CANCELLED;
use crate::model::found::{Filter, Found, State, StateWord};
use crate::model::trace::Traced;
use crate::model::{Change, MsgId, Result, RowId, Settlement, Topic, WorkerId};
use crate::store::cancel::{self, LockedRow};
use crate::store::find::{Bodies, TablePosition};
use crate::store::inspect::MessageTable;
use crate::store::topic::server_time;
use crate::store::trace;
use crate::waiting;
use crate::worker::{Settled, end_for};

/// A message that is being cancelled.
#[derive(Debug)]
pub struct Cancellation<'t> {
    topic: &'t Topic,
    id: MsgId,
    /// The row of the hot table in which the message was last seen.
    at: Option<RowId>,
    /// The row whose worker was asked, and when it was first asked.
    asked: Option<(RowId, DateTime<Utc>)>,
    /// Whether a search has missed the message once.
    missed: bool,
    entry: BulkEntry<'t>,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// It is cancelled.
    Cancelled(Was),
    /// Its worker was asked and has not answered yet: try again in a moment, and before
    /// [`ASKED_FOR`](cancel::ASKED_FOR) is over.
    Asked(WorkerId),
    /// Another session has locked it for the moment, or it is moving between tables: try again.
    Locked,
    /// It has ended, or cannot be cancelled: a dead letter, a message of a log.
    Over(StateWord),
    /// The message does not exist, or no longer exists.
    Unknown,
}

/// The state of a message when it was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    /// It waited for its time.
    Waiting,
    /// It was ready.
    Ready,
    /// Its handler was running, and has stopped.
    Stopped,
    /// Its handler was running, and may still run: its claim was taken away.
    Fenced,
}

/// How to treat a claim whose worker has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// The worker gets more time.
    Ask,
    /// The claim is taken away.
    TakeAway,
}

enum Taken {
    Away(Was),
    Held(WorkerId, DateTime<Utc>),
    Locked,
    Gone,
}

impl<'t> Cancellation<'t> {
    /// Begins to cancel the message `id` of a queue, or one that a group retries.
    #[must_use]
    pub fn new(topic: &'t Topic, id: MsgId) -> Self {
        Self { topic, id, at: None, asked: None, missed: false, entry: BulkEntry::new(None) }
    }

    /// Records in the audit that a person cancels the message. The first transaction that removes
    /// the message or asks its worker writes the entry; the entry counts the message once it is
    /// cancelled.
    #[must_use]
    pub fn by(self, change: &'t Change) -> Self {
        Self { entry: BulkEntry::new(Some(change)), ..self }
    }

    /// Tries to cancel the message. Without a [lookup](crate::find) for the topic, searches for a
    /// ready message row by row.
    ///
    /// # Errors
    /// A database failure. A pending request to the worker then expires.
    pub async fn attempt(&mut self, session: &mut Session, claims: Claims) -> Result<Attempt> {
        let (topic, id, entry) = (self.topic, self.id, self.entry);
        let waiting = async |conn: &mut Link| {
            let cancelled = waiting::cancel(conn, &topic.name, id).await?;
            if cancelled {
                entry.add(conn, 1).await?;
            }
            Ok(cancelled)
        };
        if session.transaction("cancel", waiting).await? {
            return self.over(session, Attempt::Cancelled(Was::Waiting)).await;
        }
        if topic.is_stream() {
            // In its log, or about to be.
            return Ok(Attempt::Over(StateWord::Logged));
        }
        if self.at.is_none()
            && let Some(attempt) = self.locate(session).await?
        {
            return match attempt {
                Attempt::Locked => Ok(attempt),
                over => self.over(session, over).await,
            };
        }
        let Some(at) = self.at else { return Ok(Attempt::Locked) };
        let take = async |conn: &mut Link| {
            let taken = take(conn, topic, at, id, claims).await?;
            let entry = match taken {
                Taken::Away(_) => entry.add(conn, 1).await?,
                Taken::Held(..) => entry.add(conn, 0).await?,
                Taken::Locked | Taken::Gone => entry,
            };
            Ok((taken, entry))
        };
        let (taken, entry) = session.transaction("cancel", take).await?;
        self.entry = entry;
        match taken {
            // The handler may still run. The request to its worker therefore stays until it is
            // pruned.
            Taken::Away(was @ Was::Fenced) => Ok(Attempt::Cancelled(was)),
            Taken::Away(was) => self.over(session, Attempt::Cancelled(was)).await,
            Taken::Held(worker, since) => {
                if self.asked.is_none_or(|(row, _)| row != at) {
                    self.ask_no_more(session).await?;
                    self.asked = Some((at, since));
                }
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
    pub async fn give_up(mut self, session: &mut Session) -> Result<()> {
        self.ask_no_more(session).await
    }

    /// Finds the message's row in the hot table, or else the result of the attempt.
    async fn locate(&mut self, session: &mut Session) -> Result<Option<Attempt>> {
        let Some(found) = self.search(session).await? else {
            // A search may miss a message that moves between tables at that moment: look twice.
            let missed = std::mem::replace(&mut self.missed, true);
            return Ok(Some(if missed { Attempt::Unknown } else { Attempt::Locked }));
        };
        self.missed = false;
        Ok(match found.state {
            State::Ready { .. } | State::Claimed { .. } => {
                self.at = found.trace.as_ref().map(|trace| trace.row);
                None
            }
            // It moved between the two looks; the next attempt finds it there.
            State::Scheduled { .. } => Some(Attempt::Locked),
            State::Discarded { settled_at, .. }
                if self.asked.is_some_and(|(_, since)| settled_at >= since) =>
            {
                Some(Attempt::Cancelled(self.how_it_ended(session).await?))
            }
            state => Some(Attempt::Over(state.word())),
        })
    }

    /// Finds out how the message ended: its worker stopped the handler on request, or another
    /// session waited less long and took the claim away.
    async fn how_it_ended(&self, session: &mut Session) -> Result<Was> {
        let Some((row, _)) = self.asked else { return Ok(Was::Stopped) };
        let look = async |conn: &mut Link| cancel::was_taken(conn, row).await;
        let taken = session.call("cancel: look who has taken it", look).await?;
        Ok(if taken { Was::Fenced } else { Was::Stopped })
    }

    async fn over(&mut self, session: &mut Session, attempt: Attempt) -> Result<Attempt> {
        if attempt == Attempt::Cancelled(Was::Stopped) && self.entry.is_written() {
            let asked = self.asked;
            let count = async |conn: &mut Link| {
                if let Some((row, _)) = asked {
                    cancel::ask_no_more(conn, row).await?;
                }
                self.entry.add(conn, 1).await
            };
            self.entry = session.transaction("write the audit", count).await?;
            self.asked = None;
        }
        self.ask_no_more(session).await?;
        Ok(attempt)
    }

    async fn ask_no_more(&mut self, session: &mut Session) -> Result<()> {
        if let Some((asked, _)) = self.asked.take() {
            let end = async |conn: &mut Link| cancel::ask_no_more(conn, asked).await;
            session.call("cancel: ask no more", end).await?;
        }
        Ok(())
    }

    /// Finds the message's current state in this topic. An earlier message with the same id may
    /// still be kept, dead or archived here: an unfinished message takes precedence.
    async fn search(&self, session: &mut Session) -> Result<Option<Found>> {
        let filter = Filter { msg_id: Some(self.id), ..Filter::default() };
        let mut query = Query { filter, after: None, limit: 10, bodies: Bodies::Leave };
        let (mut kept, mut scanned) = (None, self.topic.settings.searchable.is_some());
        loop {
            let Answer { found, searched, next } = find(session, self.topic, &query).await?;
            for one in found.into_iter().filter(|one| one.topic == self.topic.name.as_str()) {
                if is_to_be_handled(&one.state) {
                    return Ok(Some(one));
                }
                kept.get_or_insert(one);
            }
            scanned |= searched.iter().any(is_of_hot_table);
            query.after = match next {
                Some(next) => Some(next),
                None if scanned => return Ok(kept),
                None => {
                    let start = TablePosition { table: MessageTable::Ready, at: 0, row: RowId(0) };
                    Some(PageToken::Tables(vec![start]))
                }
            };
        }
    }
}

fn is_of_hot_table(searched: &Searched) -> bool {
    matches!(searched, Searched::Table { table: MessageTable::Ready, .. })
}

fn is_to_be_handled(state: &State) -> bool {
    matches!(state, State::Ready { .. } | State::Claimed { .. } | State::Scheduled { .. })
}

/// Removes the message if it is not claimed, or if its claim may be taken away. Otherwise asks its
/// worker.
async fn take(
    conn: &mut Link,
    topic: &Topic,
    row: RowId,
    id: MsgId,
    claims: Claims,
) -> Result<Taken> {
    let Some(locked) = cancel::lock(conn, topic.id, row, id).await? else {
        let there = cancel::is_there(conn, topic.id, row, id).await?;
        return Ok(if there { Taken::Locked } else { Taken::Gone });
    };
    let LockedRow { priority, fence, delivery_no, is_unique } = locked;
    let is_claimed = fence.worker != WorkerId(0);
    if is_claimed && claims == Claims::Ask {
        cancel::ask(conn, row, None).await?;
        return Ok(Taken::Held(fence.worker, server_time(conn).await?.and_utc()));
    }
    let sampling = trace::sampling_of(conn, topic.id).await?;
    let settled = Settled {
        topic: topic.id,
        priority,
        row,
        claim_no: fence.claim_no,
        settlement: Settlement::Discard { reason: CANCELLED.to_owned() },
        on_done: topic.settings.on_done,
        ledger_window: None,
        is_unique,
        // Deleting a checkpoint that does not exist does no harm.
        has_checkpoint: true,
        position: None,
        traced: sampling.takes(id).then_some(Traced { msg_id: id, delivery_no }),
    };
    if !end_for(conn, fence.worker, settled).await? {
        return Ok(Taken::Locked);
    }
    if is_claimed {
        // The handler may still run and should stop.
        cancel::ask(conn, row, Some(fence.worker)).await?;
    }
    Ok(Taken::Away(if is_claimed { Was::Fenced } else { Was::Ready }))
}
