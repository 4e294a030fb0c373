//! Operations on a message that waits for its time. They join the caller's transaction; on a
//! connection in autocommit only the last of their statements changes anything.

use crate::connection::Connection;
use crate::model::{Moment, MsgId, Result, TopicName};
use crate::store;
use crate::store::row_set::RowSet;

/// Cancels a message that waits for its time or for a retry. `false`: it does not wait. It is
/// ready, being handled or done, or never existed; its handler must check whether there is still
/// work to do.
///
/// # Errors
/// [`crate::Error::UnknownTopic`]; a database failure, including a deadlock (1213) with the
/// message's promotion.
pub async fn cancel(conn: &mut impl Connection, topic: &TopicName, id: MsgId) -> Result<bool> {
    let rows = find(conn, topic, id).await?;
    Ok(!rows.is_empty() && store::unique::drop_of_scheduled(conn, &rows).await? > 0)
}

/// Gives a waiting message another due time. `false`: it does not wait, as with [`cancel`]. Its
/// expiry stays the same.
///
/// # Errors
/// [`crate::Error::InvalidTime`]; as [`cancel`].
pub async fn reschedule(
    conn: &mut impl Connection,
    topic: &TopicName,
    id: MsgId,
    deliver: Moment,
) -> Result<bool> {
    deliver.check("The moment of delivery")?;
    let rows = find(conn, topic, id).await?;
    Ok(!rows.is_empty() && store::scheduled::reschedule(conn, &rows, deliver).await? > 0)
}

async fn find(conn: &mut impl Connection, topic: &TopicName, id: MsgId) -> Result<RowSet> {
    let topic = store::topic::existing(conn, topic).await?;
    store::scheduled::find(conn, topic.id, id).await
}
