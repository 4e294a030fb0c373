pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod settings;
pub(crate) mod state;

use anyhow::bail;
use clap::Subcommand;
use rowmq_core::connection::Session;
use rowmq_core::model::{Action, Backlog, OnDone, TopicKind, TopicSettings};
use rowmq_core::topic::change_settings;
use rowmq_core::{Error, TopicName, store};
use serde::Serialize;

use self::settings::SettingsArgs;
use crate::author;
use crate::invocation::Invocation;
use crate::output::Row;
use crate::{packet, units};

/// What is printed where there is no topic to show.
pub(crate) const NO_TOPICS: &str =
    "There are no topics: create one with `rowmq topic create NAME`.";

/// Create, change, show and delete topics.
#[derive(Debug, Subcommand)]
pub(crate) enum Topic {
    Create(Box<create::Create>),
    /// List the topics.
    List,
    /// Show a topic's settings.
    Show {
        name: TopicName,
    },
    /// Change a topic's settings; what is not named stays.
    #[command(group(settings::at_least_one().arg("partitions")))]
    Set {
        name: TopicName,
        /// Refused: a stream's partitions are fixed when it is created.
        #[arg(long, value_name = "N", hide = true)]
        partitions: Option<u32>,
        #[command(flatten)]
        settings: Box<SettingsArgs>,
    },
    Access(state::Access),
    Pause(state::Pause),
    Resume(state::Resume),
    Delete(delete::Delete),
}

impl Topic {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::Create(command) => command.run(invocation).await,
            Self::List => list(invocation).await,
            Self::Show { name } => {
                let mut session = invocation.session().await?;
                show(invocation, find(&mut session, &name).await?)
            }
            Self::Set { name, partitions: Some(_), .. } => bail!(
                "The partitions of '{name}' cannot be changed, because its keys would change theirs: \
                 create another stream with as many as you like, and send to that one."
            ),
            Self::Set { name, settings, partitions: None } => {
                let wanted = |old| settings.clone().laid_over(old);
                change(invocation, name, Action::SetTopic, wanted).await
            }
            Self::Access(command) => command.run(invocation).await,
            Self::Pause(command) => command.run(invocation).await,
            Self::Resume(command) => command.run(invocation).await,
            Self::Delete(command) => command.run(invocation).await,
        }
    }
}

/// Finds the topic; the error says how to create it.
pub(crate) async fn find(
    session: &mut Session,
    name: &TopicName,
) -> rowmq_core::Result<rowmq_core::Topic> {
    session.call("read the topic", async |conn| store::topic::existing(conn, name).await).await
}

/// What may be done with a topic at the moment, and whether it is full.
pub(crate) fn access_words(topic: &rowmq_core::Topic) -> String {
    let access = topic.effective_access;
    let is_full = topic.backlog.is_some_and(|backlog| backlog.full) && access.may_enqueue();
    let full = if is_full { ", full" } else { "" };
    if topic.access == access {
        format!("{access}{full}")
    } else {
        format!("{access} (itself {}){full}", topic.access)
    }
}

/// What a sentence calls the topic.
pub(crate) fn noun(topic: &rowmq_core::Topic) -> &'static str {
    if topic.of_stream().is_some() { "group" } else { "topic" }
}

/// What the sentence about a creation says: a topic that exists is as good if that was asked for.
pub(crate) fn created(
    result: rowmq_core::Result<()>,
    if_not_exists: bool,
) -> rowmq_core::Result<&'static str> {
    match result {
        Ok(()) => Ok("is created"),
        Err(Error::TopicExists { .. }) if if_not_exists => Ok("exists"),
        Err(error) => Err(error),
    }
}

/// What a table calls the kind of a topic.
pub(crate) fn kind_word(kind: TopicKind) -> &'static str {
    match kind {
        TopicKind::Queue => "queue",
        TopicKind::Stream { .. } => "stream",
        TopicKind::Group { ordered: false, .. } => "group",
        TopicKind::Group { ordered: true, .. } => "ordered group",
        TopicKind::Broadcast { .. } => "broadcast group",
    }
}

/// Changes a topic's settings and shows them.
pub(crate) async fn change(
    invocation: &Invocation,
    name: TopicName,
    action: Action,
    wanted: impl Fn(TopicSettings) -> TopicSettings,
) -> anyhow::Result<()> {
    let mut session = invocation.session().await?;
    let topic = find(&mut session, &name).await?;
    let limit = topic.settings.body_limit;
    let settings = wanted(topic.settings);
    if settings.body_limit != limit {
        check_packet(&mut session, &settings).await?;
    }
    let by = author::change(&mut session, action, &name, None).await?;
    change_settings(&mut session, &name, &by, wanted).await?;
    show(invocation, find(&mut session, &name).await?)
}

