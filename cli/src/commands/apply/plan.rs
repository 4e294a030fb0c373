use std::collections::BTreeSet;

use anyhow::{Context, bail};
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Schedule, TopicSettings};
use rowmq_core::store::schedule::ScheduleState;
use rowmq_core::{Topic, TopicName, store};
use rowmq_service::config::declarations::Declaration;

use super::step::Step;
use crate::commands::cron;
use crate::commands::group::create::NewGroup;
use crate::commands::topic::create::NewTopic;

/// The changes after which everything is as declared, in an order in which they can be made.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// How many declared things are so already.
    pub(super) unchanged: usize,
}

/// What the database holds.
struct Present {
    topics: Vec<Topic>,
    schedules: Vec<ScheduleState>,
}

impl Present {
    async fn read(session: &mut Session) -> rowmq_core::Result<Self> {
        let topics = async |conn: &mut Link| store::topic::all(conn).await;
        let topics = session.call("list the topics", topics).await?;
        let schedules = async |conn: &mut Link| store::schedule::all(conn).await;
        let schedules = session.call("list the schedules", schedules).await?;
        Ok(Self { topics, schedules })
    }

    fn topic(&self, name: &TopicName) -> Option<&Topic> {
        self.topics.iter().find(|topic| topic.name == *name)
    }
}

impl Plan {
    /// Compares what is declared with what the database holds.
    ///
    /// # Errors
    /// A declaration that is wrong, or that no change can bring about; a database failure.
    pub(super) async fn of(
        session: &mut Session,
        declared: &[Declaration],
        prune: bool,
    ) -> anyhow::Result<Self> {
        let present = Present::read(session).await?;
        let of = |table: &'static str| declared.iter().filter(move |it| it.table == table);
        let mut plan = Self::default();
        let topics: anyhow::Result<Vec<NewTopic>> =
            of("topics").map(|it| it.arguments(&[])).collect();
        let target = |topic: &NewTopic| topic.settings().dead_letter_topic;
        for topic in in_order(topics?, |topic| &topic.name, target) {
            plan.topic(&present, topic)?;
        }
        for declaration in of("groups") {
            let group: NewGroup = declaration.arguments(&[])?;
            group.check().with_context(|| declaration.place())?;
            plan.group(&present, group)?;
        }
        for declaration in of("schedules") {
            let schedule = declaration.arguments::<cron::set::Set>(&["topic"])?.schedule();
            let schedule = schedule.with_context(|| declaration.place())?;
            let topic = schedule.topic.as_str();
            if present.topic(&schedule.topic).is_none() && of("topics").all(|it| it.name != topic) {
                bail!(
                    "{}: there is no topic '{topic}': declare [topics.{topic}]",
                    declaration.place()
                );
            }
            plan.schedule(&present, schedule);
        }
        if prune {
            plan.prune(present, declared);
        }
        Ok(plan)
    }

    fn topic(&mut self, present: &Present, topic: NewTopic) -> anyhow::Result<()> {
        let Some(found) = present.topic(&topic.name) else {
            self.steps.push(Step::CreateTopic(Box::new(topic)));
            return Ok(());
        };
        topic.refuse_other_kind(found)?;
        self.set(found, topic.settings());
        Ok(())
    }

    fn group(&mut self, present: &Present, group: NewGroup) -> anyhow::Result<()> {
        let Some(found) = present.topic(&group.name) else {
            self.steps.push(Step::CreateGroup(Box::new(group)));
            return Ok(());
        };
        group.refuse_other_kind(found)?;
        // A group leaves a trace of what its stream does.
        self.set(found, TopicSettings { trace: found.settings.trace, ..group.settings() });
        Ok(())
    }

    fn set(&mut self, found: &Topic, wanted: TopicSettings) {
        if wanted == found.settings {
            self.unchanged += 1;
        } else {
            self.steps.push(Step::Set(Box::new(found.clone()), Box::new(wanted)));
        }
    }

    fn schedule(&mut self, present: &Present, schedule: Schedule) {
        let found = present.schedules.iter().find(|state| state.schedule.name == schedule.name);
        match found {
            None => self.steps.push(Step::CreateSchedule(Box::new(schedule))),
            Some(state) if state.schedule == schedule => self.unchanged += 1,
            Some(_) => self.steps.push(Step::SetSchedule(Box::new(schedule))),
        }
    }

    /// Deletes what is not declared: schedules, then groups, then topics.
    fn prune(&mut self, present: Present, declared: &[Declaration]) {
        let names = |table: &str| -> BTreeSet<&str> {
            let of_table = declared.iter().filter(|it| it.table == table);
            of_table.map(|it| it.name.as_str()).collect()
        };
        let (topics, groups, schedules) = (names("topics"), names("groups"), names("schedules"));
        for ScheduleState { schedule: Schedule { name, .. }, .. } in present.schedules {
            if !schedules.contains(name.as_str()) {
                self.steps.push(Step::DeleteSchedule(name));
            }
        }
        let (of_streams, others): (Vec<_>, Vec<_>) =
            present.topics.into_iter().partition(|topic| topic.of_stream().is_some());
        let undeclared = |topic: &Topic| {
            let name = topic.name.as_str();
            !topics.contains(name) && !groups.contains(name)
        };
        // A topic that others name as their dead-letter topic can only be deleted after them.
        let target = |topic: &Topic| topic.settings.dead_letter_topic.clone();
        let others = in_order(others, |topic| &topic.name, target).into_iter().rev();
        let deleted = of_streams.into_iter().chain(others).filter(undeclared);
        self.steps.extend(deleted.map(|topic| Step::Delete(Box::new(topic))));
    }
}

/// Puts each topic behind the one that its dead letters go to.
fn in_order<T>(
    mut topics: Vec<T>,
    name: impl Fn(&T) -> &TopicName,
    target: impl Fn(&T) -> Option<TopicName>,
) -> Vec<T> {
    let mut ordered = Vec::with_capacity(topics.len());
    while !topics.is_empty() {
        let names: BTreeSet<_> = topics.iter().map(|topic| name(topic).clone()).collect();
        let waits = |topic: &T| target(topic).is_some_and(|target| names.contains(&target));
        let (later, now): (Vec<_>, Vec<_>) = topics.into_iter().partition(waits);
        // A circle stays as it is: the first of it is refused.
        if now.is_empty() {
            ordered.extend(later);
            break;
        }
        ordered.extend(now);
        topics = later;
    }
    ordered
}
