use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::value::{Row, Value};
use crate::sql::Definition;

/// A primary key.
pub(crate) type Key = Vec<Value>;

/// A session, by its connection id.
pub(crate) type Id = u64;

/// The row at a key.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The version that every session reads.
    pub(crate) committed: Option<Row>,
    /// The owner's uncommitted version; `Some(None)` when it has deleted the row.
    pub(crate) pending: Option<Option<Row>>,
    /// The session that has locked it.
    pub(crate) owner: Option<Id>,
    /// The sessions that wait for it, in order.
    pub(crate) waiters: VecDeque<Id>,
}

impl Slot {
    /// Returns the row as `session` reads it.
    pub(crate) fn seen_by(&self, session: Id) -> Option<&Row> {
        match &self.pending {
            Some(pending) if self.owner == Some(session) => pending.as_ref(),
            _ => self.committed.as_ref(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.committed.is_none()
            && self.pending.is_none()
            && self.owner.is_none()
            && self.waiters.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) definition: Definition,
    pub(crate) slots: BTreeMap<Key, Slot>,
    /// The next `AUTO_INCREMENT` value.
    pub(crate) next: i128,
}

impl Table {
    pub(crate) fn new(definition: Definition) -> Self {
        Self { definition, slots: BTreeMap::new(), next: 1 }
    }

    pub(crate) fn key_of(&self, row: &Row) -> Key {
        self.definition.key.iter().map(|place| row[*place].clone()).collect()
    }

    /// Returns the keys that begin with `prefix`, in order.
    pub(crate) fn keys(&self, prefix: &[Value]) -> Vec<Key> {
        let from = Bound::Included(prefix.to_vec());
        let range = self.slots.range((from, Bound::Unbounded));
        range.map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// Returns the columns of the index that a scan with this hint, or without one, reads.
    pub(crate) fn index(
        &self,
        hint: Option<&str>,
        mentioned: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let definition = &self.definition;
        let by_name = |name: &str| {
            definition.indexes.iter().find(|(known, ..)| known == name).map(|(_, places, _)| places)
        };
        let own = match hint {
            Some("PRIMARY") => None,
            Some(name) => Some(by_name(name).expect("an index")),
            None if mentioned(definition.key[0]) => None,
            None => {
                definition.indexes.iter().map(|(_, places, _)| places).find(|p| mentioned(p[0]))
            }
        };
        // A secondary index ends with the primary key.
        own.into_iter().flatten().chain(&definition.key).copied().collect()
    }
}
