//! The bells of the workers that listen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowmq_core::Result;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{TopicId, WorkerId};
use rowmq_core::store::doorbell::{self, BELLS_AT_ONCE, Listener};
use tokio::time::Instant;

/// How often the workers' topics are read again: a topic may have been deleted and made again.
const READ_EVERY: Duration = Duration::from_secs(5);

/// The pause after a bell could not be taken, or was to be rung and its worker did not wait.
const AGAIN: Duration = Duration::from_millis(25);

/// The bells, and which of them this session holds.
#[derive(Debug, Default)]
pub(super) struct Bells {
    bells: BTreeMap<WorkerId, Bell>,
    /// The workers that listen to each topic, in the order in which they are rung next.
    listening: BTreeMap<TopicId, Vec<WorkerId>>,
    read_at: Option<Instant>,
}

#[derive(Debug)]
struct Bell {
    listener: Listener,
    topics: Vec<TopicId>,
    /// Whether this session holds the lock.
    is_held: bool,
    /// Whether the worker is to be rung as soon as it waits.
    is_wanted: bool,
    /// After a try to take or to ring it in vain, it is not tried before.
    not_before: Option<Instant>,
}

impl Bell {
    fn may_be_tried(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }
}

impl Bells {
    pub(super) fn is_empty(&self) -> bool {
        self.bells.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bells.len()
    }

    /// The topics that any worker listens to.
    pub(super) fn topics(&self) -> impl Iterator<Item = TopicId> {
        self.listening.keys().copied()
    }

    pub(super) fn is_listened_to(&self, topic: TopicId) -> bool {
        self.listening.contains_key(&topic)
    }

    /// Reads which workers listen, and from time to time to what. Returns whether that was read.
    pub(super) async fn refresh(&mut self, session: &mut Session, now: Instant) -> Result<bool> {
        let list = async |conn: &mut Link| doorbell::listeners(conn).await;
        let listeners = session.call("list the listeners", list).await?;
        let alive: BTreeSet<_> = listeners.iter().map(|listener| listener.worker).collect();
        let gone: Vec<_> = self.bells.keys().copied().filter(|id| !alive.contains(id)).collect();
        let known = |of: &Listener| self.bells.get(&of.worker).map(|bell| bell.listener);
        let reads = self.read_at.is_none_or(|at| now >= at + READ_EVERY);
        if !reads && gone.is_empty() && listeners.iter().all(|of| known(of) == Some(*of)) {
            return Ok(false);
        }
        for id in gone {
            let Some(bell) = self.bells.remove(&id) else { continue };
            let drop_bell = async |conn: &mut Link| doorbell::drop_bell(conn, bell.listener).await;
            session.call("let go of a bell", drop_bell).await?;
        }
        for listener in listeners {
            let known = self.bells.get(&listener.worker).map(|bell| bell.listener);
            if !reads && known == Some(listener) {
                continue;
            }
            let read = async |conn: &mut Link| doorbell::topics_of(conn, listener.worker).await;
            let topics = session.call("read a listener's topics", read).await?;
            let bell = self.bells.entry(listener.worker).or_insert(Bell {
                listener,
                topics: Vec::new(),
                is_held: false,
                is_wanted: false,
                not_before: None,
            });
            (bell.listener, bell.topics) = (listener, topics);
            // A lock may have been lost without an error: it is taken again, or found to be held.
            bell.is_held = false;
        }
        if reads {
            self.read_at = Some(now);
        }
        self.listening.clear();
        for (id, bell) in &self.bells {
            for topic in &bell.topics {
                self.listening.entry(*topic).or_default().push(*id);
            }
        }
        Ok(true)
    }

    /// Takes the bells that this session does not hold: of new workers, and of those that have been
    /// rung.
    pub(super) async fn take_missing(&mut self, session: &mut Session, now: Instant) -> Result<()> {
        let missing = |bell: &&mut Bell| !bell.is_held && bell.may_be_tried(now);
        for bell in self.bells.values_mut().filter(missing) {
            let take = async |conn: &mut Link| doorbell::take(conn, bell.listener).await;
            bell.is_held = session.call("take a bell", take).await?;
            bell.not_before = (!bell.is_held).then(|| now + AGAIN);
        }
        Ok(())
    }

    /// Makes every worker be rung as soon as it waits.
    pub(super) fn want_all(&mut self) {
        self.bells.values_mut().for_each(|bell| bell.is_wanted = true);
    }

    /// The same for the workers that listen to this topic.
    pub(super) fn want(&mut self, topic: TopicId) {
        for id in self.listening.get(&topic).into_iter().flatten() {
            self.bells.entry(*id).and_modify(|bell| bell.is_wanted = true);
        }
    }

    /// Rings the workers that are to be rung, of those that wait. Returns how many it has woken.
    pub(super) async fn ring_wanted(&mut self, session: &mut Session, now: Instant) -> Result<u64> {
        let is_due = |bell: &Bell| bell.is_wanted && bell.may_be_tried(now);
        let due = self.bells.iter().filter(|(_, bell)| is_due(bell));
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        let mut woken = 0;
        for id in due {
            if self.ring_first(session, &[id]).await?.is_some() {
                woken += 1;
            } else if let Some(bell) = self.bells.get_mut(&id) {
                bell.not_before = Some(now + AGAIN);
            }
        }
        Ok(woken)
    }

    /// Rings one waiting worker that listens to this topic. Returns whether there was one.
    pub(super) async fn ring_one(&mut self, session: &mut Session, topic: TopicId) -> Result<bool> {
        let listening = self.listening.get(&topic).cloned().unwrap_or_default();
        for some in listening.chunks(BELLS_AT_ONCE) {
            let Some(rung) = self.ring_first(session, some).await? else { continue };
            // It is the last to be rung next time.
            let order = self.listening.entry(topic).or_default();
            order.retain(|id| *id != rung);
            order.push(rung);
            return Ok(true);
        }
        Ok(false)
    }

    /// Rings the first of these workers that waits.
    async fn ring_first(
        &mut self,
        session: &mut Session,
        workers: &[WorkerId],
    ) -> Result<Option<WorkerId>> {
        let held = |id: &WorkerId| self.bells.get(id).filter(|bell| bell.is_held);
        let held: Vec<_> = workers.iter().filter_map(held).map(|bell| bell.listener).collect();
        if held.is_empty() {
            return Ok(None);
        }
        let ring = async |conn: &mut Link| doorbell::ring(conn, &held).await;
        let Some(rung) = session.call("ring", ring).await? else { return Ok(None) };
        if let Some(bell) = self.bells.get_mut(&rung) {
            bell.is_wanted = false;
            // The worker lets go of it at once.
            let take = async |conn: &mut Link| doorbell::take(conn, bell.listener).await;
            bell.is_held = session.call("take a bell", take).await?;
        }
        Ok(Some(rung))
    }
}
