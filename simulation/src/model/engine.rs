//! The server's sessions and their statements, executed one step after the other.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rowmq_core::connection::simulation::Answer;

use super::locks::{Failure, Halt, NameLock};
use super::table::{Id, Key, Table};
use super::value::{Row, Value};
use crate::sql::{Statement, definitions};

/// What the server knows about itself and the time.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Its clock, in microseconds since 1970.
    pub(crate) now: i64,
    /// How long it has run, in seconds.
    pub(crate) uptime: i64,
    pub(crate) uid: String,
    pub(crate) read_only: bool,
}

/// The result of a statement.
pub(crate) type Outcome = Result<Answer, Failure>;

#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// Begun by BEGIN; otherwise the transaction ends with its statement.
    pub(super) open: bool,
    pub(super) locked: Vec<(usize, Key)>,
    /// What was pending at a key before each change.
    pub(super) undo: Vec<(usize, Key, Option<Option<Row>>)>,
    /// The number of changes at the savepoint.
    pub(super) savepoint: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) transaction: Transaction,
    pub(super) last_insert_id: i128,
    pub(super) waits_for: Option<Id>,
    /// What the functions of name locks have answered the running statement so far.
    pub(super) answers: Vec<Value>,
    /// How many of these answers it has got since it last started.
    pub(super) asked: usize,
    /// The rows that the statement has waited for: it keeps them locked, whether they match or not.
    pub(super) waited: Vec<(usize, Key)>,
    running: Option<(Rc<Statement>, Rc<[Value]>)>,
    outcome: Option<Outcome>,
    pub(super) wait: Option<Wait>,
}

/// What a session waits for, and for how long at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Row,
    /// In seconds.
    Name(u64),
}

/// A committed change of a row.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) at: i64,
    pub(crate) session: Id,
    pub(crate) table: usize,
    pub(crate) before: Option<Row>,
    pub(crate) after: Option<Row>,
}

/// The server, without its network.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) tables: Vec<Table>,
    pub(super) sessions: BTreeMap<Id, Session>,
    pub(super) names: BTreeMap<Vec<u8>, NameLock>,
    /// Sessions whose wait may be over.
    pub(super) awake: VecDeque<Id>,
    pub(crate) facts: Facts,
    pub(crate) changes: Vec<Change>,
    last_id: Id,
    /// Sessions that were killed and have to end.
    pub(crate) killed: Vec<Id>,
    /// Sessions that have an outcome.
    pub(crate) ready: Vec<Id>,
    pub(super) columns: Vec<Rc<[String]>>,
}

impl Engine {
    pub(crate) fn new(facts: Facts) -> Self {
        let tables: Vec<_> = definitions().into_iter().map(Table::new).collect();
        let columns = |table: &Table| {
            table.definition.columns.iter().map(|column| column.name.clone()).collect()
        };
        Self {
            columns: tables.iter().map(columns).collect(),
            tables,
            sessions: BTreeMap::new(),
            names: BTreeMap::new(),
            awake: VecDeque::new(),
            facts,
            changes: Vec::new(),
            last_id: 0,
            killed: Vec::new(),
            ready: Vec::new(),
        }
    }

    pub(crate) fn table(&self, name: &str) -> usize {
        let found = self.tables.iter().position(|table| table.definition.name == name);
        found.unwrap_or_else(|| panic!("unknown table {name}"))
    }

    pub(super) fn session(&mut self, id: Id) -> &mut Session {
        self.sessions.get_mut(&id).expect("a session")
    }

    /// Opens a session and returns its connection id.
    pub(crate) fn open(&mut self) -> Id {
        self.last_id += 1;
        self.sessions.insert(self.last_id, Session::default());
        self.last_id
    }

    pub(crate) fn is_open(&self, id: Id) -> bool {
        self.sessions.contains_key(&id)
    }

    /// Returns the connection id given last.
    pub(crate) fn newest(&self) -> Id {
        self.last_id
    }

    /// Returns every session.
    pub(crate) fn ids(&self) -> Vec<Id> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn connections(&self) -> usize {
        self.sessions.len()
    }

    /// Ends a session: rolls its transaction back and frees its names.
    pub(crate) fn close(&mut self, id: Id) {
        if self.is_open(id) {
            self.stop_waiting(id);
            self.end(id, false);
            self.free_names(id);
            self.sessions.remove(&id);
            self.go_on();
        }
    }

