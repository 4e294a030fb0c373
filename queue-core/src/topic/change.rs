//! A person's changes to a topic. The topic's row is locked before it is read, so of two
//! simultaneous changes the second builds on the first, and the audit records what each has
//! changed.

use crate::connection::{Link, Session};
use crate::model::{Access, Change, Result, Topic, TopicName, TopicSettings};
use crate::store::topic;

/// Changes the topic's settings. The entry's detail lists the differences.
///
/// # Errors
/// [`Error::UnknownTopic`](crate::Error::UnknownTopic);
/// [`Error::AuditDenied`](crate::Error::AuditDenied); settings that the topic cannot have; a
/// database failure. Nothing is changed then.
pub async fn change_settings(
    session: &mut Session,
    name: &TopicName,
    by: &Change,
    wanted: impl Fn(TopicSettings) -> TopicSettings,
) -> Result<()> {
    let set = async |conn: &mut Link| {
        let before = locked(conn, name).await?.settings;
        let settings = wanted(before.clone());
        topic::set(conn, name, &settings).await?;
        Ok(settings.unlike(&before))
    };
    by.make_detailed(session, "set the topic", set).await
}

/// Changes the topic's access rule, which is the entry's detail.
///
/// # Errors
/// As [`change_settings`].
pub async fn change_access(
    session: &mut Session,
    name: &TopicName,
    by: &Change,
    wanted: impl Fn(Access) -> Access,
) -> Result<()> {
    let set = async |conn: &mut Link| {
        let access = wanted(locked(conn, name).await?.access);
        topic::set_access(conn, name, access).await?;
        Ok(access.to_string())
    };
    by.make_detailed(session, "set the topic's access", set).await
}

async fn locked(conn: &mut Link, name: &TopicName) -> Result<Topic> {
    topic::lock(conn, name).await?;
    topic::existing(conn, name).await
}
