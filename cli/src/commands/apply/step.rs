use rowmq_core::Topic;
use rowmq_core::connection::Session;
use rowmq_core::model::{Action, Schedule, ScheduleName, TopicSettings};
use rowmq_core::topic::change_settings;
use serde::Serialize;

use crate::author;
use crate::commands::cron;
use crate::commands::group::create::NewGroup;
use crate::commands::topic::create::NewTopic;
use crate::commands::topic::delete::{Content, Delete};
use crate::commands::topic::{check_packet, noun};
use crate::output::Row;

/// One change.
#[derive(Debug)]
pub(super) enum Step {
    CreateTopic(Box<NewTopic>),
    CreateGroup(Box<NewGroup>),
    /// A topic or a group gets these settings.
    Set(Box<Topic>, Box<TopicSettings>),
    CreateSchedule(Box<Schedule>),
    SetSchedule(Box<Schedule>),
    /// A topic or a group is deleted.
    Delete(Box<Topic>),
    DeleteSchedule(ScheduleName),
}

/// A step, for people and scripts.
#[derive(Debug, Serialize)]
pub(super) struct Described {
    change: &'static str,
    pub(super) what: &'static str,
    pub(super) name: String,
    detail: String,
}

pub(super) const HEADER: [&str; 4] = ["change", "what", "name", "detail"];

impl Row for Described {
    fn cells(&self) -> Vec<String> {
        vec![self.change.to_owned(), self.what.to_owned(), self.name.clone(), self.detail.clone()]
    }
}

impl Step {
    pub(super) fn describe(&self) -> Described {
        let (change, what, name, detail) = match self {
            Self::CreateTopic(topic) => ("create", "topic", topic.name.to_string(), topic.words()),
            Self::CreateGroup(group) => ("create", "group", group.name.to_string(), group.words()),
            Self::Set(topic, settings) => {
                let detail = settings.unlike(&topic.settings);
                ("set", noun(topic), topic.name.to_string(), detail)
            }
            Self::CreateSchedule(schedule) => {
                ("create", "schedule", schedule.name.to_string(), cron::set::words(schedule))
            }
            Self::SetSchedule(schedule) => {
                ("set", "schedule", schedule.name.to_string(), cron::set::words(schedule))
            }
            Self::Delete(topic) => ("delete", noun(topic), topic.name.to_string(), String::new()),
            Self::DeleteSchedule(name) => ("delete", "schedule", name.to_string(), String::new()),
        };
        Described { change, what, name, detail }
    }

    pub(super) fn deletes(&self) -> bool {
        matches!(self, Self::Delete(_) | Self::DeleteSchedule(_))
    }

    /// Makes the change, and writes the audit.
    pub(super) async fn carry_out(&self, session: &mut Session) -> anyhow::Result<()> {
        match self {
            Self::CreateTopic(topic) => topic.create(session).await?,
            Self::CreateGroup(group) => group.create(session).await?,
            Self::Set(topic, settings) => set(session, topic, settings).await?,
            Self::CreateSchedule(schedule) | Self::SetSchedule(schedule) => {
                cron::set::set(session, schedule).await?;
            }
            Self::Delete(topic) => {
                let delete = Delete { name: topic.name.clone(), content: Content::default() };
                delete.delete(session, topic).await?;
            }
            Self::DeleteSchedule(name) => cron::delete::delete(session, name).await?,
        }
        Ok(())
    }
}

async fn set(
    session: &mut Session,
    topic: &Topic,
    settings: &TopicSettings,
) -> rowmq_core::Result<()> {
    if settings.body_limit != topic.settings.body_limit {
        check_packet(session, settings).await?;
    }
    let is_group = topic.of_stream().is_some();
    let action = if is_group { Action::SetGroup } else { Action::SetTopic };
    let by = author::change(session, action, &topic.name, None).await?;
    // The trace of a group may have changed with its stream's, a moment ago.
    let wanted = |old: TopicSettings| match is_group {
        true => TopicSettings { trace: old.trace, ..settings.clone() },
        false => settings.clone(),
    };
    change_settings(session, &topic.name, &by, wanted).await
}
