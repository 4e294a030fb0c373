//! Operations on dead letters: list, redrive, purge. However many there are, every transaction is
//! short, and messages that die in the meantime are left alone.

use std::collections::BTreeSet;

use crate::audit::BulkEntry;
use crate::connection::{Link, Session};
use crate::model::found::StateWord;
use crate::model::{Change, Fault, MsgId, Result, Topic, TopicId};
use crate::store::dead::{self, DeadFilter, DeadLetter, DeadPosition, DeadWindow};
use crate::store::find::{Bodies, by_ids};
use crate::store::row_set::RowSet;
use crate::store::topic::server_time;
use crate::store::{floor, lookup, unique};

/// How often a stretch is tried while another session has locked one of its rows. Each try takes
/// some two seconds; before the tries are used up, the other session (another redrive, an
/// application) is done.
const TRIES: u32 = 30;

/// Lists the first dead letters of the topic that match the filter, at most `limit`, in the order
/// of their death, without bodies.
pub async fn list(
    session: &mut Session,
    topic: TopicId,
    filter: &DeadFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>> {
    Ok(list_among(session, topic, filter, limit, usize::MAX).await?.letters)
}

/// The result of [`list_among`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// Those that match the filter, in the order of their death, without bodies.
    pub letters: Vec<DeadLetter>,
    /// How many were examined, if that limit ended the search and there are more.
    pub stopped_after: Option<usize>,
}

/// As [`list`], but examines only the topic's first `most` dead letters, or a few more: among
/// millions, rare matches may be far away.
pub async fn list_among(
    session: &mut Session,
    topic: TopicId,
    filter: &DeadFilter,
    limit: usize,
    most: usize,
) -> Result<Listed> {
    let mut letters = Vec::new();
    let mut seen = 0;
    let mut windows = Windows::of(topic, filter.clone());
    while letters.len() < limit
        && seen < most
        && let Some(window) = windows.next(session).await?
    {
        seen += window.seen;
        let rows: RowSet = window.wanted.iter().take(limit - letters.len()).copied().collect();
        if !rows.is_empty() {
            let read = async |conn: &mut Link| dead::read(conn, &rows).await;
            let mut found = session.call("read the dead letters", read).await?;
            found.sort_by_key(|letter| (letter.died_at, letter.row));
            letters.extend(found);
        }
    }
    let stopped = seen >= most && !matches!(windows.next, Next::End);
    Ok(Listed { letters, stopped_after: stopped.then_some(seen) })
}

/// The progress of a run over many dead letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Dead letters examined.
    pub seen: usize,
    /// Those redriven or purged.
    pub done: usize,
}

/// Makes the dead letters that match the filter ready again, in the order of their death, behind
/// what is ready now. Each keeps its message id and its body; its failures and crashes count from
/// zero. If `by` is a person's change, the audit records it. `tell` receives the progress.
///
/// # Errors
/// [`crate::Error::TopicPaused`] if nothing may be enqueued; [`crate::Error::AuditDenied`]; a
/// database failure. What was redriven before stays so.
pub async fn redrive(
    session: &mut Session,
    topic: &Topic,
    filter: &DeadFilter,
    by: Option<&Change>,
    tell: impl FnMut(Progress),
) -> Result<usize> {
    topic.refuse_closed()?;
    let redrive = async |conn: &mut Link, rows: &RowSet| redrive_some(conn, topic.id, rows).await;
    each(session, (topic.id, filter), ("redrive", by), redrive, tell).await
}

/// Makes the topic's dead letters with this message id ready again, however many others there are.
/// It joins the caller's transaction. Returns how many there were.
///
/// # Errors
/// As [`redrive`].
pub async fn redrive_message(conn: &mut Link, topic: &Topic, id: MsgId) -> Result<usize> {
    topic.refuse_closed()?;
    let rows = rows_of(conn, topic.id, id).await?;
    if rows.is_empty() { Ok(0) } else { redrive_some(conn, topic.id, &rows).await }
}

/// Deletes the topic's dead letters with this message id, for ever. It joins the caller's
/// transaction. Returns how many there were.
pub async fn purge_message(conn: &mut Link, topic: TopicId, id: MsgId) -> Result<usize> {
    let rows = rows_of(conn, topic, id).await?;
    if rows.is_empty() { Ok(0) } else { dead::purge(conn, &rows).await }
}

