use anyhow::bail;
use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::model::{Action, OffsetSpec};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::stream::group::{create_group, group_settings};

use super::filter::FilterArgs;
use crate::author::change;
use crate::commands::topic::find;
use crate::commands::topic::settings::SettingsArgs;
use crate::invocation::Invocation;

/// Create a group of a stream.
///
/// What it fails to handle is tried again after 10s 20s 30s 1m 2m and so on up to 1h, by the group
/// alone, and becomes a dead letter of the group after 16 attempts. With --broadcast, the member
/// that failed tries again after 1s 5s 10s 30s 1m, and it becomes a dead letter after 6 attempts.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// STREAM@GROUP.
    name: TopicName,
    /// Handle each partition one message after the other: messages with a key in order, and none
    /// overtakes one that has to be tried again.
    #[arg(long)]
    ordered: bool,
    /// Give every member every message: there are no claims, and each member keeps its own
    /// position, in its memory or under its name.
    #[arg(long)]
    broadcast: bool,
    /// Where to begin: earliest, latest, an offset, or a time [default: earliest; with --broadcast,
    /// where each new member begins: latest].
    #[arg(long, value_name = "PLACE")]
    from: Option<OffsetSpec>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Create {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        if self.ordered && self.broadcast {
            bail!(
                "A broadcast group cannot be ordered, because its members do not wait for what is \
                 to be tried again: leave out --ordered, or --broadcast."
            );
        }
        let (defaults, from) = match self.broadcast {
            true => (broadcast_settings(), self.from.unwrap_or(OffsetSpec::Latest)),
            false => (group_settings(), self.from.unwrap_or(OffsetSpec::Earliest)),
        };
        let mut settings = self.settings.laid_over(defaults.clone());
        settings.filter = self.filter.or(settings.filter);
        let name = self.name;
        let mut session = invocation.session().await?;
        let create = async |conn: &mut Link| match self.broadcast {
            true => create_broadcast(conn, &name, from, &settings).await,
            false => create_group(conn, &name, self.ordered, from, &settings).await,
        };
        let words = [
            self.broadcast.then(|| "broadcast".to_owned()),
            self.ordered.then(|| "ordered".to_owned()),
            Some(format!("from {from}")),
            Some(settings.unlike(&defaults)).filter(|words| !words.is_empty()),
        ];
        let detail = words.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let by = change(&mut session, Action::CreateGroup, &name, detail).await?;
        by.make(&mut session, "create the group", create).await?;
        let topic = find(&mut session, &name).await?;
        invocation.output.report(&topic, &format!("The group '{name}' is created."))
    }
}
