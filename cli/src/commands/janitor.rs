use std::time::Duration;

use rowmq_core::inspect::{DutyReport, duties};

use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show what each duty of the janitor did last.
#[derive(Debug, clap::Args)]
pub(crate) struct Janitor {}

const HEADER: [&str; 6] = ["duty", "ran", "runs", "performed by", "connection", "report"];

impl Row for DutyReport {
    fn cells(&self) -> Vec<String> {
        vec![
            self.status.name.clone(),
            format!("{} ago", units::age(Duration::from_millis(self.age_ms))),
            self.status.runs.to_string(),
            self.status.holder.clone(),
            self.status.conn.to_string(),
            self.status.report.to_string(),
        ]
    }
}

impl Janitor {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let duties = duties(&mut session).await?;
        let none = "No duty has run yet: start a janitor, or a consumer, which sweeps where no janitor does.";
        invocation.output.rows(&HEADER, &duties, none)
    }
}
