//! Scans and joins, and the locks that they take.

use std::rc::Rc;

use super::conditions::{bounds, conjuncts, is_known, mentions};
use super::engine::Engine;
use super::eval::{Ask, Context, Frame, eval};
use super::locks::Halt;
use super::table::Key;
use super::value::{Row, Value};
use crate::sql::{Expr, From, JsonColumns, Op, Source};

/// What a scan does about rows that other sessions have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Wait,
    Skip,
    /// As UPDATE does: skips a row whose committed version does not match.
    Update,
}

/// Tables to join.
pub(super) struct Scan<'s> {
    pub(super) sources: &'s [Source],
    pub(super) filter: Option<&'s Expr>,
    /// The names of the tables whose rows are locked, and how.
    pub(super) lock: Option<(&'s [String], Mode)>,
    pub(super) most: Option<usize>,
}

/// Rows that belong together, one per table.
pub(super) type Joined = Vec<Frame>;

impl Engine {
    /// Appends the joined rows that match to those already in `out`.
    pub(super) fn join(
        &mut self,
        scan: &Scan<'_>,
        at: usize,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Joined>,
    ) -> Result<bool, Halt> {
        if scan.most.is_some_and(|most| out.len() >= most) {
            return Ok(false);
        }
        let Some(source) = scan.sources.get(at) else {
            let matches = match scan.filter {
                Some(filter) => eval(filter, context, frames, self)?.is_true(),
                None => true,
            };
            if matches {
                out.push(frames.clone());
            }
            return Ok(matches);
        };
        match &source.table {
            From::Table(name) if name == "information_schema.USER_PRIVILEGES" => {
                let columns = ["PRIVILEGE_TYPE".to_owned(), "GRANTEE".to_owned()];
                let row = [Value::bytes(b"PROCESS"), Value::bytes(b"'queue'@'%'")];
                self.join_rows(scan, at, columns.into(), vec![row.into()], context, frames, out)
            }
            From::Table(name) => self.join_table(scan, at, name, context, frames, out),
            From::Json { array, columns } => {
                let array = eval(array, context, frames, self)?.text();
                let ids: Vec<serde_json::Value> = serde_json::from_slice(&array).expect("an array");
                let id = |id: &serde_json::Value| match id.as_str() {
                    Some(text) => Value::bytes(text.as_bytes()),
                    None => Value::Number(id.as_u64().expect("a number or a text").into()),
                };
                let row = |(place, one): (i128, &serde_json::Value)| -> Row {
                    match columns {
                        JsonColumns::Id => [id(one)].into(),
                        JsonColumns::PlaceAndId => [Value::Number(place), id(one)].into(),
                        JsonColumns::IdAndPage => [id(&one[0]), id(&one[1])].into(),
                    }
                };
                let names: &[&str] = match columns {
                    JsonColumns::Id => &["id"],
                    JsonColumns::PlaceAndId => &["place", "id"],
                    JsonColumns::IdAndPage => &["id", "page"],
                };
                let names = names.iter().map(|name| (*name).to_owned()).collect();
                let rows = (1..).zip(&ids).map(row).collect();
                self.join_rows(scan, at, names, rows, context, frames, out)
            }
            From::Query(query) => {
                let rows = self.query(query, context, frames)?;
                let names = self.names(&query.0[0]).into();
                let rows = rows.into_iter().map(Into::into).collect();
                self.join_rows(scan, at, names, rows, context, frames, out)
            }
        }
    }

    /// Joins rows that belong to no transaction.
    #[allow(clippy::too_many_arguments, reason = "the parts of one recursion")]
    fn join_rows(
        &mut self,
        scan: &Scan<'_>,
        at: usize,
        columns: Rc<[String]>,
        rows: Vec<Row>,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Joined>,
    ) -> Result<bool, Halt> {
        let alias: Rc<str> = scan.sources[at].alias.as_str().into();
        let mut any = false;
        for row in rows {
            frames.push(Frame { alias: alias.clone(), columns: columns.clone(), row });
            let on = match &scan.sources[at].on {
                Some(on) => eval(on, context, frames, self)?.is_true(),
                None => true,
            };
            if on {
                any |= self.join(scan, at + 1, context, frames, out)?;
            }
            frames.pop();
        }
        Ok(any)
    }

