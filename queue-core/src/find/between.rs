use std::time::Duration;

use crate::connection::{Link, Session};
use crate::model::Result;
use crate::store::topic::server_time;
use chrono::{DateTime, TimeDelta, Utc};

/// Returns the server times of a period: `within` this time before now, and longer ago than
/// `older_than`; its start is included. Asks the server only if one of them is given.
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

/// The time this long before `now`; the start of 1970 if that is before the calendar.
fn ago(now: DateTime<Utc>, time: Duration) -> DateTime<Utc> {
    let time = TimeDelta::from_std(time).ok();
    time.and_then(|time| now.checked_sub_signed(time)).unwrap_or(DateTime::UNIX_EPOCH)
}
