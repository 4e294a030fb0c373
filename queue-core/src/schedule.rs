//! Recurring messages: a schedule in the database enqueues one message at each of its ticks,
//! exactly one however many processes serve it.

use crate::connection::Connection;
use crate::enqueue::{check_for, enqueue_to};
use crate::model::{Error, Result, Schedule, ScheduleName};
use crate::store;
use crate::store::schedule::{self as stored, ScheduleState};
use crate::store::topic::server_time;

/// Creates the schedule, or replaces the one with its name, in the caller's transaction. Returns
/// its resulting state. If the recurrence is unchanged, the schedule keeps its next tick: a program
/// may set its schedules at each start. A paused schedule stays paused.
///
/// # Errors
/// [`Error::UnknownTopic`]; [`Error::InvalidRecurrence`] if it has no tick any more; a message that
/// the topic does not take; a database failure.
pub async fn set(conn: &mut impl Connection, schedule: &Schedule) -> Result<ScheduleState> {
    let topic = store::topic::existing(conn, &schedule.topic).await?;
    // Without the lock, this could set the schedule back behind a tick that another session is
    // enqueueing.
    stored::lock(conn, &schedule.name).await?;
    let now = server_time(conn).await?.and_utc();
    let next = schedule.recurrence.next_after(now).ok_or_else(|| Error::InvalidRecurrence {
        what: "The cron pattern",
        text: schedule.recurrence.cron().to_owned(),
        reason: "it has no tick from now on".to_owned(),
    })?;
    check_for(&topic, &schedule.message(next))?;
    stored::put(conn, schedule, topic.id, next).await?;
    let state = stored::lock(conn, &schedule.name).await?;
    state.ok_or_else(|| Error::UnknownSchedule { schedule: schedule.name.clone() })
}

/// Resumes a paused schedule from now on; ticks during the pause do not count as missed. In the
/// caller's transaction.
///
/// # Errors
/// [`Error::UnknownSchedule`]; a database failure.
pub async fn resume(conn: &mut impl Connection, name: &ScheduleName) -> Result<()> {
    let state = stored::lock(conn, name).await?;
    let state = state.ok_or_else(|| Error::UnknownSchedule { schedule: name.clone() })?;
    if !state.paused {
        return Ok(());
    }
    let now = server_time(conn).await?.and_utc();
    stored::resume(conn, name, state.schedule.recurrence.next_after(now)).await
}

/// Enqueues the due messages of a schedule, in the caller's transaction. Returns how many. 0 if
/// another process is doing it, or has done it.
///
/// # Errors
/// The refusal of the message: [`Error::TopicPaused`], [`Error::BodyTooLarge`]; a database failure.
pub async fn tick(conn: &mut impl Connection, name: &ScheduleName) -> Result<usize> {
    let Some(due) = stored::lock_due(conn, name).await? else { return Ok(0) };
    let found = store::topic::find(conn, &due.schedule.topic).await?;
    let Some(mut topic) = found else { return Ok(0) };
    // A topic's limit does not stop a schedule: its ticks are enqueued even if the topic is full.
    topic.backlog = None;
    let (ticks, next) = due.schedule.due(due.next_at, due.now);
    let messages: Vec<_> = ticks.iter().map(|tick| due.schedule.message(*tick)).collect();
    enqueue_to(conn, &topic, &messages).await?;
    let last = ticks.last().copied();
    stored::advance(conn, name, due.next_at, next, last, messages.len()).await?;
    Ok(messages.len())
}
