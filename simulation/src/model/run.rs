//! Executes statements and their changes.

use std::sync::Arc;

use rowmq_core::connection::simulation::{Answer, Column, Row as AnswerRow};

use super::engine::Engine;
use super::eval::{Ask, Context, Frame, GIVEN, eval};
use super::join::{Mode, Scan};
use super::locks::{Failure, Halt};
use super::table::{Id, Key};
use super::value::{Row, Value};
use crate::sql::{Expr, Rows, Statement};

impl Engine {
    /// Runs a statement for `session` as far as it gets.
    pub(super) fn run(
        &mut self,
        session: Id,
        statement: &Statement,
        params: &[Value],
    ) -> Result<Answer, Halt> {
        let facts = self.facts.clone();
        let context = Context { session, facts: &facts, params };
        let writes = matches!(
            statement,
            Statement::Insert { .. } | Statement::Update { .. } | Statement::Delete { .. }
        );
        if writes && facts.read_only {
            return Err(Halt::Fail(Failure::ReadOnly));
        }
        let matched = |matched| Ok(Answer { matched, rows: Vec::new() });
        match statement {
            Statement::Select(query) => {
                let names = self.names(&query.0[0]);
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                let rows = self.query(query, &context, &mut Vec::new())?;
                Ok(Answer { matched: 0, rows: answer(&names, rows) })
            }
            Statement::Insert { table, columns, rows, on_duplicate } => {
                matched(self.insert(table, columns, rows, on_duplicate, &context)?)
            }
            Statement::Update { source, sets, filter, order, limit } => {
                let most = self.most(order, limit.as_ref(), &context)?;
                let lock = Some((std::slice::from_ref(&source.alias), Mode::Update));
                let sources = std::slice::from_ref(source);
                let scan = Scan { sources, filter: filter.as_ref(), lock, most };
                matched(self.update(&scan, sets, &context)?)
            }
            Statement::Delete { targets, from, filter, order, limit } => {
                let most = self.most(order, limit.as_ref(), &context)?;
                let lock = Some((targets.as_slice(), Mode::Wait));
                let scan = Scan { sources: from, filter: filter.as_ref(), lock, most };
                matched(self.delete(&scan, targets, &context)?)
            }
            Statement::Show(what, names) => Ok(self.show(what, names)),
            Statement::Kill(id) => {
                if !self.is_open(*id) {
                    return Err(Halt::Fail(Failure::Unknown));
                }
                self.killed.push(*id);
                matched(0)
            }
            Statement::Begin => {
                self.end(session, true);
                self.session(session).transaction.open = true;
                matched(0)
            }
            Statement::Commit | Statement::Rollback => {
                self.end(session, matches!(statement, Statement::Commit));
                matched(0)
            }
            Statement::Savepoint => {
                let transaction = &mut self.session(session).transaction;
                transaction.savepoint = transaction.open.then_some(transaction.undo.len());
                matched(0)
            }
            Statement::RollbackToSavepoint => {
                match self.session(session).transaction.savepoint {
                    Some(savepoint) => self.undo_to(session, savepoint),
                    None => return Err(Halt::Fail(Failure::NoSavepoint)),
                }
                matched(0)
            }
            Statement::Set(_) => matched(0),
        }
    }

    fn insert(
        &mut self,
        table: &str,
        columns: &[String],
        rows: &Rows,
        on_duplicate: &[(String, Expr)],
        context: &Context<'_>,
    ) -> Result<usize, Halt> {
        let table = self.table(table);
        let mut given = Vec::new();
        match rows {
            Rows::Values(rows) => {
                for row in rows {
                    let values = row.iter().map(|one| eval(one, context, &mut Vec::new(), self));
                    given.push(values.collect::<Result<Vec<_>, _>>()?);
                }
            }
            Rows::Select(select) => {
                let query = crate::sql::Query(vec![(**select).clone()]);
                given = self.query(&query, context, &mut Vec::new())?;
            }
        }
        let mut n = given.len();
        let mut first = None;
        for values in given {
            let (row, number) = self.complete(table, columns, values, context)?;
            first = first.or(number);
            // An existing row that is changed counts as two.
            n += usize::from(self.insert_row(table, row, on_duplicate, context)?);
        }
        if let Some(first) = first {
            self.session(context.session).last_insert_id = first;
        }
        Ok(n)
    }

