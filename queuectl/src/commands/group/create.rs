use queue_core::TopicName;
use queue_core::connection::Link;
use queue_core::stream::group::{create_group, group_settings};

use super::filter::FilterArgs;
use super::place::PlaceText;
use crate::commands::topic::find;
use crate::commands::topic::settings::SettingsArgs;
use crate::invocation::Invocation;

/// Create a group of a stream.
///
/// What it fails to handle is tried again after 10s 20s 30s 1m 2m and so on up to 1h, by the group
/// alone, and becomes a dead letter of the group after 16 attempts.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// STREAM@GROUP.
    name: TopicName,
    /// Handle each partition one message after the other: messages with a key in order, and none
    /// overtakes one that has to be tried again.
    #[arg(long)]
    ordered: bool,
    /// Where to begin: earliest, latest, an offset, or a time.
    #[arg(long, default_value = "earliest", value_name = "PLACE")]
    from: PlaceText,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Create {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut settings = self.settings.laid_over(group_settings());
        settings.filter = self.filter.or(settings.filter);
        let (name, ordered, PlaceText(from)) = (self.name, self.ordered, self.from);
        let mut session = invocation.session().await?;
        let create =
            async |conn: &mut Link| create_group(conn, &name, ordered, from, &settings).await;
        session.transaction("create the group", create).await?;
        let topic = find(&mut session, &name).await?;
        invocation.output.told(&topic, &format!("The group '{name}' is created."))
    }
}