/// Checks that the server takes a body of the topic's limit.
pub(crate) async fn check_packet(
    session: &mut Session,
    settings: &TopicSettings,
) -> rowmq_core::Result<()> {
    packet::check(session, "A body of the topic's limit", settings.body_limit as usize).await
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Listed(rowmq_core::Topic);

const HEADER: [&str; 8] = [
    "topic",
    "kind",
    "access",
    "body limit",
    "max attempts",
    "max crashes",
    "max run time",
    "keep done",
];

impl Row for Listed {
    fn cells(&self) -> Vec<String> {
        let Self(topic) = self;
        let settings = &topic.settings;
        vec![
            topic.name.to_string(),
            kind_word(topic.kind).to_owned(),
            access_words(topic),
            units::size(settings.body_limit),
            settings.max_attempts.to_string(),
            settings.max_crashes.to_string(),
            settings.max_run_time.map_or_else(|| "none".to_owned(), units::time),
            keep_done(settings.on_done),
        ]
    }
}

fn keep_done(on_done: OnDone) -> String {
    match on_done {
        OnDone::Delete => "none".to_owned(),
        OnDone::Keep(time) => units::time(time),
    }
}

/// Which messages a group wants.
pub(crate) fn filter(settings: &TopicSettings) -> String {
    let filter = &settings.filter;
    if filter.wants_all() { "none".to_owned() } else { filter.to_string() }
}

/// The last measurement, for a topic that has a limit.
fn backlog(topic: &rowmq_core::Topic) -> String {
    let settings = &topic.settings;
    match topic.backlog {
        _ if settings.max_depth.or(settings.max_bytes).is_none() => "not measured".to_owned(),
        None => "not measured of late, so the limits do not hold: start a janitor".to_owned(),
        Some(Backlog { depth, bytes: None, .. }) => format!("about {depth} messages"),
        Some(Backlog { depth, bytes: Some(bytes), .. }) => {
            format!("about {depth} messages, {bytes} bytes")
        }
    }
}

fn or_off(limit: Option<impl std::fmt::Display>) -> String {
    limit.map_or_else(|| "off".to_owned(), |limit| limit.to_string())
}

async fn list(invocation: &Invocation) -> anyhow::Result<()> {
    let mut session = invocation.session().await?;
    let topics =
        session.call("list the topics", async |conn| store::topic::all(conn).await).await?;
    let topics: Vec<_> = topics.into_iter().map(Listed).collect();
    invocation.output.rows(&HEADER, &topics, NO_TOPICS)
}

fn show(invocation: &Invocation, topic: rowmq_core::Topic) -> anyhow::Result<()> {
    let settings = &topic.settings;
    let properties = [
        ("topic", topic.name.to_string()),
        ("access", access_words(&topic)),
        ("body limit", units::size(settings.body_limit)),
        ("max attempts", settings.max_attempts.to_string()),
        ("max crashes", settings.max_crashes.to_string()),
        ("retry", settings.retry.to_string()),
        ("max run time", settings.max_run_time.map_or_else(|| "none".to_owned(), units::time)),
        ("keep done", keep_done(settings.on_done)),
        ("keep dead", settings.keep_dead.map_or_else(|| "none".to_owned(), units::time)),
        ("ledger window", settings.ledger_window.map_or_else(|| "none".to_owned(), units::time)),
        ("dedupe window", settings.dedupe_window.map_or_else(|| "none".to_owned(), units::time)),
        ("searchable", settings.searchable.map_or_else(|| "off".to_owned(), units::time)),
        (
            "dead-letter topic",
            settings.dead_letter_topic.as_ref().map_or("none".to_owned(), TopicName::to_string),
        ),
        ("max depth", or_off(settings.max_depth)),
        ("max bytes", settings.max_bytes.map_or_else(|| "off".to_owned(), units::size)),
        ("when full", settings.when_full.word().to_owned()),
        ("backlog", backlog(&topic)),
        ("max running", or_off(settings.limits.max_running)),
        ("max running per key", or_off(settings.limits.max_running_per_key)),
        ("rate", or_off(settings.limits.rate)),
        ("trace", settings.trace.to_string()),
    ];
    let mut properties = Vec::from(properties);
    if topic.group().is_some() {
        properties.push(("filter", filter(settings)));
    }
    if let TopicKind::Stream { partitions } = topic.kind {
        let retention = settings.retention;
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        properties.extend([
            ("partitions", partitions.to_string()),
            ("retention", retention.time.map_or_else(|| "none".to_owned(), units::time)),
            ("retention size", retention.bytes.map_or_else(|| "none".to_owned(), units::size)),
            ("retention hard", on_off(retention.hard)),
            ("prune handled", on_off(retention.handled)),
        ]);
    }
    if let TopicKind::Broadcast { start, .. } = topic.kind {
        properties.push(("members begin at", start.to_string()));
    }
    invocation.output.properties(&topic, &properties)
}
