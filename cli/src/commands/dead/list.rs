use clap::value_parser;
use rowmq_core::store::dead::DeadLetter;
use rowmq_core::{TopicName, dead};

use super::filter::FilterArgs;
use crate::commands::topic::find;
use crate::invocation::Invocation;
use crate::output::Row;

/// How much of an error the table shows, in characters.
const SHOWN: usize = 100;

/// List a topic's dead letters, in the order of their death.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    topic: TopicName,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 20)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    filter: FilterArgs,
}

const HEADER: [&str; 8] =
    ["message id", "died (UTC)", "cause", "deliveries", "failures", "key", "bytes", "last error"];

impl Row for DeadLetter {
    fn cells(&self) -> Vec<String> {
        let mut error: String = self.last_error.chars().take(SHOWN).collect();
        if error.len() < self.last_error.len() {
            error.push('…');
        }
        vec![
            self.msg_id.to_string(),
            self.died_at.format("%F %T%.3f").to_string(),
            self.cause.clone(),
            self.delivery_no.to_string(),
            self.failures.to_string(),
            self.key.clone().unwrap_or_default(),
            self.body_bytes.to_string(),
            error,
        ]
    }
}

impl List {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let filter = self.filter.filter(&mut session).await?;
        let limit = self.limit as usize;
        let letters = dead::list(&mut session, topic.id, &filter, limit).await?;
        let none = format!("The topic '{}' has no such dead letter.", topic.name);
        invocation.output.rows(&HEADER, &letters, &none)
    }
}
