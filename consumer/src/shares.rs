//! One concurrency for all topics of a consumer, shared by their weights.
//!
//! The handlers' time is shared. Each topic accounts for the time of its slots, divided by its
//! weight, and a free slot goes to the topic that wants one and has used least. So slow handlers
//! get no larger share than fast ones, no topic starves, and other topics use what one does not
//! want.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// A topic that was idle for this long gets no extra slots for that time.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// The slots of a consumer, one for each handler that may run at once.
#[derive(Debug, Clone)]
pub(crate) struct Shares(Arc<Table>);

#[derive(Debug)]
struct Table {
    slots: usize,
    shares: Mutex<Vec<TopicShare>>,
}

/// What one topic wants and has used.
#[derive(Debug)]
struct TopicShare {
    weight: f64,
    running: usize,
    /// Whether it has work and was refused a slot.
    wants: bool,
    /// The seconds of slot time that it has used, divided by its weight.
    used: f64,
    /// The time up to which `used` is counted.
    counted: Instant,
    /// When it last had something to do.
    active: Instant,
    turn: Arc<Notify>,
}

impl TopicShare {
    fn is_active(&self) -> bool {
        self.wants || self.running > 0
    }

    fn count(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.counted);
        #[expect(clippy::cast_precision_loss, reason = "no process runs 2^52 handlers")]
        let running = self.running as f64;
        self.used += running * time.as_secs_f64() / self.weight;
        self.counted = self.counted.max(now);
        if self.is_active() {
            self.active = self.counted;
        }
    }
}

/// One topic's access to the slots.
#[derive(Debug)]
pub(crate) struct Share {
    table: Arc<Table>,
    topic: usize,
    turn: Arc<Notify>,
}

/// The right to run a handler, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    table: Arc<Table>,
    topic: usize,
}

impl Shares {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(Table { slots, shares: Mutex::default() }))
    }

    /// Adds a topic.
    pub(crate) fn join(&self, weight: u32) -> Share {
        let (turn, now) = (Arc::new(Notify::new()), Instant::now());
        let mut shares = self.0.shares();
        shares.push(TopicShare {
            weight: f64::from(weight.max(1)),
            running: 0,
            wants: false,
            used: 0.0,
            counted: now,
            active: now,
            turn: Arc::clone(&turn),
        });
        Share { table: Arc::clone(&self.0), topic: shares.len() - 1, turn }
    }
}

impl Table {
    fn shares(&self) -> MutexGuard<'_, Vec<TopicShare>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_free(&self, shares: &[TopicShare]) -> bool {
        shares.iter().map(|one| one.running).sum::<usize>() < self.slots
    }

    /// Wakes the topic whose turn it is.
    fn pass_on(&self, shares: &[TopicShare]) {
        if let (true, Some(next)) = (self.has_free(shares), next(shares)) {
            shares[next].turn.notify_one();
        }
    }
}

/// Returns the topic that wants a slot and has used least.
fn next(shares: &[TopicShare]) -> Option<usize> {
    let wanting = shares.iter().enumerate().filter(|(_, one)| one.wants);
    wanting.min_by(|(_, a), (_, b)| a.used.total_cmp(&b.used)).map(|(topic, _)| topic)
}

impl Share {
    /// Returns how many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.table.slots
    }

    /// Takes a slot if one is free and it is this topic's turn; otherwise the topic waits for one
    /// from now on.
    pub(crate) fn take(&self, now: Instant) -> Option<Slot> {
        let mut shares = self.table.shares();
        shares.iter_mut().for_each(|one| one.count(now));
        let others = shares.iter().enumerate().filter(|(topic, _)| *topic != self.topic);
        let others: Vec<_> = others.map(|(_, one)| (one.is_active(), one.used)).collect();
        let active = others.iter().filter(|(is_active, _)| *is_active).map(|(_, used)| *used);
        // While no other topic has work, the topic starts level with the one that has used most.
        // Otherwise, once that one has work again, this topic would get every slot for as long as
        // it was away.
        let most = others.iter().map(|(_, used)| *used).max_by(f64::total_cmp);
        let floor = active.min_by(f64::total_cmp).or(most);
        let own = &mut shares[self.topic];
        let was_away = now.saturating_duration_since(own.active) > FORGOTTEN;
        if let (true, Some(floor)) = (was_away && !own.is_active(), floor) {
            own.used = own.used.max(floor);
        }
        own.wants = true;
        own.active = own.counted;
        if !self.table.has_free(&shares) || next(&shares) != Some(self.topic) {
            self.table.pass_on(&shares);
            return None;
        }
        let own = &mut shares[self.topic];
        (own.wants, own.running) = (false, own.running + 1);
        self.table.pass_on(&shares);
        Some(Slot { table: Arc::clone(&self.table), topic: self.topic })
    }

    /// Declares that the topic wants no slot now.
    pub(crate) fn content(&self) {
        let mut shares = self.table.shares();
        if std::mem::take(&mut shares[self.topic].wants) {
            self.table.pass_on(&shares);
        }
    }

    /// Waits until it may be the topic's turn.
    pub(crate) async fn turn(&self) {
        self.turn.notified().await;
    }

    fn give_back(table: &Table, topic: usize, now: Instant) {
        let mut shares = table.shares();
        shares.iter_mut().for_each(|one| one.count(now));
        shares[topic].running -= 1;
        table.pass_on(&shares);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.content();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        Share::give_back(&self.table, self.topic, Instant::now());
    }
}

#[cfg(test)]
mod tests;
