use queue_core::connection::Link;
use queue_core::store::ready;
use queue_core::{Priority, TopicName};

use super::purge::find_queue;
use crate::invocation::Invocation;
use crate::output::Output;
use crate::progress::Bar;
use crate::record::Record;

/// How many messages one statement reads.
const PAGE: u32 = 200;

/// Write the messages of a topic, ready and claimed, as lines of JSON; changes nothing.
///
/// `producer send TOPIC --ndjson FILE` takes them in again, with their ids: into a topic with a
/// dedupe window as often as one likes. What is moved or enqueued meanwhile may be missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    topic: TopicName,
}

impl Export {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find_queue(&mut session, &self.topic).await?;
        let last = async |conn: &mut Link| ready::last(conn).await;
        let last = session.call("read the last row", last).await?;
        let bar = Bar::new("messages written");
        let mut written = 0;
        for priority in Priority::all().chain(Priority::all().map(Priority::suspect)) {
            let mut after = queue_core::message::RowId(0);
            while after < last {
                let read = async |conn: &mut Link| {
                    ready::read(conn, (topic.id, priority), after, PAGE).await
                };
                let page = session.call("read messages", read).await?;
                let Some(end) = page.last().map(|stored| stored.row) else { break };
                for stored in page.iter().filter(|stored| stored.row <= last) {
                    Output::json_line(&Record::of_queue(&topic.name, priority.plain(), stored))?;
                    written += 1;
                }
                bar.show(written);
                after = end;
            }
        }
        bar.end();
        Ok(())
    }
}
