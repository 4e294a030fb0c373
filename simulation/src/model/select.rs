//! Queries, and what only the engine can tell an expression.

use super::engine::Engine;
use super::eval::{Ask, Context, Frame, eval};
use super::join::{Joined, Mode, Scan};
use super::locks::Halt;
use super::value::Value;
use crate::sql::{Expr, Locking, Query, Select};

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
