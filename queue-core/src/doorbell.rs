//! The doorbell: wakes an idle consumer a few milliseconds after a message is committed, without a
//! privilege, a port, or polling.
//!
//! One process of the fleet, the sweeper, looks for new messages on behalf of all idle workers, and
//! wakes one of them for what it finds. A bell is a name lock in the server that the sweeper holds;
//! see [`store::doorbell`](crate::store::doorbell). Each worker has a session that waits for its
//! bell while at least one of its topics is idle.
//!
//! The doorbell counts as [ringing](Doorbell::ringing) only while a sweeper holds the bell. Where
//! none does, or where locks do not reach it (another node of a cluster, a proxy), consumers poll.

mod listener;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::actor;
use crate::connection::ServerUrl;
use crate::model::{Result, Topic, TopicId, TopicName, WorkerId};
use crate::{telemetry, wake};

/// The doorbell of a consumer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Doorbell(Arc<Shared>);

/// The state shared by the listener and those whom it wakes.
#[derive(Debug)]
struct Shared {
    url: ServerUrl,
    /// How long the listener relies on the sweeper before it looks for itself.
    safety: Duration,
    topics: Mutex<HashMap<TopicId, Target>>,
    ringing: watch::Sender<bool>,
    rings: watch::Sender<u64>,
    /// How many of the topics wait for messages.
    idle: watch::Sender<usize>,
}

/// A topic that the doorbell rings for.
#[derive(Debug, Clone)]
struct Target {
    name: TopicName,
    is_broadcast: bool,
}

impl Doorbell {
    /// Makes a doorbell for the consumers of the database of `url`. A listener that has heard
    /// nothing for `safety` looks for messages itself.
    #[must_use]
    pub fn new(url: &ServerUrl, safety: Duration) -> Self {
        Self(Arc::new(Shared {
            url: url.clone(),
            safety,
            topics: Mutex::default(),
            ringing: watch::Sender::new(false),
            rings: watch::Sender::new(0),
            idle: watch::Sender::new(0),
        }))
    }

    /// Rings for `topic` from now on. Call it again when the topic has another id.
    pub fn listen(&self, topic: &Topic) {
        let target = Target { name: topic.name.clone(), is_broadcast: topic.broadcast().is_some() };
        let mut topics = self.0.topics();
        topics.retain(|_, known| known.name != target.name);
        topics.insert(topic.id, target);
    }

    /// Whether a sweeper holds the worker's bell. While one does, polling is only a safety net.
    #[must_use]
    pub fn ringing(&self) -> watch::Receiver<bool> {
        self.0.ringing.subscribe()
    }

    /// Counts the rings. One may also mean that rules (pauses, limits, traces) have changed.
    #[must_use]
    pub fn rings(&self) -> watch::Receiver<u64> {
        self.0.rings.subscribe()
    }

    /// Returns a topic's share in the decision whether the worker waits for its bell.
    #[must_use]
    pub fn idleness(&self) -> Idleness {
        Idleness { shared: Arc::clone(&self.0), is_idle: false }
    }

    /// Starts the listener of a worker, on a thread and a session of its own, so that a handler
    /// that blocks its runtime delays no ring. It ends with `ended`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn attend(
        &self,
        worker: WorkerId,
        instance: Uuid,
        ended: CancellationToken,
    ) -> Result<()> {
        let shared = Arc::clone(&self.0);
        actor::spawn("rowmq-doorbell", move || {
            listener::Listener::new(shared, worker, instance).run(ended)
        })
    }
}

/// Whether a topic waits for messages. The worker waits for its bell while one of its topics does,
/// so the sweeper wakes no worker whose topics are all busy.
#[derive(Debug)]
pub struct Idleness {
    shared: Arc<Shared>,
    is_idle: bool,
}

impl Idleness {
    /// Says whether the topic waits for messages and has room for them.
    pub fn set(&mut self, is_idle: bool) {
        if std::mem::replace(&mut self.is_idle, is_idle) == is_idle {
            return;
        }
        self.shared.idle.send_modify(|n| if is_idle { *n += 1 } else { *n -= 1 });
    }
}

impl Drop for Idleness {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl Shared {
    fn topics(&self) -> MutexGuard<'_, HashMap<TopicId, Target>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topics that it rings for, in order.
    fn ids(&self) -> Vec<TopicId> {
        let mut ids: Vec<_> = self.topics().keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn ring(&self, topic: &Target) {
        telemetry::rang(topic.name.as_str());
        wake::wake(&self.url, &topic.name);
    }

    /// Wakes the consumers of these topics, and the members of every broadcast group: only they
    /// know how far they have read.
    fn ring_for(&self, ready: &[TopicId]) {
        let topics = self.topics();
        let is_rung = |(id, topic): &(&TopicId, &Target)| topic.is_broadcast || ready.contains(id);
        topics.iter().filter(is_rung).for_each(|(_, topic)| self.ring(topic));
    }

    fn set_ringing(&self, now: bool) {
        telemetry::doorbell_ringing(now);
        self.ringing.send_if_modified(|ringing| std::mem::replace(ringing, now) != now);
    }
}
