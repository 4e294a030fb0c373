use clap::value_parser;
use rowmq_core::TopicName;
use rowmq_core::store::scheduled::{self, Waiting};

use crate::commands::topic::find;
use crate::invocation::Invocation;
use crate::output::Row;

/// Show a topic's next messages, in the order in which they become ready.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    topic: TopicName,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 10)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
}

const HEADER: [&str; 7] =
    ["message id", "due (UTC)", "priority", "failures", "enqueued (UTC)", "biz id", "last error"];

impl Row for Waiting {
    fn cells(&self) -> Vec<String> {
        vec![
            self.msg_id.to_string(),
            self.due_at.format("%F %T%.3f").to_string(),
            self.priority.to_string(),
            self.failures.to_string(),
            self.enqueued_at.format("%F %T%.3f").to_string(),
            self.biz_id.clone().unwrap_or_default(),
            self.last_error.clone().unwrap_or_default(),
        ]
    }
}

impl List {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let list = async |conn: &mut _| scheduled::list(conn, topic.id, self.limit).await;
        let messages = session.call("list the scheduled messages", list).await?;
        let none = format!("No message of '{}' waits for its time.", topic.name);
        invocation.output.rows(&HEADER, &messages, &none)
    }
}
