use clap::value_parser;
use rowmq_core::connection::Link;
use rowmq_core::model::{AuditNo, Entry};
use rowmq_core::store::audit;

use crate::invocation::Invocation;
use crate::output::Row;

/// Show what people changed by hand, the newest first.
#[derive(Debug, clap::Args)]
pub(crate) struct Audit {
    /// Those before the entry of this number.
    #[arg(long, value_name = "NO")]
    before: Option<u64>,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 50)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
}

const HEADER: [&str; 8] = ["no", "when", "who", "from", "what", "of", "messages", "detail"];

impl Row for Entry {
    fn cells(&self) -> Vec<String> {
        vec![
            self.no.0.to_string(),
            self.at.format("%F %T").to_string(),
            self.actor.name.clone(),
            self.actor.origin.clone(),
            self.action.clone(),
            self.target.clone(),
            self.messages.to_string(),
            self.detail.clone().unwrap_or_default(),
        ]
    }
}

impl Audit {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let before = self.before.map(AuditNo);
        let read = async |conn: &mut Link| audit::latest(conn, before, self.limit).await;
        let entries = session.call("read the audit", read).await?;
        let none = "Nothing has been changed by hand, or the janitor has removed the entries.";
        invocation.output.rows(&HEADER, &entries, none)
    }
}
