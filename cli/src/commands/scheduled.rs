mod list;
mod reschedule;

use anyhow::bail;
use clap::Subcommand;
use rowmq_core::Moment;
use rowmq_core::connection::{Link, Session};
use rowmq_core::store::topic::server_time;

use crate::invocation::Invocation;

/// List and reschedule messages that wait for their time: delayed ones and retries.
#[derive(Debug, Subcommand)]
pub(crate) enum Scheduled {
    List(list::List),
    Reschedule(reschedule::Reschedule),
}

impl Scheduled {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::List(command) => command.run(invocation).await,
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
