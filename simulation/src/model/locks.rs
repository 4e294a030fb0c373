//! Row locks, name locks, and the sessions that wait for them.

use std::collections::VecDeque;

use super::engine::Engine;
use super::table::{Id, Key};
use super::value::Value;

/// Why a statement fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Deadlock,
    LockWait,
    Duplicate,
    ReadOnly,
    Check,
    OutOfRange,
    Interrupted,
    Unknown,
    NoSavepoint,
}

impl Failure {
    /// Returns the server's error text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Deadlock => "Deadlock found when trying to get lock; try restarting transaction",
            Self::LockWait => "Lock wait timeout exceeded; try restarting transaction",
            Self::Duplicate => "Duplicate entry for key",
            Self::ReadOnly => {
                "The MariaDB server is running with the --read-only option so it cannot execute this statement"
            }
            Self::Check => "CONSTRAINT failed",
            Self::OutOfRange => "BIGINT UNSIGNED value is out of range",
            Self::Interrupted => "Query execution was interrupted",
            Self::Unknown => "Unknown thread id",
            Self::NoSavepoint => "SAVEPOINT does not exist",
        }
    }
}

/// Why a statement cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Halt {
    Fail(Failure),
    /// Another session has locked this row.
    Row(usize, Key),
    /// Another session holds this name; with how long to wait for it, in seconds.
    Name(Vec<u8>, u64),
}

/// A name lock.
#[derive(Debug)]
pub(super) struct NameLock {
    pub(super) owner: Id,
    /// How often its owner has taken it.
    pub(super) times: u32,
    pub(super) waiters: VecDeque<Id>,
}

impl Engine {
    /// Locks a row for `session`; no other session may hold it.
    pub(super) fn lock(&mut self, session: Id, table: usize, key: &Key) {
        let slot = self.tables[table].slots.entry(key.clone()).or_default();
        if slot.owner == Some(session) {
            return;
        }
        debug_assert!(slot.owner.is_none(), "a row of another's");
        slot.owner = Some(session);
        self.session(session).transaction.locked.push((table, key.clone()));
    }

    /// Unlocks a row that turned out not to be wanted: at READ COMMITTED it stays locked only if it
    /// matches.
    pub(super) fn unlock(&mut self, session: Id, table: usize, key: &Key) {
        let locked = &mut self.session(session).transaction.locked;
        if let Some(at) = locked.iter().rposition(|(t, k)| *t == table && k == key) {
            locked.remove(at);
        }
        self.free(table, key);
    }

    /// Frees the row and wakes the sessions that wait for it.
    pub(super) fn free(&mut self, table: usize, key: &Key) {
        let slots = &mut self.tables[table].slots;
        let Some(slot) = slots.get_mut(key) else { return };
        slot.owner = None;
        self.awake.extend(std::mem::take(&mut slot.waiters));
        if slot.is_empty() {
            slots.remove(key);
        }
    }

    /// Makes `session` wait for a row. If that closes a cycle of waits, the lightest session in the
    /// cycle is rolled back.
    pub(super) fn wait_for_row(&mut self, session: Id, table: usize, key: &Key) {
        let slot = self.tables[table].slots.get_mut(key).expect("a locked row");
        slot.waiters.push_back(session);
        let owner = slot.owner;
        self.session(session).waits_for = owner;
        let mut circle = vec![session];
        let mut next = owner;
        while let Some(id) = next {
            if id == session {
                let victim = circle.into_iter().min_by_key(|id| {
                    self.sessions.get(id).map_or(0, |session| session.transaction.undo.len())
                });
                self.fail_waiting(victim.unwrap_or(session), Failure::Deadlock);
                return;
            }
            if circle.contains(&id) {
                return;
            }
            circle.push(id);
            next = self.sessions.get(&id).and_then(|session| session.waits_for);
        }
    }

    /// Ends the wait of `session`.
    pub(super) fn stop_waiting(&mut self, session: Id) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.waits_for = None;
        }
        for table in &mut self.tables {
            for slot in table.slots.values_mut().filter(|slot| !slot.waiters.is_empty()) {
                slot.waiters.retain(|waiter| *waiter != session);
            }
        }
        for lock in self.names.values_mut() {
            lock.waiters.retain(|waiter| *waiter != session);
        }
    }

    /// Answers a function of name locks. A statement that has waited for a name starts again: it
    /// gets the answers from before its wait, and that of the wait.
    pub(super) fn ask_names(
        &mut self,
        id: Id,
        function: &str,
        arguments: &[Value],
    ) -> Result<Value, Halt> {
        let session = self.session(id);
        session.asked += 1;
        if let Some(known) = session.answers.get(session.asked - 1) {
            return Ok(known.clone());
        }
        let answer = match (function, arguments) {
            ("GET_LOCK", [name, wait]) => {
                let wait = u64::try_from(wait.number()).expect("seconds");
                Value::truth(self.get_name(id, &name.text(), wait)?)
            }
            ("RELEASE_LOCK", [name]) => self.release_name(id, &name.text()),
            ("RELEASE_ALL_LOCKS", []) => Value::Number(self.free_names(id).into()),
            ("IS_USED_LOCK", [name]) => match self.names.get(&name.text()) {
                Some(lock) => Value::Number(lock.owner.into()),
                None => Value::Null,
            },
            ("IS_FREE_LOCK", [name]) => Value::truth(!self.names.contains_key(&name.text())),
            _ => panic!("unknown to the model: {function}({arguments:?})"),
        };
        self.session(id).answers.push(answer.clone());
        Ok(answer)
    }

    fn get_name(&mut self, session: Id, name: &[u8], wait: u64) -> Result<bool, Halt> {
        match self.names.get_mut(name) {
            None => {
                let lock = NameLock { owner: session, times: 1, waiters: VecDeque::new() };
                self.names.insert(name.to_vec(), lock);
                Ok(true)
            }
            Some(lock) if lock.owner == session => {
                lock.times += 1;
                Ok(true)
            }
            Some(_) if wait == 0 => Ok(false),
            Some(_) => Err(Halt::Name(name.to_vec(), wait)),
        }
    }

    /// Lets go of a name once; a session that has taken it twice still holds it after that.
    fn release_name(&mut self, session: Id, name: &[u8]) -> Value {
        match self.names.get_mut(name) {
            None => Value::Null,
            Some(lock) if lock.owner != session => Value::truth(false),
            Some(lock) => {
                lock.times -= 1;
                if lock.times == 0 {
                    self.free_name(name);
                }
                Value::truth(true)
            }
        }
    }

    /// Frees a name. The session that has waited for it longest has it at once: its wait was
    /// answered before the statement that freed the name goes on.
    fn free_name(&mut self, name: &[u8]) {
        let Some(lock) = self.names.get_mut(name) else { return };
        let Some(next) = lock.waiters.pop_front() else {
            self.names.remove(name);
            return;
        };
        (lock.owner, lock.times) = (next, 1);
        self.session(next).answers.push(Value::truth(true));
        self.awake.push_back(next);
    }

    /// Frees every name that `session` holds. Returns how often it had taken them.
    pub(super) fn free_names(&mut self, session: Id) -> u32 {
        let held = self.names.iter().filter(|(_, lock)| lock.owner == session);
        let held: Vec<_> = held.map(|(name, lock)| (name.clone(), lock.times)).collect();
        held.iter().for_each(|(name, _)| self.free_name(name));
        held.iter().map(|(_, times)| times).sum()
    }
}
