//! The schedules of recurring messages.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use diesel::dsl::{AsSelect, auto_type};
use diesel::expression::SqlLiteral;
use diesel::mysql::Mysql;
use diesel::mysql::sql_types::Datetime;
use diesel::prelude::*;

use super::moment::{MOMENT, micros};
use super::moves::equal;
use super::{Statement, execute, load, select, write_surely};
use crate::connection::Connection;
use crate::model::column::{Text, Time};
use crate::model::{
    Error, Headers, Priority, Recurrence, Result, Schedule, ScheduleName, TopicId, TopicName,
};
use crate::schema::functions::now;
use crate::schema::queue_schedule::{self, dsl};
use crate::schema::queue_topic;

/// A schedule and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleState {
    /// What is enqueued, where, and when.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next tick; `None` if it has none.
    pub next_at: Option<DateTime<Utc>>,
    /// The last tick that was enqueued.
    pub last_at: Option<DateTime<Utc>>,
    /// How many messages it has enqueued.
    pub ticks: u64,
}

/// A schedule with a tick that is due, locked by this transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSchedule {
    /// The schedule.
    pub schedule: Schedule,
    /// The first tick that is due.
    pub next_at: DateTime<Utc>,
    /// The server's clock.
    pub now: DateTime<Utc>,
}

/// PRIMARY (name): makes the schedule or replaces it. The next tick stays as it is if the
/// recurrence is unchanged, unless it is later than `next`: a clock that was ahead for a moment
/// must not silence the schedule for long.
///
/// # Errors
/// Headers that cannot be stored.
pub async fn put(
    conn: &mut impl Connection,
    schedule: &Schedule,
    topic: TopicId,
    next: DateTime<Utc>,
) -> Result<()> {
    let statement = Statement::new(format!(
        "INSERT INTO queue_schedule (name, topic_id, cron, time_zone, missed, next_at, priority, \
         ordering_key, headers, body, created_at, updated_at) \
         VALUES (?, ?, ?, ?, ?, {MOMENT}, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE \
         next_at = IF(cron = VALUES(cron) AND time_zone = VALUES(time_zone) \
           AND next_at < VALUES(next_at), next_at, VALUES(next_at)), \
         topic_id = VALUES(topic_id), cron = VALUES(cron), time_zone = VALUES(time_zone), \
         missed = VALUES(missed), priority = VALUES(priority), \
         ordering_key = VALUES(ordering_key), headers = VALUES(headers), body = VALUES(body), \
         updated_at = UTC_TIMESTAMP(6)"
    ))
    .bytes(schedule.name.as_str().as_bytes())
    .number(topic.0)
    .bytes(schedule.recurrence.cron().as_bytes())
    .bytes(schedule.recurrence.time_zone().as_bytes())
    .bytes(schedule.missed.word().as_bytes())
    .number(micros(next))
    .number(schedule.priority.stored())
    .maybe_bytes(schedule.key.as_deref())
    .maybe_bytes(schedule.headers.to_stored()?)
    .bytes(schedule.body.as_slice());
    execute(conn, "set the schedule", statement).await?;
    Ok(())
}

#[derive(Queryable)]
struct ScheduleRow {
    schedule: Columns,
    topic: Option<TopicName>,
    now: Time,
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = queue_schedule)]
struct Columns {
    name: ScheduleName,
    cron: Text,
    time_zone: Text,
    missed: Text,
    paused: bool,
    next_at: Option<Time>,
    last_at: Option<Time>,
    ticks: u64,
    priority: u8,
    ordering_key: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    body: Vec<u8>,
}

/// Selects schedules as [`ScheduleRow`]s. Reads the topic's name by a subquery: a join would lock
/// the topic too.
#[auto_type]
fn schedules() -> _ {
    let columns: AsSelect<Columns, Mysql> = Columns::as_select();
    let topic = queue_topic::table.find(queue_schedule::topic_id).select(queue_topic::name);
    let clock: SqlLiteral<Datetime> = now();
    queue_schedule::table.select((columns, topic.single_value(), clock))
}

/// PRIMARY (name): reads every schedule, by name.
///
/// # Errors
/// A row that cannot be read.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<ScheduleState>> {
    let query = schedules().order(dsl::name);
    let rows: Vec<ScheduleRow> = select(conn, "list the schedules", query).await?;
    rows.into_iter().map(ScheduleRow::into_state).collect()
}

/// PRIMARY (name): locks the schedule, waiting for a tick that is under way, and reads it.
///
/// # Errors
/// A row that cannot be read.
pub async fn lock(
    conn: &mut impl Connection,
    name: &ScheduleName,
) -> Result<Option<ScheduleState>> {
    let query = schedules().filter(dsl::name.eq(name)).for_update();
    let rows: Vec<ScheduleRow> = select(conn, "lock the schedule", query).await?;
    rows.into_iter().next().map(ScheduleRow::into_state).transpose()
}

/// PRIMARY (name): locks the schedule if a tick of it is due; returns `None` if none is, or if
/// another session has locked it.
///
/// # Errors
/// A row that cannot be read.
pub async fn lock_due(
    conn: &mut impl Connection,
    name: &ScheduleName,
) -> Result<Option<DueSchedule>> {
    let query = schedules()
        .filter(
            dsl::name.eq(name).and(dsl::next_at.le(now().nullable())).and(dsl::paused.eq(false)),
        )
        .for_update()
        .skip_locked();
    let rows: Vec<ScheduleRow> = select(conn, "tick: lock the schedule", query).await?;
    let Some(row) = rows.into_iter().next() else { return Ok(None) };
    let now = row.now.0;
    let state = row.into_state()?;
    let due = |next_at| DueSchedule { schedule: state.schedule, next_at, now };
    Ok(state.next_at.map(due))
}

