use anyhow::Context;
use chrono::{DateTime, Utc};
use rowmq_core::model::Recurrence;
use serde::Serialize;

use crate::invocation::Invocation;
use crate::output::Row;

/// Show the next ticks of a cron pattern, to try it out; asks no server.
#[derive(Debug, clap::Args)]
pub(crate) struct Next {
    /// Minute, hour, day of month, month, day of week; or six fields, seconds first; or @daily and
    /// the like.
    pattern: String,
    /// The time zone of the pattern, by its name: Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// From when on [default: now].
    #[arg(long, value_name = "MOMENT")]
    from: Option<DateTime<Utc>>,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

#[derive(Debug, Serialize)]
struct Tick {
    utc: DateTime<Utc>,
    local: String,
}

impl Row for Tick {
    fn cells(&self) -> Vec<String> {
        vec![self.utc.format("%F %T").to_string(), self.local.clone()]
    }
}

impl Next {
    pub(crate) fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let recurrence = Recurrence::new(&self.pattern, &self.time_zone)?;
        let from = self.from.unwrap_or_else(Utc::now);
        let first = recurrence.next_after(from).context("The pattern has no tick from then on")?;
        let ticks: Vec<Tick> =
            std::iter::successors(Some(first), |tick| recurrence.next_after(*tick))
                .take(self.limit.into())
                .map(|utc| Tick { utc, local: recurrence.local(utc) })
                .collect();
        invocation.output.rows(&["UTC", recurrence.time_zone()], &ticks, "")
    }
}
