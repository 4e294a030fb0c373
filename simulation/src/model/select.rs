//! Queries, and values of expressions that only the engine knows.

use super::engine::Engine;
use super::eval::{Ask, Context, Frame, eval};
use super::join::{Joined, Mode, Scan};
use super::locks::Halt;
use super::value::Value;
use crate::sql::{Expr, From, Locking, Query, Select};

impl Engine {
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
            (std::slice::from_ref(&select.from[0].alias), mode)
        });
        // A locking read stops at its limit, in the order of its index. A plain one is sorted, and
        // so is one whose index does not have the order.
        let in_order = lock.is_some() && !self.is_sorted_by_itself(select);
        let most = limit.filter(|_| in_order || select.order.is_empty());
        let scan = Scan { sources: &select.from, filter: select.filter.as_ref(), lock, most };
        let mut joined = Vec::new();
        self.join(&scan, 0, context, frames, &mut joined)?;
        if matches!(select.items.as_slice(), [(Expr::Call(name, _), _)] if name == "COUNT") {
            return Ok(vec![vec![Value::Number(joined.len() as i128)]]);
        }
        if !select.group.is_empty() || select.items.iter().any(|(item, _)| is_aggregate(item)) {
            return self.grouped(select, joined, context);
        }
        if most.is_none() {
            self.sort(&select.order, &mut joined, context)?;
            joined.truncate(limit.unwrap_or(usize::MAX));
        }
        let mut rows = Vec::with_capacity(joined.len());
        for mut frames in joined {
            rows.push(self.items(select, context, &mut frames)?);
        }
        Ok(rows)
    }

    /// Evaluates the select list for one row.
    fn items(
        &mut self,
        select: &Select,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Vec<Value>, Halt> {
        let mut values = Vec::with_capacity(select.items.len());
        for (item, _) in &select.items {
            match item {
                Expr::Name(Some(alias), all) if all == "*" => {
                    let frame = frames.iter().find(|frame| &*frame.alias == alias.as_str());
                    values.extend(frame.expect("a table").row.iter().cloned());
                }
                item => values.push(eval(item, context, frames, self)?),
            }
        }
        Ok(values)
    }

    /// Returns the names of the select list.
    pub(super) fn names(&self, select: &Select) -> Vec<String> {
        let of = |(item, name): &(Expr, String)| match item {
            Expr::Name(Some(alias), all) if all == "*" => {
                let source = select.from.iter().find(|source| source.alias == *alias);
                match &source.expect("a table").table {
                    From::Query(query) => self.names(&query.0[0]),
                    From::Table(table) => self.columns(self.table(table)).to_vec(),
                    From::Json { .. } => panic!("unknown to the model: {alias}.*"),
                }
            }
            _ => vec![name.clone()],
        };
        select.items.iter().flat_map(of).collect()
    }

    /// Returns whether the index yields the rows in another order than the query wants.
    fn is_sorted_by_itself(&self, select: &Select) -> bool {
        let (source, order) = match (select.from.as_slice(), select.order.first()) {
            ([source, ..], Some((order, _))) => (source, order),
            _ => return false,
        };
        let (From::Table(name), Some(hint)) = (&source.table, &source.index) else { return false };
        let table = &self.tables[self.table(name)];
        let index = table.index(Some(hint), |_| false);
        let Expr::Name(_, column) = order else { return false };
        table.definition.place(column).is_some_and(|place| !index.contains(&place))
    }

    /// Returns one row per group of equal rows.
    fn grouped(
        &mut self,
        select: &Select,
        joined: Vec<Joined>,
        context: &Context<'_>,
    ) -> Result<Vec<Vec<Value>>, Halt> {
        let mut groups: Vec<(Vec<Value>, Vec<Joined>)> = Vec::new();
        if select.group.is_empty() {
            groups.push((Vec::new(), Vec::new()));
        }
        for mut frames in joined {
            let by = select.group.iter().map(|expr| eval(expr, context, &mut frames, self));
            let by = by.collect::<Result<Vec<_>, _>>()?;
            match groups.iter_mut().find(|(other, _)| *other == by) {
                Some((_, rows)) => rows.push(frames),
                None => groups.push((by, vec![frames])),
            }
        }
        // The wanted order is always the order of the GROUP BY.
        groups.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut answers = Vec::with_capacity(groups.len());
        for (_, mut rows) in groups {
            let mut values = Vec::with_capacity(select.items.len());
            for (item, _) in &select.items {
                let item = self.folded(item, &mut rows, context)?;
                let mut first = rows.first().cloned().unwrap_or_default();
                values.push(eval(&item, context, &mut first, self)?);
            }
            answers.push(values);
        }
        Ok(answers)
    }

    /// Replaces each aggregate of the expression by its number.
    fn folded(
        &mut self,
        expr: &Expr,
        rows: &mut [Joined],
        context: &Context<'_>,
    ) -> Result<Expr, Halt> {
        if matches!(expr, Expr::Call(name, _) if name == "COUNT") {
            return Ok(Expr::Number(rows.len() as i128));
        }
        let mut fold = |expr: &Expr| self.folded(expr, rows, context);
        match expr {
            Expr::Call(name, arguments) if is_aggregate(expr) && AGGREGATES.contains(&&**name) => {
                let mut values = Vec::new();
                for frames in rows {
                    values.push(eval(&arguments[0], context, frames, self)?);
                }
                values.retain(|value| *value != Value::Null);
                let numbers = values.iter().map(Value::number);
                Ok(match (name.as_str(), values.len()) {
                    (_, 0) => Expr::Null,
                    ("MIN", _) => Expr::Number(numbers.min().expect("some")),
                    ("AVG", n) => Expr::Number(numbers.sum::<i128>() / n as i128),
                    _ => Expr::Number(numbers.sum()),
                })
            }
            Expr::Call(name, arguments) => {
                let arguments = arguments.iter().map(fold).collect::<Result<_, _>>()?;
                Ok(Expr::Call(name.clone(), arguments))
            }
            Expr::Binary(op, left, right) => {
                let (left, right) = (fold(left)?, fold(right)?);
                Ok(Expr::Binary(*op, Box::new(left), Box::new(right)))
            }
            other => Ok(other.clone()),
        }
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

const AGGREGATES: [&str; 4] = ["SUM", "MIN", "AVG", "COUNT"];

/// Returns whether the expression contains an aggregate.
fn is_aggregate(expr: &Expr) -> bool {
    match expr {
        Expr::Call(name, arguments) => {
            AGGREGATES.contains(&name.as_str()) || arguments.iter().any(is_aggregate)
        }
        Expr::Binary(_, left, right) => is_aggregate(left) || is_aggregate(right),
        _ => false,
    }
}

impl Ask for Engine {
    fn call(&mut self, name: &str, arguments: &[Value], session: u64) -> Result<Value, Halt> {
        match (name, arguments) {
            ("LAST_INSERT_ID", []) => Ok(Value::Number(self.session(session).last_insert_id)),
            _ => self.ask_names(session, name, arguments),
        }
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