    fn join_table(
        &mut self,
        scan: &Scan<'_>,
        at: usize,
        name: &str,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Joined>,
    ) -> Result<bool, Halt> {
        let source = &scan.sources[at];
        let table = self.table(name);
        let me = context.session;
        let columns = self.columns(table);
        let conditions: Vec<&Expr> =
            source.on.iter().chain(scan.filter).flat_map(|expr| conjuncts(expr)).collect();
        let prefix = self.prefix(table, &source.alias, &conditions, context, frames)?;
        let lock =
            scan.lock.filter(|(names, _)| names.contains(&source.alias)).map(|(_, mode)| mode);
        let keys = self.tables[table].keys(&prefix);
        let alias: Rc<str> = source.alias.as_str().into();
        let index = lock.map(|_| {
            let definition = &self.tables[table];
            definition.index(source.index.as_deref(), |place| {
                let column = &definition.definition.columns[place].name;
                conditions.iter().any(|condition| bounds(condition, column))
            })
        });
        let mut any = false;
        for key in keys {
            if scan.most.is_some_and(|most| out.len() >= most) {
                break;
            }
            let frame = |row: Row| Frame { alias: alias.clone(), columns: columns.clone(), row };
            let Some(slot) = self.tables[table].slots.get(&key) else { continue };
            let (Some(mode), Some(index)) = (lock, &index) else {
                let Some(row) = slot.seen_by(me).cloned() else { continue };
                frames.push(frame(row));
                let on = match &source.on {
                    Some(on) => eval(on, context, frames, self)?.is_true(),
                    None => true,
                };
                if on {
                    any = true;
                    self.join(scan, at + 1, context, frames, out)?;
                }
                frames.pop();
                continue;
            };
            let foreign = slot.owner.is_some_and(|owner| owner != me);
            let versions: Vec<Row> = if foreign {
                slot.committed.iter().chain(slot.pending.iter().flatten()).cloned().collect()
            } else {
                slot.seen_by(me).cloned().into_iter().collect()
            };
            let mut in_range = false;
            for row in &versions {
                frames.push(frame(row.clone()));
                let mut may = true;
                for condition in &conditions {
                    may = may && self.may_match(condition, table, index, context, frames)?;
                }
                in_range |= may;
                frames.pop();
            }
            if !in_range {
                continue;
            }
            if foreign {
                match mode {
                    Mode::Skip => continue,
                    Mode::Wait => return Err(Halt::Row(table, key)),
                    Mode::Update => {
                        let committed = self.tables[table].slots[&key].committed.clone();
                        if self.matches(committed, scan, &frame, context, frames)?
                            || prefix.len() == key.len()
                        {
                            return Err(Halt::Row(table, key));
                        }
                        continue;
                    }
                }
            }
            // A row read by its whole key before the plan is made is never unlocked.
            let constant = mode != Mode::Update && prefix.len() == key.len();
            let kept = constant
                || self.tables[table].slots[&key].owner == Some(me)
                || self.session(me).waited.iter().any(|(t, k)| *t == table && *k == key);
            self.lock(me, table, &key);
            let row = versions.into_iter().next().expect("a version in the range");
            frames.push(frame(row));
            let on = match &source.on {
                Some(on) => eval(on, context, frames, self)?.is_true(),
                None => true,
            };
            let matched = on && self.join(scan, at + 1, context, frames, out)?;
            frames.pop();
            if !matched && !kept {
                self.unlock(me, table, &key);
            }
            any |= matched;
        }
        if !any && source.left {
            let nulls = vec![Value::Null; columns.len()];
            frames.push(Frame { alias, columns, row: nulls.into() });
            any = self.join(scan, at + 1, context, frames, out)?;
            frames.pop();
        }
        Ok(any)
    }

    fn matches(
        &mut self,
        row: Option<Row>,
        scan: &Scan<'_>,
        frame: &dyn Fn(Row) -> Frame,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, Halt> {
        let (Some(row), Some(filter)) = (row, scan.filter) else { return Ok(false) };
        frames.push(frame(row));
        let matches = eval(filter, context, frames, self)?.is_true();
        frames.pop();
        Ok(matches)
    }

    pub(super) fn columns(&self, table: usize) -> Rc<[String]> {
        self.columns[table].clone()
    }

    /// Returns the values of the first columns of the primary key that the conditions fix.
    fn prefix(
        &mut self,
        table: usize,
        alias: &str,
        conditions: &[&Expr],
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Key, Halt> {
        let mut prefix = Key::new();
        for place in self.tables[table].definition.key.clone() {
            let column = self.tables[table].definition.columns[place].name.clone();
            let fixed = conditions.iter().find_map(|condition| match condition {
                Expr::Binary(Op::Equal, left, right) => {
                    let names = matches!(&**left, Expr::Name(table, name)
                        if name.eq_ignore_ascii_case(&column)
                            && table.as_deref().is_none_or(|table| table == alias));
                    (names && is_known(right, alias)).then_some(right)
                }
                _ => None,
            });
            let Some(fixed) = fixed else { break };
            prefix.push(eval(fixed, context, frames, self)?);
        }
        Ok(prefix)
    }

    /// Returns whether the row may match by the index's columns alone: a condition on other columns
    /// counts as true.
    fn may_match(
        &mut self,
        expr: &Expr,
        table: usize,
        index: &[usize],
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, Halt> {
        if let Expr::Binary(op @ (Op::And | Op::Or), left, right) = expr {
            let left = self.may_match(left, table, index, context, frames)?;
            let right = self.may_match(right, table, index, context, frames)?;
            return Ok(if *op == Op::And { left && right } else { left || right });
        }
        let definition = &self.tables[table].definition;
        let outside =
            |name: &str| definition.place(name).is_some_and(|place| !index.contains(&place));
        if mentions(expr, &|_, name| outside(name)) {
            return Ok(true);
        }
        Ok(eval(expr, context, frames, self)?.is_true())
    }
}
