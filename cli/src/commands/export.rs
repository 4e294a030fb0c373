mod sink;

use std::path::PathBuf;

use anyhow::Context;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::RowId;
use rowmq_core::store::scheduled::ScheduledPosition;
use rowmq_core::store::{ready, scheduled};
use rowmq_core::{Priority, Topic, TopicName};
use serde::Serialize;

use self::sink::Sink;
use super::purge::find_queue;
use crate::export_position::{At, ExportPosition};
use crate::invocation::Invocation;
use crate::progress::Bar;
use crate::record::Record;

/// How many messages one statement reads.
const PAGE: u32 = 200;

/// Write the messages of a topic (delayed, ready, claimed) as lines of JSON.
///
/// `rowmq import FILE` takes them in again, with their ids. Messages enqueued during the export are
/// left out, and messages that change their place during it, as by a retry, may be missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    topic: TopicName,
    /// Write into this file, which must not be there yet, instead of to standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Continue an export that was cut off, behind what the file has.
    #[arg(long, requires = "to")]
    resume: bool,
}

#[derive(Debug, Serialize)]
struct Exported {
    topic: TopicName,
    file: String,
    messages: u64,
    /// Of them, those that an earlier run has written.
    earlier: u64,
}

impl Export {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find_queue(&mut session, &self.topic).await?;
        let (sink, from) = match &self.to {
            None => (Sink::stdout(), None),
            Some(file) if self.resume => Sink::resume(file, &self.topic)?,
            Some(file) => (Sink::create(file, &self.topic)?, None),
        };
        let earlier = sink.messages();
        let bar = Bar::new("messages written");
        let mut export = Run { session, topic, sink, bar };
        let ended = export.all(from).await;
        export.bar.end();
        let messages = export.sink.messages();
        let Some(file) = self.to else { return ended };
        let (topic, file) = (self.topic, file.display().to_string());
        ended.and_then(|()| export.sink.end()).with_context(|| {
            format!(
                "The export of '{topic}' is not whole: `rowmq export {topic} --to {file} --resume` goes on behind the {messages} messages that the file has"
            )
        })?;
        let since = match earlier {
            0 => String::new(),
            earlier => format!(", {earlier} of them since before"),
        };
        let sentence = format!("{messages} messages of '{topic}' are in {file}{since}.");
        let exported = Exported { topic, file, messages, earlier };
        invocation.output.report(&exported, &sentence)
    }
}

/// A running export.
struct Run {
    session: Session,
    topic: Topic,
    sink: Sink,
    bar: Bar,
}

impl Run {
    /// Writes everything behind `from`. It notes the last row before it reads anything, and reads
    /// the delayed messages and the suspects first: a message that becomes ready during the export
    /// gets a row behind the last one, and is left out. A message that goes back to the delayed
    /// ones, behind the position already reached there, is written twice.
    async fn all(&mut self, from: Option<ExportPosition>) -> anyhow::Result<()> {
        let last = match from {
            Some(ExportPosition { last, .. }) => last,
            None => {
                let last = async |conn: &mut Link| ready::last(conn).await;
                self.session.call("read the last row", last).await?
            }
        };
        let (place, behind) = match from.map(|place| place.at) {
            None => (Some(None), None),
            Some(At::Scheduled(place)) => (Some(Some(place)), None),
            Some(At::Ready(priority, row)) => (None, Some((priority, row))),
        };
        if let Some(after) = place {
            self.scheduled(last, after).await?;
        }
        let order = Priority::all().map(Priority::suspect).chain(Priority::all());
        let (begin, mut after) = behind.unwrap_or((Priority::FIRST.suspect(), RowId(0)));
        for priority in order.skip_while(|priority| *priority != begin) {
            self.ready(last, priority, after).await?;
            after = RowId(0);
        }
        Ok(())
    }

    async fn scheduled(
        &mut self,
        last: RowId,
        mut after: Option<ScheduledPosition>,
    ) -> anyhow::Result<()> {
        let topic = self.topic.id;
        loop {
            let read = async |conn: &mut Link| scheduled::read(conn, topic, after, PAGE).await;
            let page = self.session.call("read scheduled messages", read).await?;
            let Some(end) = page.last() else { return Ok(()) };
            after = Some(end.position());
            for one in &page {
                let place = ExportPosition { last, at: At::Scheduled(one.position()) };
                self.sink.write(&Record::of_scheduled(&self.topic.name, one).at(place))?;
            }
            self.written()?;
        }
    }

    async fn ready(
        &mut self,
        last: RowId,
        priority: Priority,
        mut after: RowId,
    ) -> anyhow::Result<()> {
        let topic = self.topic.id;
        while after < last {
            let read =
                async |conn: &mut Link| ready::read(conn, (topic, priority), after, PAGE).await;
            let page = self.session.call("read messages", read).await?;
            let Some(end) = page.last() else { break };
            after = end.row;
            for stored in page.iter().filter(|stored| stored.row <= last) {
                let place = ExportPosition { last, at: At::Ready(priority, stored.row) };
                let record = Record::of_queue(&self.topic.name, priority.plain(), stored);
                self.sink.write(&record.at(place))?;
            }
            self.written()?;
        }
        Ok(())
    }

    fn written(&mut self) -> anyhow::Result<()> {
        self.sink.flush()?;
        self.bar.show(usize::try_from(self.sink.messages()).unwrap_or(usize::MAX));
        Ok(())
    }
}