async fn rows_of(conn: &mut Link, topic: TopicId, id: MsgId) -> Result<RowSet> {
    let found = by_ids(conn, topic, &[id], Bodies::Leave).await?;
    let here = found
        .into_iter()
        .filter(|(at, found)| *at == topic && found.state.word() == StateWord::Dead);
    Ok(here.filter_map(|(_, found)| found.trace).map(|trace| trace.row).collect())
}

/// Deletes the dead letters that match the filter, for ever. If `by` is a person's change, the
/// audit records it. `tell` receives the progress.
///
/// # Errors
/// [`crate::Error::AuditDenied`]; a database failure. What was deleted before stays so.
pub async fn purge(
    session: &mut Session,
    topic: TopicId,
    filter: &DeadFilter,
    by: Option<&Change>,
    tell: impl FnMut(Progress),
) -> Result<usize> {
    let purge = async |conn: &mut Link, rows: &RowSet| dead::purge(conn, rows).await;
    each(session, (topic, filter), ("purge dead letters", by), purge, tell).await
}

async fn redrive_some(conn: &mut Link, topic: TopicId, rows: &RowSet) -> Result<usize> {
    let locked = dead::lock(conn, rows).await?;
    let rows: RowSet = locked.iter().map(|letter| letter.row).collect();
    if rows.is_empty() {
        return Ok(0);
    }
    unique::take_again(conn, topic, &rows).await?;
    let lowest = dead::redrive(conn, &rows).await?;
    if lookup::is_kept_for(conn, topic).await? {
        let ids: Vec<_> = locked.iter().map(|letter| letter.msg_id).collect();
        lookup::follow(conn, topic, topic, lowest, &ids).await?;
    }
    let priorities: BTreeSet<_> = locked.iter().map(|letter| letter.priority).collect();
    for priority in priorities {
        floor::publish(conn, topic, priority, lowest).await?;
    }
    Ok(rows.len())
}

async fn each(
    session: &mut Session,
    (topic, filter): (TopicId, &DeadFilter),
    (operation, by): (&'static str, Option<&Change>),
    work: impl AsyncFn(&mut Link, &RowSet) -> Result<usize>,
    mut tell: impl FnMut(Progress),
) -> Result<usize> {
    let now = session.call(operation, async |conn| server_time(conn).await).await?.and_utc();
    let before = filter.before.map_or(now, |before| before.min(now));
    let mut windows = Windows::of(topic, DeadFilter { before: Some(before), ..filter.clone() });
    let mut progress = Progress::default();
    let mut entry = BulkEntry::new(by);
    while let Some(window) = windows.next(session).await? {
        let rows: RowSet = window.wanted.into_iter().collect();
        progress.seen += window.seen;
        if !rows.is_empty() {
            let some = async |conn: &mut Link| {
                let done = work(conn, &rows).await?;
                let entry = if done == 0 { entry } else { entry.add(conn, done).await? };
                Ok((done, entry))
            };
            let mut tries = 0;
            let done;
            (done, entry) = loop {
                tries += 1;
                match session.transaction(operation, some).await {
                    Err(error) if error.fault() == Fault::LockWait && tries < TRIES => {}
                    ended => break ended?,
                }
            };
            progress.done += done;
        }
        tell(progress);
    }
    Ok(progress.done)
}

/// The stretches of a topic's dead letters, one after another.
struct Windows {
    topic: TopicId,
    filter: DeadFilter,
    /// Where the next stretch begins.
    next: Next,
}

enum Next {
    Start,
    At(DeadPosition),
    End,
}

impl Windows {
    fn of(topic: TopicId, filter: DeadFilter) -> Self {
        Self { topic, filter, next: Next::Start }
    }

    async fn next(&mut self, session: &mut Session) -> Result<Option<DeadWindow>> {
        let from = match self.next {
            Next::Start => None,
            Next::At(place) => Some(place),
            Next::End => return Ok(None),
        };
        let look = async |conn: &mut Link| dead::window(conn, self.topic, &self.filter, from).await;
        let window = session.call("look for dead letters", look).await?;
        self.next = window.next.map_or(Next::End, Next::At);
        Ok(Some(window))
    }
}
