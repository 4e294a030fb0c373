use std::process::ExitCode;
use std::time::{Duration, Instant};

use rowmq_core::TopicName;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::TopicId;
use rowmq_core::store::inspect;
use rowmq_core::store::scheduled;
use rowmq_core::store::topic::server_time;
use serde::Serialize;

use super::purge::find_queue;
use crate::invocation::Invocation;
use crate::progress::Bar;
use crate::units;

/// How often the command looks.
const LOOK: Duration = Duration::from_millis(500);

/// Wait until a topic has nothing ready, claimed or due.
///
/// It changes nothing. If producers would fill the topic again, close it first, with `rowmq topic
/// access TOPIC read-only`. Exit code 1 if it is not drained.
#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
    topic: TopicName,
    /// Wait; without it, only report what is left.
    #[arg(long)]
    wait: bool,
    /// For how long to wait; without it, for as long as it takes.
    #[arg(long, requires = "wait", value_name = "TIME", value_parser = units::parse_time)]
    timeout: Option<Duration>,
}

/// The work that is left. Messages whose time has not come do not count.
#[derive(Debug, Serialize)]
struct Remaining {
    topic: TopicName,
    drained: bool,
    unsettled: u64,
    claimed: u64,
    due: bool,
}

async fn left(
    session: &mut Session,
    id: TopicId,
    name: &TopicName,
) -> rowmq_core::Result<Remaining> {
    let read = async |conn: &mut Link| {
        // Before and after: a message that becomes ready or goes back to wait in between is seen at
        // one of the two times.
        let before = is_due(conn, id).await?;
        let depth = inspect::depth(conn, id).await?;
        Ok((before || is_due(conn, id).await?, depth))
    };
    let (due, depth) = session.call("read the topic's depth", read).await?;
    Ok(Remaining {
        topic: name.clone(),
        drained: depth.unsettled == 0 && !due,
        unsettled: depth.unsettled,
        claimed: depth.claimed,
        due,
    })
}

/// Whether a message waits whose time has come.
async fn is_due(conn: &mut Link, id: TopicId) -> rowmq_core::Result<bool> {
    let next = scheduled::list(conn, id, 1).await?;
    let now = server_time(conn).await?.and_utc();
    Ok(next.first().is_some_and(|first| first.due_at <= now))
}

impl Drain {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<ExitCode> {
        let mut session = invocation.session().await?;
        let topic = find_queue(&mut session, &self.topic).await?;
        let bar = Bar::new("messages left");
        let began = Instant::now();
        let left = loop {
            let left = left(&mut session, topic.id, &topic.name).await?;
            bar.show(usize::try_from(left.unsettled).unwrap_or(usize::MAX));
            let is_over = self.timeout.is_some_and(|timeout| began.elapsed() >= timeout);
            if left.drained || is_over || !self.wait {
                break left;
            }
            tokio::time::sleep(LOOK).await;
        };
        bar.end();
        invocation.output.report(&left, &left.sentence())?;
        Ok(if left.drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Remaining {
    fn sentence(&self) -> String {
        let name = &self.topic;
        if self.drained {
            return format!("The topic '{name}' is drained.");
        }
        let more = if self.unsettled >= inspect::DEPTH_CAP { " at least" } else { "" };
        let due = if self.due { ", and some are due" } else { "" };
        format!(
            "The topic '{name}' still has{more} {} messages, {} of them claimed{due}; `rowmq top` shows how fast they go.",
            self.unsettled, self.claimed
        )
    }
}
