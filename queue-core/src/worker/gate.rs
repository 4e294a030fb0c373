//! The gate of a topic with limits: while a claim is inside, it is the topic's only claim, so its
//! counts hold until it has committed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::connection::Connection;
use crate::model::{Delivery, Limits, Result, RowId, TopicId};
use crate::store::claim::Fence;
use crate::store::limit;
use crate::store::moves::equal;
use crate::store::row_set::RowSet;

/// A claim within its topic's gate, in a transaction.
#[derive(Debug)]
pub(super) struct Gate {
    topic: TopicId,
    limits: Limits,
    lead: Duration,
    running: u32,
    of_keys: HashMap<Vec<u8>, u32>,
    /// Rows that have a slot.
    held: HashSet<RowId>,
    admitted: u32,
}

/// Waits for the topic's gate, and locks it until the transaction ends.
pub(super) async fn lock(conn: &mut impl Connection, topic: TopicId) -> Result<()> {
    if !limit::lock(conn, topic).await? {
        limit::make(conn, topic).await?;
        limit::lock(conn, topic).await?;
    }
    Ok(())
}

impl Gate {
    /// Waits for the gate, and counts what is claimed.
    pub(super) async fn enter(
        conn: &mut impl Connection,
        topic: TopicId,
        limits: Limits,
    ) -> Result<Self> {
        lock(conn, topic).await?;
        let mut gate = Self::new(topic, limits);
        if limits.bounds_running() {
            let slots = limit::slots(conn, topic).await?;
            let (held, free): (Vec<_>, Vec<_>) = slots.into_iter().partition(|slot| slot.is_held);
            if !free.is_empty() {
                let rows: RowSet = free.iter().map(|slot| slot.row).collect();
                equal("claim: free slots", rows.len(), limit::free(conn, topic, &rows).await?)?;
            }
            for slot in held {
                gate.reserve(slot.key.as_deref());
                gate.held.insert(slot.row);
            }
        }
        if let Some(rate) = limits.rate {
            gate.lead = limit::lead(conn, topic).await?;
            if gate.lead > rate.period() {
                // The server's clock was set back, or the period was shortened: claims would wait
                // for a time that the current rate never asks for.
                limit::shorten(conn, topic, rate.period()).await?;
                gate.lead = rate.period();
            }
        }
        Ok(gate)
    }

    /// A gate with nothing claimed yet.
    pub(super) fn new(topic: TopicId, limits: Limits) -> Self {
        Self {
            topic,
            limits,
            lead: Duration::ZERO,
            running: 0,
            of_keys: HashMap::new(),
            held: HashSet::new(),
            admitted: 0,
        }
    }

    /// How many more messages may be claimed, if their keys have room.
    pub(super) fn room(&self) -> u32 {
        let running = self.running + self.admitted;
        let bounded = |max: u32| max.saturating_sub(running);
        let by_number = self.limits.max_running.map_or(u32::MAX, |max| bounded(max.get()));
        let rate = self.limits.rate;
        let by_rate = rate.map_or(u32::MAX, |rate| rate.room(self.lead));
        by_number.min(by_rate.saturating_sub(self.admitted))
    }

    /// Whether one more message of the key may be claimed.
    pub(super) fn has_room(&self, key: Option<&[u8]>) -> bool {
        let max = self.limits.max_running_per_key;
        let of_key = || key.and_then(|key| self.of_keys.get(key)).copied().unwrap_or(0);
        self.room() > 0 && (key.is_none() || max.is_none_or(|max| of_key() < max.get()))
    }

    /// Reserves room for a message of the key.
    pub(super) fn reserve(&mut self, key: Option<&[u8]>) {
        self.running += 1;
        self.count(key);
    }

    /// Admits a message of the key, if there is room for it.
    pub(super) fn admits(&mut self, key: Option<&[u8]>) -> bool {
        let admits = self.has_room(key);
        if admits {
            self.admitted += 1;
            self.count(key);
        }
        admits
    }

    fn count(&mut self, key: Option<&[u8]>) {
        if let Some(key) = key {
            *self.of_keys.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// Whether keys have to be checked.
    pub(super) fn looks_at_keys(&self) -> bool {
        self.limits.max_running_per_key.is_some()
    }

    /// Takes slots, and permits of the rate, for the rows that the transaction has made its claim's
    /// own.
    pub(super) async fn book(
        &self,
        conn: &mut impl Connection,
        fence: Fence,
        claimed: &[Delivery],
    ) -> Result<()> {
        let Some(first) = claimed.first() else { return Ok(()) };
        if self.limits.bounds_running() {
            let rows: RowSet = claimed.iter().map(|delivery| delivery.row).collect();
            // Given back between the read of the slots and the read of the ready rows.
            let again: RowSet = rows.iter().filter(|row| self.held.contains(row)).collect();
            if !again.is_empty() {
                limit::free(conn, self.topic, &again).await?;
            }
            let taken = limit::take(conn, fence, self.topic, first.priority, &rows).await?;
            equal("claim: take slots", rows.len(), taken)?;
        }
        if let Some(rate) = self.limits.rate {
            let claimed = u32::try_from(claimed.len()).unwrap_or(u32::MAX);
            limit::spend(conn, self.topic, rate.time_of(claimed)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(limits: Limits) -> Gate {
        Gate::new(TopicId(1), limits)
    }

    #[test]
    fn what_runs_and_what_is_let_through_count_alike() {
        let max_running = std::num::NonZeroU32::new(3);
        let mut gate = gate(Limits { max_running, ..Limits::default() });
        gate.reserve(None);
        assert_eq!(gate.room(), 2);
        assert!(gate.admits(Some(b"a")) && gate.admits(Some(b"a")));
        assert!(!gate.admits(Some(b"b")));
    }

    #[test]
    fn a_full_key_holds_up_no_other_and_no_message_without_one() {
        let max_running_per_key = std::num::NonZeroU32::new(1);
        let mut gate = gate(Limits { max_running_per_key, ..Limits::default() });
        gate.reserve(Some(b"a"));
        assert!(!gate.admits(Some(b"a")));
        assert!(gate.admits(Some(b"b")) && !gate.admits(Some(b"b")));
        assert!(gate.admits(None) && gate.admits(None));
    }

    #[test]
    fn a_rate_bounds_what_is_let_through_and_not_what_runs() {
        let rate = Some("2/1s".parse().expect("a rate"));
        let mut gate = gate(Limits { rate, ..Limits::default() });
        gate.reserve(None);
        assert!(gate.admits(None) && gate.admits(None) && !gate.admits(None));
    }
}
