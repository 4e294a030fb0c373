use rowmq_core::connection::Link;
use rowmq_core::model::{Access as Rule, Action};
use rowmq_core::store::switch;
use serde::Serialize;

use crate::author::change;
use crate::invocation::Invocation;

/// Show or set what may be done with all topics at once.
///
/// It applies together with each topic's own rule: the stricter of the two counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    /// read-write, write-only (consumers claim nothing), read-only (producers are refused) or
    /// denied (both). Shown unless given.
    rule: Option<Rule>,
}

#[derive(Debug, Serialize)]
struct Answer {
    access: Rule,
}

impl Access {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        if let Some(rule) = self.rule {
            let by = change(&mut session, Action::SetAccessOfAll, "", rule.to_string()).await?;
            let set = async |conn: &mut Link| switch::set(conn, rule).await;
            by.make(&mut session, "set the switch for all topics", set).await?;
        }
        let read = async |conn: &mut Link| switch::read(conn).await;
        let access = session.call("read the switch for all topics", read).await?;
        invocation.output.report(&Answer { access }, sentence(access))
    }
}

fn sentence(access: Rule) -> &'static str {
    match access {
        Rule::ReadWrite => "All topics are read-write, but for their own rules.",
        Rule::WriteOnly => "All topics are write-only: they take messages; consumers claim none.",
        Rule::ReadOnly => "All topics are read-only: they take no messages; consumers go on.",
        Rule::Denied => "All topics are denied: they take no messages, and consumers claim none.",
    }
}
