use std::time::Duration;

use crate::connection::{Link, Session};
use crate::model::Result;
use crate::store::topic::server_time;
use chrono::{DateTime, TimeDelta, Utc};

/// The server times between which that lies which happened `within` a time and longer ago than
/// `older_than`, the first included; the server is asked only if one of them is given.
///
/// # Errors
/// A database failure.
pub async fn between(
    session: &mut Session,
    within: Option<Duration>,
    older_than: Option<Duration>,
) -> Result<(Option<DateTime<Utc>>, Option<DateTime<Utc>>)> {
    if within.is_none() && older_than.is_none() {
        return Ok((None, None));
    }
    let read = async |conn: &mut Link| server_time(conn).await;
    let now = session.call("read the server's clock", read).await?.and_utc();
    Ok((within.map(|time| ago(now, time)), older_than.map(|time| ago(now, time))))
}

/// So long before `now`; what is longer than the calendar goes back to its beginning.
fn ago(now: DateTime<Utc>, time: Duration) -> DateTime<Utc> {
    let time = TimeDelta::from_std(time).ok();
    time.and_then(|time| now.checked_sub_signed(time)).unwrap_or(DateTime::UNIX_EPOCH)
}
