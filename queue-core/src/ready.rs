//! Purges or moves ready messages. However many there are, every transaction is short, and messages
//! that arrive in the meantime are left alone.

use crate::audit::BulkEntry;
use crate::connection::{Link, Session};
use crate::model::{Change, Priority, Result, RowId, Topic, TopicId};
use crate::store::ready::{self, LockedReady};
use crate::store::{lookup, topic as topics};

/// How many messages one transaction takes: as many as one list of rows holds, and few enough that
/// no other session waits long for its locks.
const CHUNK: u32 = 512;

/// Deletes the ready messages of a queue, for ever. Returns how many. Claimed, waiting and dead
/// messages stay. If `by` is a person's change, the audit records it. `tell` receives the number
/// deleted so far.
///
/// # Errors
/// [`crate::Error::AuditDenied`]; a database failure. What was deleted before stays so.
pub async fn purge(
    session: &mut Session,
    topic: &Topic,
    by: Option<&Change>,
    tell: impl FnMut(usize),
) -> Result<usize> {
    let purge = async |conn: &mut Link, locked: &LockedReady| ready::purge(conn, locked).await;
    each(session, topic.id, ("purge", by), purge, tell).await
}

/// Moves the ready messages of a queue to another, in their order, behind what is ready there.
/// Returns how many. Each keeps its message id, enqueue time, priority, ordering key, headers, body
/// and history; its unique key is freed. If `by` is a person's change, the audit records it. `tell`
/// receives the number moved so far.
///
/// # Errors
/// [`crate::Error::TopicPaused`] if nothing may be enqueued there; [`crate::Error::AuditDenied`]; a
/// database failure. What was moved before stays so.
pub async fn relocate(
    session: &mut Session,
    (from, to): (&Topic, &Topic),
    by: Option<&Change>,
    tell: impl FnMut(usize),
) -> Result<usize> {
    to.refuse_closed()?;
    let relocate = async |conn: &mut Link, locked: &LockedReady| {
        // Asked each time: the topic may have been closed since, or deleted.
        let to = topics::existing(conn, &to.name).await?;
        to.refuse_closed()?;
        let first = ready::relocate(conn, locked, to.id).await?;
        for of in [from.id, to.id] {
            if lookup::is_kept_for(conn, of).await? {
                lookup::follow(conn, of, to.id, first, &locked.msg_ids).await?;
            }
        }
        Ok(())
    };
    each(session, from.id, ("move", by), relocate, tell).await
}

async fn each(
    session: &mut Session,
    topic: TopicId,
    (operation, by): (&'static str, Option<&Change>),
    work: impl AsyncFn(&mut Link, &LockedReady) -> Result<()>,
    mut tell: impl FnMut(usize),
) -> Result<usize> {
    let mut entry = BulkEntry::new(by);
    let last = session.call(operation, async |conn| ready::last(conn).await).await?;
    let mut done = 0;
    let suspects = Priority::all().map(Priority::suspect);
    for priority in Priority::all().chain(suspects) {
        let mut after = RowId(0);
        loop {
            let some = async |conn: &mut Link| {
                let locked = ready::lock(conn, (topic, priority), (after, last), CHUNK).await?;
                if locked.rows.is_empty() {
                    return Ok((locked.rows, entry));
                }
                work(conn, &locked).await?;
                let entry = entry.add(conn, locked.rows.len()).await?;
                Ok((locked.rows, entry))
            };
            let rows;
            (rows, entry) = session.transaction(operation, some).await?;
            let Some((_, highest)) = rows.bounds() else { break };
            (after, done) = (highest, done + rows.len());
            tell(done);
        }
    }
    Ok(done)
}
