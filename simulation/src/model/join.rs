//! Reading: scans, joins, and the locks that reading takes.

use std::rc::Rc;

use super::engine::Engine;
use super::eval::{Ask, Context, Frame, eval};
use super::locks::Halt;
use super::table::Key;
use super::value::{Row, Value};
use crate::sql::{Expr, From, Locking, Op, Query, Select, Source};

/// What a scan does about rows that others have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Wait,
    Skip,
    /// As UPDATE does: a row whose committed version does not match is passed over.
    Update,
}

/// Tables to be joined.
pub(super) struct Scan<'s> {
    pub(super) sources: &'s [Source],
    pub(super) filter: Option<&'s Expr>,
    /// The name of the table whose rows are locked, and how.
    pub(super) lock: Option<(&'s str, Mode)>,
    pub(super) most: Option<usize>,
}

/// Rows that belong together, one a table.
pub(super) type Joined = Vec<Frame>;

impl Engine {
    /// The joined rows that match, after those already in `out`.
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
            From::Json(array) => {
                let array = eval(array, context, frames, self)?.text();
                let ids: Vec<u64> = serde_json::from_slice(&array).expect("an array of numbers");
                let rows = ids.into_iter().map(|id| [Value::Number(id.into())].into()).collect();
                self.join_rows(scan, at, ["id".to_owned()].into(), rows, context, frames, out)
            }
            From::Query(query) => {
                let rows = self.query(query, context, frames)?;
                let names = query.0[0].items.iter().map(|(_, name)| name.clone()).collect();
                let rows = rows.into_iter().map(Into::into).collect();
                self.join_rows(scan, at, names, rows, context, frames, out)
            }
        }
    }

    /// Joins rows that no transaction has to do with.
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
        let lock = scan.lock.filter(|(target, _)| *target == source.alias).map(|(_, mode)| mode);
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
                    may = may
                        && self.may_match(
                            condition,
                            &source.alias,
                            table,
                            index,
                            context,
                            frames,
                        )?;
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
            let mine = self.tables[table].slots[&key].owner == Some(me);
            self.lock(me, table, &key);
            let row = versions.into_iter().next().expect("a version in the range");
            frames.push(frame(row));
            let on = match &source.on {
                Some(on) => eval(on, context, frames, self)?.is_true(),
                None => true,
            };
            let matched = on && self.join(scan, at + 1, context, frames, out)?;
            frames.pop();
            if !matched && !mine {
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

    /// The values of the first columns of the primary key that the conditions fix.
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

    /// Whether the row may match as far as the index tells: what it does not tell counts as true.
    fn may_match(
        &mut self,
        expr: &Expr,
        alias: &str,
        table: usize,
        index: &[usize],
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<bool, Halt> {
        if let Expr::Binary(op @ (Op::And | Op::Or), left, right) = expr {
            let left = self.may_match(left, alias, table, index, context, frames)?;
            let right = self.may_match(right, alias, table, index, context, frames)?;
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

    fn select(
        &mut self,
        select: &Select,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Vec<Vec<Value>>, Halt> {
        let limit = match &select.limit {
            Some(limit) => Some(eval(limit, context, frames, self)?.number() as usize),
            None => None,
        };
        let lock = select.locking.map(|locking| {
            let mode = if locking == Locking::Skip { Mode::Skip } else { Mode::Wait };
            (select.from[0].alias.as_str(), mode)
        });
        // A locking read stops at its limit, in the order of its index; a plain one is sorted.
        let most = limit.filter(|_| lock.is_some() || select.order.is_empty());
        let scan = Scan { sources: &select.from, filter: select.filter.as_ref(), lock, most };
        let mut joined = Vec::new();
        self.join(&scan, 0, context, frames, &mut joined)?;
        if matches!(select.items.as_slice(), [(Expr::Call(name, _), _)] if name == "COUNT") {
            return Ok(vec![vec![Value::Number(joined.len() as i128)]]);
        }
        if most.is_none() {
            self.sort(&select.order, &mut joined, context)?;
            joined.truncate(limit.unwrap_or(usize::MAX));
        }
        let mut rows = Vec::with_capacity(joined.len());
        for mut frames in joined {
            let items = select.items.iter().map(|(item, _)| eval(item, context, &mut frames, self));
            rows.push(items.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(rows)
    }

    pub(super) fn sort(
        &mut self,
        order: &[(Expr, bool)],
        joined: &mut Vec<Joined>,
        context: &Context<'_>,
    ) -> Result<(), Halt> {
        if order.is_empty() {
            return Ok(());
        }
        let mut keyed = Vec::with_capacity(joined.len());
        for mut frames in joined.drain(..) {
            let by = order.iter().map(|(expr, _)| eval(expr, context, &mut frames, self));
            keyed.push((by.collect::<Result<Vec<_>, _>>()?, frames));
        }
        keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
        if order[0].1 {
            keyed.reverse();
        }
        joined.extend(keyed.into_iter().map(|(_, frames)| frames));
        Ok(())
    }
}

impl Ask for Engine {
    fn call(&mut self, name: &str, arguments: &[Value], session: u64) -> Result<Value, Halt> {
        let name_of = |value: &Value| value.text();
        Ok(match (name, arguments) {
            ("LAST_INSERT_ID", []) => Value::Number(self.session(session).last_insert_id),
            ("GET_LOCK", [name, wait]) => {
                let wait = u64::try_from(wait.number()).expect("seconds");
                Value::truth(self.get_name(session, &name_of(name), wait)?)
            }
            ("IS_USED_LOCK", [name]) => match self.holder(&name_of(name)) {
                Some(holder) => Value::Number(holder.into()),
                None => Value::Null,
            },
            ("IS_FREE_LOCK", [name]) => Value::truth(self.holder(&name_of(name)).is_none()),
            _ => panic!("unknown to the model: {name}({arguments:?})"),
        })
    }

    fn query(
        &mut self,
        query: &Query,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Vec<Vec<Value>>, Halt> {
        let mut rows = Vec::new();
        for select in &query.0 {
            rows.extend(self.select(select, context, frames)?);
        }
        Ok(rows)
    }
}

/// The conditions that must all hold.
fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Binary(Op::And, left, right) => {
            let mut all = conjuncts(left);
            all.extend(conjuncts(right));
            all
        }
        other => vec![other],
    }
}

/// Whether the condition bounds `column` by itself.
fn bounds(condition: &Expr, column: &str) -> bool {
    let is = |expr: &Expr| matches!(expr, Expr::Name(_, name) if name.eq_ignore_ascii_case(column));
    match condition {
        Expr::Binary(_, left, _) | Expr::In(left, _) | Expr::Between(left, ..) => is(left),
        _ => false,
    }
}

/// Whether the expression can be told before a row of `alias` is looked at.
fn is_known(expr: &Expr, alias: &str) -> bool {
    !mentions(expr, &|table, _| table.is_none_or(|table| table == alias))
}

/// Whether any column of the expression is as asked.
fn mentions(expr: &Expr, asked: &dyn Fn(Option<&str>, &str) -> bool) -> bool {
    let any = |exprs: &[Expr]| exprs.iter().any(|expr| mentions(expr, asked));
    match expr {
        Expr::Name(table, name) => asked(table.as_deref(), name),
        Expr::Not(a) | Expr::Negative(a) | Expr::IsNull(a) | Expr::Interval(a, _) => {
            mentions(a, asked)
        }
        Expr::Binary(_, a, b) => mentions(a, asked) || mentions(b, asked),
        Expr::In(a, list) => mentions(a, asked) || any(list),
        Expr::Between(a, b, c) => [a, b, c].into_iter().any(|expr| mentions(expr, asked)),
        Expr::Call(_, arguments) => any(arguments),
        Expr::Case(cases, default) => {
            cases.iter().any(|(a, b)| mentions(a, asked) || mentions(b, asked))
                || default.as_ref().is_some_and(|expr| mentions(expr, asked))
        }
        Expr::Exists(_) | Expr::Scalar(_) => true,
        Expr::Null | Expr::Number(_) | Expr::Text(_) | Expr::Param(_) => false,
    }
}
