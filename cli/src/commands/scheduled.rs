mod cancel;
mod list;
mod reschedule;

use anyhow::bail;
use clap::Subcommand;
use rowmq_core::connection::{Link, Session};
use rowmq_core::store::topic::server_time;
use rowmq_core::{Moment, MsgId, TopicName};

use crate::invocation::Invocation;

/// Look at messages whose time has not come, cancel them, or reschedule them.
#[derive(Debug, Subcommand)]
pub(crate) enum Scheduled {
    List(list::List),
    Cancel(cancel::Cancel),
    Reschedule(reschedule::Reschedule),
}

impl Scheduled {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::List(command) => command.run(invocation).await,
            Self::Cancel(command) => command.run(invocation).await,
            Self::Reschedule(command) => command.run(invocation).await,
        }
    }
}

/// A program's late message is still wanted, but a person who gives a moment in the past has
/// mistyped it.
pub(super) async fn refuse_past(
    session: &mut Session,
    option: &'static str,
    moment: Option<Moment>,
) -> anyhow::Result<()> {
    let Some(Moment::At(at)) = moment else { return Ok(()) };
    let read = async |conn: &mut Link| server_time(conn).await;
    let now = session.call("read the server's clock", read).await?.and_utc();
    if at <= now {
        bail!(
            "{option} {} has passed, the server's clock shows {}: give a later moment",
            at.format("%FT%TZ"),
            now.format("%FT%TZ")
        );
    }
    Ok(())
}

fn waits_no_more(topic: &TopicName, id: MsgId) -> String {
    format!(
        "The message {id} does not wait in '{topic}': it is ready, being handled or done, or there never was one; `rowmq scheduled list {topic}` shows those that wait"
    )
}
