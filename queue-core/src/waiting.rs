//! What can be done with a message while its time has not come. It joins the caller's transaction;
//! on a connection in autocommit only the last of its statements changes anything.

use crate::connection::Connection;
use crate::model::{Moment, MsgId, Result, TopicName};
use crate::store;
use crate::store::row_set::RowSet;

/// Takes back a message that waits for its time, also one that waits to be tried again. `false`: it
/// does not wait. It is ready, being handled or done, or there never was such a message, and its
/// handler has to look for itself whether there is still something to do.
///
/// # Errors
/// [`crate::Error::UnknownTopic`]; a database failure, a deadlock (1213) with its promotion among
/// them.
pub async fn cancel(conn: &mut impl Connection, topic: &TopicName, id: MsgId) -> Result<bool> {
    let rows = find(conn, topic, id).await?;
    Ok(!rows.is_empty() && store::unique::drop_of_scheduled(conn, &rows).await? > 0)
}

/// Gives a message that waits for its time another one. `false`: it does not wait, as with
/// [`cancel`]. Its expiry stays as it is.
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
