//! What can be done with a message while its time has not come. Each is one statement, so it joins
//! the caller's transaction, or stands for itself on a connection in autocommit.

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::message::{Moment, MsgId};
use crate::store;
use crate::topic::TopicName;

/// Takes back a message that waits for its time, also one that waits to be tried again. `false`: it
/// does not wait. It is ready, being handled or done, or there never was such a message, and its
/// handler has to look for itself whether there is still something to do.
///
/// # Errors
/// [`Error::UnknownTopic`]; a database failure, a deadlock (1213) with its promotion among them.
pub async fn cancel(conn: &mut impl Connection, topic: &TopicName, id: MsgId) -> Result<bool> {
    let found = store::topic::find(conn, topic).await?;
    let topic = found.ok_or_else(|| Error::UnknownTopic { topic: topic.clone() })?;
    Ok(store::scheduled::cancel(conn, topic.id, id).await? > 0)
}

/// Gives a message that waits for its time another one. `false`: it does not wait, as with
/// [`cancel`].
///
/// # Errors
/// [`Error::InvalidTime`]; as [`cancel`].
pub async fn reschedule(
    conn: &mut impl Connection,
    topic: &TopicName,
    id: MsgId,
    deliver: Moment,
) -> Result<bool> {
    deliver.check("The moment of delivery")?;
    let found = store::topic::find(conn, topic).await?;
    let topic = found.ok_or_else(|| Error::UnknownTopic { topic: topic.clone() })?;
    Ok(store::scheduled::reschedule(conn, topic.id, id, deliver).await? > 0)
}
