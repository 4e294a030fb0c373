use crate::connection::Connection;
use crate::model::{Error, Result, Topic, TopicName, TopicSettings};
use crate::store::topic;

/// Creates a queue with these settings, unless a topic of this name exists: a program may do so at
/// each start. Returns the topic as it is; one that exists keeps its kind and its settings.
///
/// Call it outside a transaction: within one, it may not see a topic that another session has just
/// created.
///
/// # Errors
/// As [`topic::create`], without [`Error::TopicExists`]; a database failure.
pub async fn ensure(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Topic> {
    if let Some(topic) = topic::find(conn, name).await? {
        return Ok(topic);
    }
    match topic::create(conn, name, settings).await {
        Ok(()) | Err(Error::TopicExists { .. }) => topic::existing(conn, name).await,
        Err(error) => Err(error),
    }
}