    /// Crashes the server and starts it again: uncommitted changes are lost, and connection ids
    /// start from 1.
    pub(crate) fn crash(&mut self) {
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end(id, false);
        }
        self.sessions.clear();
        self.names.clear();
        self.awake.clear();
        self.killed.clear();
        self.last_id = 0;
    }

    /// Begins a statement. Its outcome can be [taken](Self::outcome) now, or when a wait is over.
    pub(crate) fn begin(&mut self, id: Id, statement: Rc<Statement>, params: Rc<[Value]>) {
        let session = self.session(id);
        session.running = Some((statement, params));
        session.answers.clear();
        session.waited.clear();
        self.attempt(id);
        self.go_on();
    }

    pub(crate) fn outcome(&mut self, id: Id) -> Option<Outcome> {
        self.sessions.get_mut(&id)?.outcome.take()
    }

    /// Returns what the session waits for.
    pub(crate) fn wait(&self, id: Id) -> Option<Wait> {
        self.sessions.get(&id)?.wait
    }

    /// Ends the wait of a session that has waited as long as it may.
    pub(crate) fn time_out(&mut self, id: Id) {
        match self.wait(id) {
            Some(Wait::Row) => self.fail_waiting(id, Failure::LockWait),
            Some(Wait::Name(_)) => {
                self.stop_waiting(id);
                self.session(id).answers.push(Value::truth(false));
                self.attempt(id);
            }
            None => {}
        }
        self.go_on();
    }

    /// Ends the statement of a session that waits, because the session is killed.
    pub(crate) fn interrupt(&mut self, id: Id) {
        if self.wait(id).is_some() {
            self.fail_waiting(id, Failure::Interrupted);
            self.go_on();
        }
    }

    /// Ends the statement of a session that waits.
    pub(super) fn fail_waiting(&mut self, id: Id, failure: Failure) {
        self.stop_waiting(id);
        self.finish(id, Err(failure));
    }

    fn go_on(&mut self) {
        while let Some(id) = self.awake.pop_front() {
            if self.sessions.get(&id).is_some_and(|session| session.running.is_some()) {
                self.attempt(id);
            }
        }
    }

    /// Runs the session's statement from its start: to its end, or to a lock of another session.
    fn attempt(&mut self, id: Id) {
        let session = self.session(id);
        session.waits_for = None;
        session.wait = None;
        session.asked = 0;
        let Some((statement, params)) = session.running.clone() else { return };
        let savepoint = session.transaction.undo.len();
        let result = self.run(id, &statement, &params);
        match result {
            Ok(answer) => self.finish(id, Ok(answer)),
            Err(halt) => {
                self.undo_to(id, savepoint);
                match halt {
                    Halt::Fail(failure) => self.finish(id, Err(failure)),
                    Halt::Row(table, key) => {
                        let session = self.session(id);
                        session.wait = Some(Wait::Row);
                        session.answers.clear();
                        session.waited.push((table, key.clone()));
                        self.wait_for_row(id, table, &key);
                    }
                    Halt::Name(name, seconds) => {
                        self.session(id).wait = Some(Wait::Name(seconds));
                        let lock = self.names.get_mut(&name).expect("a lock of another's");
                        lock.waiters.push_back(id);
                    }
                }
            }
        }
    }

    fn finish(&mut self, id: Id, outcome: Outcome) {
        let failed = outcome.as_ref().err().copied();
        let session = self.session(id);
        session.running = None;
        session.wait = None;
        session.waits_for = None;
        session.outcome = Some(outcome);
        let open = session.transaction.open;
        self.ready.push(id);
        if failed == Some(Failure::Deadlock) || !open {
            self.end(id, failed.is_none());
        }
    }

    /// Undoes what the session's transaction has changed since `savepoint`.
    pub(super) fn undo_to(&mut self, id: Id, savepoint: usize) {
        let undone = self.session(id).transaction.undo.split_off(savepoint);
        for (table, key, pending) in undone.into_iter().rev() {
            if let Some(slot) = self.tables[table].slots.get_mut(&key) {
                slot.pending = pending;
            }
        }
    }

    /// Ends the session's transaction.
    pub(super) fn end(&mut self, id: Id, commit: bool) {
        if !commit {
            self.undo_to(id, 0);
        }
        let ended = std::mem::take(&mut self.session(id).transaction);
        for (table, key) in ended.locked {
            if let Some(slot) = self.tables[table].slots.get_mut(&key)
                && let Some(pending) = slot.pending.take()
            {
                let before = std::mem::replace(&mut slot.committed, pending.clone());
                self.changes.push(Change {
                    at: self.facts.now,
                    session: id,
                    table,
                    before,
                    after: pending,
                });
            }
            self.free(table, &key);
        }
    }
}
