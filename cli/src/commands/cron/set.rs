use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use chrono::{DateTime, Utc};
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, Missed, Recurrence, Schedule, ScheduleName};
use rowmq_core::schedule;
use rowmq_core::store::schedule::ScheduleState;
use rowmq_core::{Priority, TopicName};
use serde::Serialize;

use crate::author::change;
use crate::invocation::Invocation;
use crate::units::parse_header;

/// Enqueue a message at each tick of a cron pattern.
///
/// A schedule of the same name is replaced. If its recurrence is unchanged, it keeps its next tick.
#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// Its name.
    name: ScheduleName,
    /// Where its messages go.
    topic: TopicName,
    /// Minute, hour, day of month, month, day of week; or six fields, seconds first; or @daily and
    /// the like.
    #[arg(long, value_name = "PATTERN")]
    cron: String,
    /// The time zone of the pattern, by its name: Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// What happens to ticks at which no janitor ran: skip them, enqueue the last of them once, or
    /// all.
    #[arg(long, value_name = "skip|once|all", default_value_t)]
    missed: Missed,
    /// The messages' body.
    #[arg(long, default_value = "")]
    body: OsString,
    /// The messages' priority: 0 (handled first) to 9 (last).
    #[arg(long, default_value_t)]
    priority: Priority,
    /// The messages' ordering key.
    #[arg(long)]
    key: Option<OsString>,
    /// A header of the messages; may be given several times.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    headers: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct Done {
    schedule: ScheduleName,
    next_at: Option<DateTime<Utc>>,
    paused: bool,
}

impl Set {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let schedule = self.schedule()?;
        let mut session = invocation.session().await?;
        let state = set(&mut session, &schedule).await?;
        let (name, next_at) = (schedule.name, state.next_at);
        let next = match next_at {
            _ if state.paused => "it is paused".to_owned(),
            Some(at) => format!("the next tick is at {} UTC", at.format("%F %T")),
            None => "it has no tick any more".to_owned(),
        };
        let words = schedule.recurrence.describe();
        let sentence =
            format!("The schedule '{name}' is set ({}); {next}.", words.trim_end_matches('.'));
        invocation.output.report(&Done { schedule: name, next_at, paused: state.paused }, &sentence)
    }

    /// The schedule that was asked for.
    pub(crate) fn schedule(self) -> rowmq_core::Result<Schedule> {
        let recurrence = Recurrence::new(&self.cron, &self.time_zone)?;
        Ok(Schedule {
            missed: self.missed,
            priority: self.priority,
            key: self.key.map(OsStringExt::into_vec),
            headers: self.headers.into_iter().collect(),
            body: self.body.into_vec(),
            ..Schedule::new(self.name, self.topic, recurrence)
        })
    }
}

/// Creates or replaces the schedule, and writes the audit.
pub(crate) async fn set(
    session: &mut Session,
    schedule: &Schedule,
) -> rowmq_core::Result<ScheduleState> {
    let set = async |conn: &mut Link| schedule::set(conn, schedule).await;
    let by = change(session, Action::SetSchedule, &schedule.name, words(schedule)).await?;
    by.make(session, "set the schedule", set).await
}

/// When and where its messages go, for people.
pub(crate) fn words(schedule: &Schedule) -> String {
    let (cron, zone) = (schedule.recurrence.cron(), schedule.recurrence.time_zone());
    format!("{cron} {zone}, to {}", schedule.topic)
}
