use std::time::Duration;

use rowmq_core::inspect::{self, Sign, WorkerStatus};
use rowmq_core::store::stream::holding::NameHeld;

use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show the workers, what they hold, and why they count as alive.
#[derive(Debug, clap::Args)]
pub(crate) struct Workers {
    /// Show those that have ended too: the newest 200.
    #[arg(long)]
    all: bool,
}

pub(super) const HEADER: [&str; 12] = [
    "id",
    "client",
    "version",
    "state",
    "life",
    "work",
    "claims",
    "ranges",
    "member of",
    "last beat",
    "alive by",
    "end reason",
];

impl Row for WorkerStatus {
    fn cells(&self) -> Vec<String> {
        let signs: Vec<_> = self.alive_by.iter().copied().map(Sign::word).collect();
        let name = |held: &NameHeld| format!("{} as {}", held.group, held.member);
        let names: Vec<_> = self.members.iter().map(name).collect();
        vec![
            self.id.to_string(),
            self.client_id.clone(),
            self.version.clone(),
            self.state.clone(),
            self.life_conn_id.to_string(),
            self.work_conn_id.to_string(),
            self.claims.to_string(),
            self.ranges.to_string(),
            names.join(", "),
            units::age(Duration::from_millis(self.beat_age_ms)),
            signs.join(", "),
            self.end_reason.clone().unwrap_or_default(),
        ]
    }
}

impl Workers {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let which = if self.all { inspect::Workers::All } else { inspect::Workers::Alive };
        let workers = inspect::workers(&mut session, which).await?;
        invocation.output.rows(&HEADER, &workers, NO_WORKERS)
    }
}

/// What is printed where there is no worker to show.
pub(super) const NO_WORKERS: &str = "No worker is registered: start a consumer.";