    /// Completes the given columns to a whole row, and returns the number generated for it.
    fn complete(
        &mut self,
        table: usize,
        columns: &[String],
        values: Vec<Value>,
        context: &Context<'_>,
    ) -> Result<(Row, Option<i128>), Halt> {
        let definition = self.tables[table].definition.clone();
        let mut row = vec![None; definition.columns.len()];
        for (column, value) in columns.iter().zip(values) {
            row[definition.place(column).expect("a column")] = Some(value);
        }
        let mut number = None;
        let mut whole = Vec::with_capacity(row.len());
        for (column, value) in definition.columns.iter().zip(row) {
            whole.push(match (value, &column.default) {
                (Some(value), _) if value != Value::Null || !column.counts_up => value,
                (_, _) if column.counts_up => {
                    let next = self.tables[table].next;
                    self.tables[table].next += 1;
                    number = Some(next);
                    Value::Number(next)
                }
                (_, Some(default)) => eval(default, context, &mut Vec::new(), self)?,
                (_, None) => panic!("{} has no default value", column.name),
            });
        }
        let row: Row = whole.into();
        self.check(table, &row, context)?;
        Ok((row, number))
    }

    fn check(&mut self, table: usize, row: &Row, context: &Context<'_>) -> Result<(), Halt> {
        let checks = self.tables[table].definition.checks.clone();
        let mut frames = vec![self.frame(table, "", row.clone())];
        for check in &checks {
            if !eval(check, context, &mut frames, self)?.is_true() {
                return Err(Halt::Fail(Failure::Check));
            }
        }
        Ok(())
    }

    fn frame(&self, table: usize, alias: &str, row: Row) -> Frame {
        Frame { alias: alias.into(), columns: self.columns(table), row }
    }

    fn insert_row(
        &mut self,
        table: usize,
        row: Row,
        on_duplicate: &[(String, Expr)],
        context: &Context<'_>,
    ) -> Result<bool, Halt> {
        let me = context.session;
        let key = self.tables[table].key_of(&row);
        let Some(key) = self.conflict(table, &row, &key, me)? else {
            self.write(me, table, &key, Some(row));
            return Ok(false);
        };
        if on_duplicate.is_empty() {
            return Err(Halt::Fail(Failure::Duplicate));
        }
        let old = self.tables[table].slots[&key].seen_by(me).cloned().expect("the other row");
        self.lock(me, table, &key);
        let given = self.frame(table, GIVEN, row);
        let name = self.tables[table].definition.name.clone();
        let new = self.changed(table, vec![given], &name, &old, on_duplicate, context)?;
        self.write(me, table, &key, Some(new));
        Ok(true)
    }

    /// Returns the key of the row that already has a unique key of `row`.
    fn conflict(&self, table: usize, row: &Row, key: &Key, me: Id) -> Result<Option<Key>, Halt> {
        let definition = &self.tables[table].definition;
        let slots = &self.tables[table].slots;
        // Without another unique index only the row's own key can be taken.
        let unique = definition.indexes.iter().any(|(_, _, unique)| *unique);
        let range =
            if unique { slots.range::<Key, _>(..) } else { slots.range::<Key, _>(key..=key) };
        for (other, slot) in range {
            let versions = slot.committed.iter().chain(slot.pending.iter().flatten());
            let same = |version: &Row| {
                definition.indexes.iter().any(|(_, places, unique)| {
                    *unique && places.iter().all(|place| version[*place] == row[*place])
                })
            };
            if other != key && !versions.clone().any(same) {
                continue;
            }
            if slot.owner.is_some_and(|owner| owner != me) {
                return Err(Halt::Row(table, other.clone()));
            }
            if slot.seen_by(me).is_some() {
                return Ok(Some(other.clone()));
            }
        }
        Ok(None)
    }

    /// Returns how many rows an UPDATE or DELETE changes at most. They are the first in the order
    /// of the index that it reads, which the model assumes to be the order of the key.
    fn most(
        &mut self,
        order: &[(Expr, bool)],
        limit: Option<&Expr>,
        context: &Context<'_>,
    ) -> Result<Option<usize>, Halt> {
        debug_assert!(order.iter().all(|(_, falls)| !falls), "unknown to the model");
        let Some(limit) = limit else { return Ok(None) };
        Ok(Some(eval(limit, context, &mut Vec::new(), self)?.number() as usize))
    }

