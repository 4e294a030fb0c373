use std::time::Duration;

use queue_core::store;
use queue_core::store::duty::DutyStatus;
use serde::Serialize;

use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show what each duty of the janitor did last, and who performed it.
#[derive(Debug, clap::Args)]
pub(crate) struct Janitor {}

#[derive(Debug, Serialize)]
struct Duty {
    #[serde(flatten)]
    status: DutyStatus,
    age_ms: u64,
}

const HEADER: [&str; 6] = ["duty", "ran", "runs", "performed by", "connection", "report"];

impl Row for Duty {
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
        let duties = session
            .call("read the duties", async |conn| {
                let duties = store::duty::all(conn).await?;
                let now = store::topic::server_time(conn).await?.and_utc();
                let with_age = |status: DutyStatus| {
                    let age = (now - status.ran_at).to_std().unwrap_or_default();
                    Duty { status, age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
                };
                Ok(duties.into_iter().map(with_age).collect::<Vec<_>>())
            })
            .await?;
        let none = "No duty has run yet: start a janitor, or a consumer, which sweeps where no janitor does.";
        invocation.output.rows(&HEADER, &duties, none)
    }
}
