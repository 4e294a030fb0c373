//! Changes of many messages. Each is a run of short transactions, which continues even if no client
//! watches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rowmq_core::connection::Session;
use rowmq_core::model::{Action, Change};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::{Topic, TopicName, dead};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::database::Database;
use crate::refusal::Refusal;

/// How many may run at once: each has a connection of its own.
const AT_ONCE: usize = 4;

/// How many runs are remembered.
const KEPT: usize = 100;

/// How far a run has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Stage {
    /// It is running.
    Running {
        /// Dead letters looked at.
        seen: usize,
        /// Those that were changed so far.
        done: usize,
    },
    /// It has finished.
    Ended {
        /// Dead letters that were changed.
        done: usize,
    },
    /// It has stopped early; what was changed stays changed.
    Failed {
        /// Dead letters that were changed, as far as is known.
        done: usize,
        /// Why, and what to do next.
        failure: String,
    },
}

impl Stage {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    pub(crate) fn done(&self) -> usize {
        match self {
            Self::Running { done, .. } | Self::Ended { done } | Self::Failed { done, .. } => *done,
        }
    }
}

/// A change of many messages.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: Uuid,
    pub(crate) action: Action,
    pub(crate) topic: TopicName,
    pub(crate) by: String,
    /// How many messages it may concern, as counted when it started.
    pub(crate) about: u64,
    stage: watch::Sender<Stage>,
}

impl Run {
    pub(crate) fn stage(&self) -> Stage {
        self.stage.borrow().clone()
    }
}

/// The running and the recent runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    known: Mutex<VecDeque<Arc<Run>>>,
    tasks: TaskTracker,
}

impl Runs {
    pub(crate) fn find(&self, id: Uuid) -> Option<Arc<Run>> {
        self.all().into_iter().find(|run| run.id == id)
    }

    /// All runs, the newest first.
    pub(crate) fn all(&self) -> Vec<Arc<Run>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits until no run is active.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Starts to redrive or to purge the dead letters that match the filter, as `change` says.
    pub(crate) fn begin(
        &self,
        database: &Database,
        topic: Topic,
        filter: DeadFilter,
        change: Change,
        about: u64,
    ) -> Result<Arc<Run>, Refusal> {
        let run = Arc::new(Run {
            id: Uuid::new_v4(),
            action: change.action,
            topic: topic.name.clone(),
            by: change.actor.name.clone(),
            about,
            stage: watch::Sender::new(Stage::Running { seen: 0, done: 0 }),
        });
        self.remember(&run)?;
        let (database, working) = (database.clone(), Arc::clone(&run));
        self.tasks.spawn(async move {
            let running = Arc::clone(&working);
            let ended = database
                .run_long(move |session| Box::pin(work(session, topic, filter, change, running)))
                .await;
            working.stage.send_modify(|stage| {
                *stage = match ended {
                    Ok(done) => Stage::Ended { done },
                    Err(error) => Stage::Failed {
                        done: stage.done(),
                        failure: rowmq_service::process::sentence(&error.into()),
                    },
                };
            });
        });
        Ok(run)
    }

    fn remember(&self, run: &Arc<Run>) -> Result<(), Refusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.iter().filter(|run| run.stage().is_running()).count() >= AT_ONCE {
            return Err(Refusal::Wrong(format!(
                "{AT_ONCE} changes of many messages are under way: wait until one of them has ended."
            )));
        }
        known.push_front(Arc::clone(run));
        known.truncate(KEPT);
        Ok(())
    }
}

async fn work(
    session: &mut Session,
    topic: Topic,
    filter: DeadFilter,
    change: Change,
    run: Arc<Run>,
) -> rowmq_core::Result<usize> {
    let tell = |progress: dead::Progress| {
        run.stage.send_replace(Stage::Running { seen: progress.seen, done: progress.done });
    };
    match change.action {
        Action::PurgeDead => dead::purge(session, topic.id, &filter, Some(&change), tell).await,
        _ => dead::redrive(session, &topic, &filter, Some(&change), tell).await,
    }
}