    fn update(
        &mut self,
        scan: &Scan<'_>,
        sets: &[(String, Expr)],
        context: &Context<'_>,
    ) -> Result<usize, Halt> {
        let source = &scan.sources[0];
        let crate::sql::From::Table(name) = &source.table else { panic!("UPDATE of a table") };
        let table = self.table(name);
        let mut joined = Vec::new();
        self.join(scan, 0, context, &mut Vec::new(), &mut joined)?;
        for frames in &joined {
            let old = &frames[0].row;
            let new = self.changed(table, Vec::new(), &source.alias, old, sets, context)?;
            let (from, to) = (self.tables[table].key_of(old), self.tables[table].key_of(&new));
            if from != to {
                self.write(context.session, table, &from, None);
            }
            self.write(context.session, table, &to, Some(new));
        }
        Ok(joined.len())
    }

    /// Returns the row with the assignments applied from left to right, beside other rows that may
    /// be named. A column without a table name is the row's own: the last frame's.
    fn changed(
        &mut self,
        table: usize,
        mut frames: Vec<Frame>,
        alias: &str,
        old: &Row,
        sets: &[(String, Expr)],
        context: &Context<'_>,
    ) -> Result<Row, Halt> {
        let mut new = old.to_vec();
        frames.push(self.frame(table, alias, old.clone()));
        for (column, value) in sets {
            let place = self.tables[table].definition.place(column).expect("a column");
            new[place] = eval(value, context, &mut frames, self)?;
            if let Some(frame) = frames.last_mut() {
                frame.row = new.clone().into();
            }
        }
        let new: Row = new.into();
        self.check(table, &new, context)?;
        Ok(new)
    }

    fn delete(
        &mut self,
        scan: &Scan<'_>,
        targets: &[String],
        context: &Context<'_>,
    ) -> Result<usize, Halt> {
        let mut joined = Vec::new();
        self.join(scan, 0, context, &mut Vec::new(), &mut joined)?;
        let mut deleted = 0;
        for target in targets {
            let source = scan.sources.iter().find(|source| source.alias == *target);
            let table = match source.map(|source| &source.table) {
                Some(crate::sql::From::Table(name)) => self.table(name),
                _ => panic!("DELETE of a table"),
            };
            for frames in &joined {
                let frame = frames.iter().find(|frame| &*frame.alias == target.as_str());
                let key = self.tables[table].key_of(&frame.expect("a row").row);
                // There is no row where a LEFT JOIN has found nothing.
                let slot = self.tables[table].slots.get(&key);
                if slot.is_some_and(|slot| slot.seen_by(context.session).is_some()) {
                    self.write(context.session, table, &key, None);
                    deleted += 1;
                }
            }
        }
        Ok(deleted)
    }

    /// Puts a row at a key, or removes it.
    fn write(&mut self, me: Id, table: usize, key: &Key, row: Option<Row>) {
        self.lock(me, table, key);
        let slot = self.tables[table].slots.get_mut(key).expect("a locked row");
        let before = slot.pending.replace(row);
        self.session(me).transaction.undo.push((table, key.clone(), before));
    }

    fn show(&self, what: &str, names: &[String]) -> Answer {
        if what == "processlist" {
            let ids = self.sessions.keys().map(|id| vec![Value::Number((*id).into())]);
            return Answer { matched: 0, rows: answer(&["Id"], ids.collect()) };
        }
        let value = |name: &str| -> Option<String> {
            match name {
                "server_uid" => Some(self.facts.uid.clone()),
                "Uptime" => Some(self.facts.uptime.to_string()),
                "read_only" => Some(if self.facts.read_only { "ON" } else { "OFF" }.to_owned()),
                _ => None,
            }
        };
        let rows = names.iter().filter_map(|name| {
            let text = |text: &str| Value::bytes(text.as_bytes());
            Some(vec![text(name), text(&value(name)?)])
        });
        Answer { matched: 0, rows: answer(&["Variable_name", "Value"], rows.collect()) }
    }
}

/// Returns rows as they come over the wire.
fn answer(names: &[&str], rows: Vec<Vec<Value>>) -> Vec<AnswerRow> {
    let column = |(at, name): (usize, &&str)| {
        let value = rows.iter().map(|row| &row[at]).find(|value| **value != Value::Null);
        Column { name: (*name).to_owned(), kind: value.unwrap_or(&Value::Null).kind() }
    };
    let columns: Arc<[Column]> = names.iter().enumerate().map(column).collect();
    let row = |row: &Vec<Value>| AnswerRow {
        columns: Arc::clone(&columns),
        values: row.iter().map(Value::wire).collect(),
    };
    rows.iter().map(row).collect()
}
