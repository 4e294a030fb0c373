use anyhow::bail;
use clap::ValueEnum;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Action, TopicKind, TopicSettings};
use rowmq_core::stream::group::create_stream;
use rowmq_core::{Topic, TopicName, store};

use super::settings::SettingsArgs;
use super::{check_packet, created, find, kind_word};
use crate::author;
use crate::invocation::Invocation;

/// The kind of a topic: a queue or a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    #[default]
    Queue,
    Stream,
}

/// A topic to be created.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NewTopic {
    pub(crate) name: TopicName,
    /// What it does with its messages: each is handled by one consumer, or they stay in a log that
    /// groups read.
    #[arg(long, value_enum, default_value_t)]
    kind: Kind,
    /// How many partitions a stream has: as many members of an ordered group work at once, and as
    /// many large batches without keys are appended at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    partitions: u32,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Create a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    #[command(flatten)]
    topic: NewTopic,
    /// Do nothing if the topic exists: it keeps its settings.
    #[arg(long)]
    if_not_exists: bool,
}

impl Create {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let Self { topic, if_not_exists } = self;
        let name = topic.name.clone();
        let mut session = invocation.session().await?;
        let verb = created(topic.create(&mut session).await, if_not_exists)?;
        let found = find(&mut session, &name).await?;
        topic.refuse_other_kind(&found)?;
        invocation.output.report(&found, &format!("The topic '{name}' {verb}."))
    }
}

impl NewTopic {
    /// All its settings, with the defaults of those that were not given.
    pub(crate) fn settings(&self) -> TopicSettings {
        self.settings.clone().laid_over(TopicSettings::default())
    }

    /// Creates the topic, and writes the audit.
    pub(crate) async fn create(&self, session: &mut Session) -> rowmq_core::Result<()> {
        let Self { name, kind, partitions, .. } = self;
        let settings = self.settings();
        check_packet(session, &settings).await?;
        let create = async |conn: &mut Link| match kind {
            Kind::Queue => store::topic::create(conn, name, &settings).await,
            Kind::Stream => create_stream(conn, name, *partitions, &settings).await,
        };
        let by = author::change(session, Action::CreateTopic, name, self.words()).await?;
        by.make(session, "create the topic", create).await
    }

    /// Its kind and the settings that are not the defaults, for people.
    pub(crate) fn words(&self) -> String {
        let kind = match self.kind {
            Kind::Queue => "queue".to_owned(),
            Kind::Stream => format!("stream, {} partitions", self.partitions),
        };
        let words = [kind, self.settings().unlike(&TopicSettings::default())];
        words.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Refuses an existing topic of another kind, which no setting can change.
    pub(crate) fn refuse_other_kind(&self, topic: &Topic) -> anyhow::Result<()> {
        match (self.kind, topic.kind) {
            (Kind::Queue, TopicKind::Queue) => Ok(()),
            (Kind::Stream, TopicKind::Stream { partitions }) if partitions == self.partitions => {
                Ok(())
            }
            (Kind::Stream, TopicKind::Stream { partitions }) => bail!(
                "The stream '{}' has {partitions} partitions, not {}: partitions cannot be \
                 changed, so create a stream of another name.",
                self.name,
                self.partitions
            ),
            (_, kind) => bail!(
                "The topic '{}' exists, and its kind is '{}': choose another name.",
                self.name,
                kind_word(kind)
            ),
        }
    }
}
