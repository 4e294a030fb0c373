use anyhow::bail;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, OffsetSpec, TopicKind, TopicSettings};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::stream::group::{create_group, group_settings};
use rowmq_core::{Topic, TopicName};

use super::filter::FilterArgs;
use crate::author::change;
use crate::commands::topic::settings::SettingsArgs;
use crate::commands::topic::{created, find, kind_word};
use crate::invocation::Invocation;

/// A group to be created.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NewGroup {
    /// STREAM@GROUP.
    pub(crate) name: TopicName,
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

/// Create a group of a stream.
///
/// What it fails to handle is tried again after 10s 20s 30s 1m 2m and so on up to 1h, by the group
/// alone, and becomes a dead letter of the group after 16 attempts. With --broadcast, the member
/// that failed tries again after 1s 5s 10s 30s 1m, and it becomes a dead letter after 6 attempts.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    group: NewGroup,
    /// Do nothing if the group exists: it keeps its place and its settings.
    #[arg(long)]
    if_not_exists: bool,
}

impl Create {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let Self { group, if_not_exists } = self;
        group.check()?;
        let name = group.name.clone();
        let mut session = invocation.session().await?;
        let verb = created(group.create(&mut session).await, if_not_exists)?;
        let found = find(&mut session, &name).await?;
        group.refuse_other_kind(&found)?;
        invocation.output.report(&found, &format!("The group '{name}' {verb}."))
    }
}

impl NewGroup {
    /// Refuses what no group can be.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.ordered && self.broadcast {
            bail!(
                "A broadcast group cannot be ordered, because its members do not wait for what is \
                 to be tried again: leave out --ordered, or --broadcast."
            );
        }
        Ok(())
    }

    fn defaults(&self) -> TopicSettings {
        if self.broadcast { broadcast_settings() } else { group_settings() }
    }

    fn from(&self) -> OffsetSpec {
        let default = if self.broadcast { OffsetSpec::Latest } else { OffsetSpec::Earliest };
        self.from.unwrap_or(default)
    }

    /// All its settings, with the defaults of those that were not given.
    pub(crate) fn settings(&self) -> TopicSettings {
        let settings = self.settings.clone().laid_over(self.defaults());
        TopicSettings { filter: self.filter.clone().or(settings.filter.clone()), ..settings }
    }

    /// Creates the group, and writes the audit.
    pub(crate) async fn create(&self, session: &mut Session) -> rowmq_core::Result<()> {
        let (name, from, settings) = (&self.name, self.from(), self.settings());
        let create = async |conn: &mut Link| match self.broadcast {
            true => create_broadcast(conn, name, from, &settings).await,
            false => create_group(conn, name, self.ordered, from, &settings).await,
        };
        let by = change(session, Action::CreateGroup, name, self.words()).await?;
        by.make(session, "create the group", create).await
    }

    /// Its kind, its place, and the settings that are not the defaults, for people.
    pub(crate) fn words(&self) -> String {
        let words = [
            self.broadcast.then(|| "broadcast".to_owned()),
            self.ordered.then(|| "ordered".to_owned()),
            Some(format!("from {}", self.from())),
            Some(self.settings().unlike(&self.defaults())).filter(|words| !words.is_empty()),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Refuses an existing group of another kind, which no setting can change.
    pub(crate) fn refuse_other_kind(&self, topic: &Topic) -> anyhow::Result<()> {
        let is_same = match topic.kind {
            TopicKind::Group { ordered, .. } => !self.broadcast && ordered == self.ordered,
            TopicKind::Broadcast { .. } => self.broadcast,
            TopicKind::Queue | TopicKind::Stream { .. } => false,
        };
        if is_same {
            return Ok(());
        }
        bail!(
            "'{}' exists, and its kind is '{}': delete it with `rowmq group delete {0}`, or choose \
             another name.",
            self.name,
            kind_word(topic.kind)
        )
    }
}
