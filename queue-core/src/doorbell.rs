//! The doorbell: wakes consumers as soon as a message is committed, by following the server's
//! binary log as a replica would.
//!
//! Each process has one follower, which its consumers share. The follower rings through [`wake`]
//! for the topics registered with [`listen`](Doorbell::listen). An event that it cannot read counts
//! as a ring for every topic. A ring may come before the row is visible: MySQL sends a transaction
//! once it is in the log, and commits it afterwards.
//!
//! The doorbell counts as [ringing](Doorbell::ringing) only while the follower receives the beats
//! that this process's own workers write. This detects a server that leaves this database out of
//! its log, or one that has become a replica and logs nothing. Consumers poll slowly only while the
//! doorbell is ringing.

mod event;
mod follower;
mod rows;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::stream::Stream;
use crate::connection::ServerUrl;
use crate::model::{Result, Topic, TopicId, TopicName};
use crate::wake;

/// A share in the process's follower. The follower ends with the last share.
#[derive(Debug, Clone)]
pub struct Doorbell(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    house: Arc<House>,
    _stop: DropGuard,
}

/// The state shared by the follower and its listeners.
#[derive(Debug)]
struct House {
    url: ServerUrl,
    topics: Mutex<HashMap<TopicId, TopicName>>,
    ringing: watch::Sender<bool>,
    changes: watch::Sender<u64>,
}

/// The follower of each database, while a share in it exists.
static FOLLOWERS: LazyLock<Mutex<HashMap<String, Weak<Owned>>>> = LazyLock::new(Mutex::default);

impl Doorbell {
    /// Returns the follower of the database of `url`: the one that this process already has, or a
    /// new one. It connects by itself, and reconnects for as long as it lives. `beat` is how often
    /// this process writes something that the follower should receive.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn follow(url: &ServerUrl, beat: Duration) -> Result<Self> {
        let place = format!("{}/{}", url.server(), url.database());
        let mut followers = FOLLOWERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owned) = followers.get(&place).and_then(Weak::upgrade) {
            return Ok(Self(owned));
        }
        let stop = CancellationToken::new();
        let house = Arc::new(House {
            url: url.clone(),
            topics: Mutex::default(),
            ringing: watch::Sender::new(false),
            changes: watch::Sender::new(0),
        });
        follower::start(Arc::clone(&house), beat, stop.clone())?;
        let owned = Arc::new(Owned { house, _stop: stop.drop_guard() });
        followers.insert(place, Arc::downgrade(&owned));
        Ok(Self(owned))
    }

    /// Rings for `topic` from now on, and for its stream if it is a group. Call it again when the
    /// topic has another id.
    pub fn listen(&self, topic: &Topic) {
        let mut topics = self.0.house.topics();
        if let (Some(id), Some(stream)) = (topic.of_stream(), topic.name.stream()) {
            topics.insert(id, stream);
        }
        topics.insert(topic.id, topic.name.clone());
    }

    /// Whether the doorbell is ringing. While it is, polling is only a safety net.
    #[must_use]
    pub fn ringing(&self) -> watch::Receiver<bool> {
        self.0.house.ringing.subscribe()
    }

    /// Counts changes of floors and topics, which consumers must notice besides new messages.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.house.changes.subscribe()
    }
}

/// Checks whether the binary log of the database's server can be followed.
///
/// # Errors
/// [`Error::NoDoorbell`](crate::Error::NoDoorbell) with what is missing and the fix; as
/// [`connect()`](crate::connection::connect()).
pub async fn trial(url: &ServerUrl) -> Result<()> {
    Stream::open(url).await.map(|_| ())
}

impl House {
    fn topics(&self) -> std::sync::MutexGuard<'_, HashMap<TopicId, TopicName>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, topic: TopicId) {
        let name = self.topics().get(&topic).cloned();
        if let Some(name) = name {
            crate::telemetry::rang(name.as_str());
            wake::wake(&self.url, &name);
        }
    }

    fn ring_all(&self) {
        let topics: Vec<_> = self.topics().keys().copied().collect();
        topics.into_iter().for_each(|topic| self.ring(topic));
    }
}
