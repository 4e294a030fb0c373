use rowmq_core::TopicName;
use rowmq_core::model::{Action, TopicSettings};

use super::check_is_group;
use super::filter::FilterArgs;
use crate::commands::topic::change;
use crate::commands::topic::settings::{self, SettingsArgs};
use crate::invocation::Invocation;

/// Change a group's filter and settings; what is not named stays.
///
/// A filter applies to what is claimed from then on, also again. Members still handle what they
/// hold.
#[derive(Debug, clap::Args)]
#[command(group(settings::at_least_one().arg("conditions")))]
pub(crate) struct Set {
    /// STREAM@GROUP.
    name: TopicName,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Set {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        check_is_group(invocation, &self.name).await?;
        let (filter, settings) = (self.filter, self.settings);
        change(invocation, self.name, Action::SetGroup, |old| {
            let filter = filter.clone().or(old.filter.clone());
            TopicSettings { filter, ..settings.clone().laid_over(old) }
        })
        .await
    }
}
