use rowmq_core::store::schedule::{self, ScheduleState};

use crate::invocation::Invocation;
use crate::output::Row;

/// Show the schedules, by name.
#[derive(Debug, clap::Args)]
pub(crate) struct List {}

const HEADER: [&str; 8] =
    ["schedule", "topic", "cron", "time zone", "missed", "next (UTC)", "last (UTC)", "messages"];

impl Row for ScheduleState {
    fn cells(&self) -> Vec<String> {
        let schedule = &self.schedule;
        let next = match self.next_at {
            _ if self.paused => "paused".to_owned(),
            Some(at) => at.format("%F %T").to_string(),
            None => "none any more".to_owned(),
        };
        vec![
            schedule.name.to_string(),
            schedule.topic.to_string(),
            schedule.recurrence.cron().to_owned(),
            schedule.recurrence.time_zone().to_owned(),
            schedule.missed.to_string(),
            next,
            self.last_at.map_or_else(String::new, |at| at.format("%F %T").to_string()),
            self.ticks.to_string(),
        ]
    }
}

impl List {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let all = async |conn: &mut _| schedule::all(conn).await;
        let schedules = session.call("list the schedules", all).await?;
        let none = "There is no schedule: make one with `rowmq cron set`.";
        invocation.output.rows(&HEADER, &schedules, none)
    }
}