/// A schedule's next tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextTick {
    /// The schedule.
    pub name: ScheduleName,
    /// How long until its tick is due; zero if it is.
    pub wait: Duration,
}

/// KEY (`next_at`), plain: reads the schedules that tick next, at most `limit`. Paused schedules do
/// not tick, nor do those whose topic accepts no messages.
pub async fn next(conn: &mut impl Connection, limit: u32) -> Result<Vec<NextTick>> {
    let statement = Statement::new(
        "SELECT s.name, s.next_at, UTC_TIMESTAMP(6) AS now \
         FROM queue_schedule s FORCE INDEX (queue_schedule_next) \
         WHERE s.next_at >= '1970-01-01' AND s.paused = 0 AND EXISTS (SELECT 1 FROM queue_topic t \
         WHERE t.id = s.topic_id AND t.enqueue_paused = 0) \
         AND NOT EXISTS (SELECT 1 FROM queue_switch x WHERE x.enqueue_paused = 1) \
         ORDER BY s.next_at LIMIT ?",
    )
    .number(limit);
    type Row = (String, DateTime<Utc>, DateTime<Utc>);
    let rows: Vec<Row> = load(conn, "tick: look for due schedules", statement).await?;
    // Only direct SQL can have stored an invalid name. Its schedule cannot tick, but must not block
    // others.
    let next = |(name, next_at, now): Row| {
        let name = ScheduleName::new(name).ok()?;
        Some(NextTick { name, wait: (next_at - now).to_std().unwrap_or(Duration::ZERO) })
    };
    Ok(rows.into_iter().filter_map(next).collect())
}

/// PRIMARY (name): advances a schedule past the tick `from`, after its messages are enqueued.
///
/// # Errors
/// [`Error::Counts`] if the schedule is not at that tick.
pub async fn advance(
    conn: &mut impl Connection,
    name: &ScheduleName,
    from: DateTime<Utc>,
    next: Option<DateTime<Utc>>,
    last: Option<DateTime<Utc>>,
    enqueued: usize,
) -> Result<()> {
    let at_the_tick = dsl::name.eq(name).and(dsl::next_at.eq(Time(from)));
    let statement = diesel::update(dsl::queue_schedule.filter(at_the_tick)).set((
        dsl::next_at.eq(next.map(Time)),
        last.map(|last| dsl::last_at.eq(Time(last))),
        dsl::ticks.eq(dsl::ticks + enqueued as u64),
    ));
    equal("tick", 1, write_surely(conn, "tick", statement).await?)
}

/// PRIMARY (name): pauses the schedule.
///
/// # Errors
/// [`Error::UnknownSchedule`].
pub async fn pause(conn: &mut impl Connection, name: &ScheduleName) -> Result<()> {
    let statement = diesel::update(dsl::queue_schedule.find(name))
        .set((dsl::paused.eq(true), dsl::updated_at.eq(now())));
    one_schedule(name, write_surely(conn, "pause the schedule", statement).await?)
}

/// PRIMARY (name): resumes the schedule, with its first tick at `next`.
///
/// # Errors
/// [`Error::UnknownSchedule`].
pub async fn resume(
    conn: &mut impl Connection,
    name: &ScheduleName,
    next: Option<DateTime<Utc>>,
) -> Result<()> {
    let statement = diesel::update(dsl::queue_schedule.find(name)).set((
        dsl::paused.eq(false),
        dsl::updated_at.eq(now()),
        dsl::next_at.eq(next.map(Time)),
    ));
    one_schedule(name, write_surely(conn, "resume the schedule", statement).await?)
}

/// PRIMARY (name): deletes the schedule; the messages it has enqueued stay.
///
/// # Errors
/// [`Error::UnknownSchedule`].
pub async fn delete(conn: &mut impl Connection, name: &ScheduleName) -> Result<()> {
    let statement = diesel::delete(dsl::queue_schedule.find(name));
    one_schedule(name, write_surely(conn, "delete the schedule", statement).await?)
}

/// KEY (`topic_id`): deletes the schedules of a topic that is being deleted; returns how many.
pub async fn delete_of_topic(conn: &mut impl Connection, topic: TopicId) -> Result<usize> {
    let statement = diesel::delete(dsl::queue_schedule.filter(dsl::topic_id.eq(topic)));
    write_surely(conn, "delete the topic's schedules", statement).await
}

fn one_schedule(name: &ScheduleName, matched: usize) -> Result<()> {
    if matched == 1 { Ok(()) } else { Err(Error::UnknownSchedule { schedule: name.clone() }) }
}

impl ScheduleRow {
    fn into_state(self) -> Result<ScheduleState> {
        let row = self.schedule;
        let topic = self.topic.ok_or_else(|| Error::InvalidName { name: String::new() })?;
        let schedule = Schedule {
            name: row.name,
            topic,
            recurrence: Recurrence::new(&row.cron.0, &row.time_zone.0)?,
            missed: row.missed.0.parse().unwrap_or_default(),
            priority: Priority::from_stored(row.priority),
            key: row.ordering_key,
            headers: Headers::from_stored(row.headers.as_deref()),
            body: row.body,
        };
        Ok(ScheduleState {
            schedule,
            paused: row.paused,
            next_at: row.next_at.map(|at| at.0),
            last_at: row.last_at.map(|at| at.0),
            ticks: row.ticks,
        })
    }
}
