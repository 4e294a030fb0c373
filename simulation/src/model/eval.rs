//! Evaluates expressions.

use sha2::{Digest, Sha256};

use super::engine::Facts;
use super::locks::{Failure, Halt};
use super::table::Id;
use super::value::{Row, Value};
use crate::sql::{Expr, Op};

/// The name of the row that an INSERT brings, where it conflicts with an existing one.
pub(super) const GIVEN: &str = "VALUES";

/// A table of the current statement, and its row being read.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) alias: std::rc::Rc<str>,
    pub(super) columns: std::rc::Rc<[String]>,
    pub(super) row: Row,
}

/// The context in which a statement is evaluated.
pub(super) struct Context<'a> {
    pub(super) session: Id,
    pub(super) facts: &'a Facts,
    pub(super) params: &'a [Value],
}

/// Questions that only the engine can answer.
pub(super) trait Ask {
    fn call(&mut self, name: &str, arguments: &[Value], session: Id) -> Result<Value, Halt>;
    fn query(
        &mut self,
        query: &crate::sql::Query,
        context: &Context<'_>,
        frames: &mut Vec<Frame>,
    ) -> Result<Vec<Vec<Value>>, Halt>;
}

/// Finds a column: its frame, and its place in the frame.
pub(super) fn find(frames: &[Frame], table: Option<&str>, name: &str) -> Option<(usize, usize)> {
    frames.iter().enumerate().rev().find_map(|(at, frame)| {
        if table.is_some_and(|table| table != &*frame.alias) {
            return None;
        }
        let place = frame.columns.iter().position(|column| column.eq_ignore_ascii_case(name))?;
        Some((at, place))
    })
}

pub(super) fn eval(
    expr: &Expr,
    context: &Context<'_>,
    frames: &mut Vec<Frame>,
    ask: &mut dyn Ask,
) -> Result<Value, Halt> {
    let mut go = |expr: &Expr| eval(expr, context, frames, ask);
    Ok(match expr {
        Expr::Null => Value::Null,
        Expr::Number(number) => Value::Number(*number),
        Expr::Text(text) => Value::bytes(text),
        Expr::Param(at) => context.params[*at].clone(),
        Expr::Name(table, name) => {
            let (frame, place) = find(frames, table.as_deref(), name)
                .unwrap_or_else(|| panic!("unknown column {table:?} {name}"));
            frames[frame].row[place].clone()
        }
        Expr::Not(inner) => match go(inner)? {
            Value::Null => Value::Null,
            value => Value::truth(!value.is_true()),
        },
        Expr::Negative(inner) => Value::Number(-go(inner)?.number()),
        Expr::Binary(Op::And, left, right) => match go(left)? {
            Value::Null => match go(right)? {
                right if right != Value::Null && !right.is_true() => Value::truth(false),
                _ => Value::Null,
            },
            left if !left.is_true() => Value::truth(false),
            _ => truth(go(right)?),
        },
        Expr::Binary(Op::Or, left, right) => match go(left)? {
            Value::Null => match go(right)? {
                right if right.is_true() => Value::truth(true),
                _ => Value::Null,
            },
            left if left.is_true() => Value::truth(true),
            _ => truth(go(right)?),
        },
        Expr::Binary(op, left, right) => {
            let left = go(left)?;
            match binary(*op, &left, &go(right)?) {
                Value::Number(number) if number > i128::from(u64::MAX) => {
                    return Err(Halt::Fail(Failure::OutOfRange));
                }
                value => value,
            }
        }
        Expr::In(left, list) => {
            let left = go(left)?;
            for one in list {
                if left != Value::Null && go(one)? == left {
                    return Ok(Value::truth(true));
                }
            }
            Value::truth(false)
        }
        Expr::Between(value, low, high) => {
            let value = go(value)?;
            let (low, high) = (go(low)?, go(high)?);
            let above = binary(Op::GreaterEqual, &value, &low);
            Value::truth(above.is_true() && binary(Op::LessEqual, &value, &high).is_true())
        }
        Expr::IsNull(inner) => Value::truth(go(inner)? == Value::Null),
        Expr::Case(cases, default) => {
            for (condition, value) in cases {
                if go(condition)?.is_true() {
                    return go(value);
                }
            }
            match default {
                Some(default) => go(default)?,
                None => Value::Null,
            }
        }
        Expr::Interval(number, unit) => match go(number)? {
            Value::Null => Value::Null,
            number => Value::Number(number.number() * unit),
        },
        Expr::Given(name) => {
            let (frame, place) = find(frames, Some(GIVEN), name).expect("a column of the new row");
            frames[frame].row[place].clone()
        }
        // It stops at the first value that is not NULL.
        Expr::Call(name, arguments) if name == "COALESCE" => {
            for one in arguments {
                let value = go(one)?;
                if value != Value::Null {
                    return Ok(value);
                }
            }
            Value::Null
        }
        Expr::Call(name, arguments) => {
            let arguments = arguments.iter().map(go).collect::<Result<Vec<_>, _>>()?;
            return function(name, &arguments, context, ask);
        }
        Expr::Exists(query) => Value::truth(!ask.query(query, context, frames)?.is_empty()),
        Expr::Scalar(query) => {
            let rows = ask.query(query, context, frames)?;
            rows.into_iter().next().map_or(Value::Null, |mut row| row.swap_remove(0))
        }
    })
}

fn truth(value: Value) -> Value {
    if value == Value::Null { value } else { Value::truth(value.is_true()) }
}

pub(super) fn binary(op: Op, left: &Value, right: &Value) -> Value {
    if op == Op::Same {
        return Value::truth(left == right);
    }
    if *left == Value::Null || *right == Value::Null {
        return Value::Null;
    }
    let sum = |number: i128| match left {
        Value::Time(_) => Value::Time(i64::try_from(number).expect("a time")),
        _ => Value::Number(number),
    };
    match op {
        Op::Equal => Value::truth(left == right),
        Op::Unequal => Value::truth(left != right),
        Op::Less => Value::truth(left < right),
        Op::LessEqual => Value::truth(left <= right),
        Op::Greater => Value::truth(left > right),
        Op::GreaterEqual => Value::truth(left >= right),
        Op::Plus => sum(left.number() + right.number()),
        Op::Minus => sum(left.number() - right.number()),
        Op::Times => Value::Number(left.number() * right.number()),
        Op::Modulo => Value::Number(left.number() % right.number()),
        Op::Divided => Value::Number(left.number() / right.number()),
        Op::And | Op::Or | Op::Same => unreachable!("handled above"),
    }
}

fn function(
    name: &str,
    arguments: &[Value],
    context: &Context<'_>,
    ask: &mut dyn Ask,
) -> Result<Value, Halt> {
    let facts = context.facts;
    Ok(match (name, arguments) {
        ("CONNECTION_ID", []) => Value::Number(context.session.into()),
        ("CURRENT_USER" | "USER", []) => Value::bytes(b"queue@%"),
        ("DATABASE", []) => Value::bytes(b"queue"),
        ("UTC_TIMESTAMP", _) => Value::Time(facts.now),
        ("UNIX_TIMESTAMP", []) => Value::Number((facts.now / 1_000_000).into()),
        ("LEAST", values) => values.iter().min().cloned().unwrap_or(Value::Null),
        ("GREATEST", values) => values.iter().max().cloned().unwrap_or(Value::Null),
        (
            "CONCAT" | "SHA2" | "IS_FREE_LOCK" | "IS_USED_LOCK" | "GET_LOCK" | "RELEASE_LOCK",
            values,
        ) if values.contains(&Value::Null) => Value::Null,
        ("CONCAT", values) => {
            Value::bytes(&values.iter().flat_map(Value::text).collect::<Vec<_>>())
        }
        ("CHAR_LENGTH" | "LENGTH", [Value::Null]) => Value::Null,
        ("CHAR_LENGTH" | "LENGTH", [value]) => Value::Number(value.text().len() as i128),
        ("SUBSTRING_INDEX", [value, at, Value::Number(-1)]) => {
            let (text, at) = (value.text(), at.text());
            let start = text.iter().rposition(|byte| [*byte] == at[..]).map_or(0, |at| at + 1);
            Value::bytes(&text[start..])
        }
        ("CRC32" | "TIMESTAMPDIFF", values) if values.contains(&Value::Null) => Value::Null,
        ("CRC32", [value]) => Value::Number(crc32(&value.text()).into()),
        ("TIMESTAMPDIFF", [from, to]) => Value::Number(to.number() - from.number()),
        ("LOWER", [value]) => Value::bytes(&value.text().to_ascii_lowercase()),
        ("HEX", [value]) => Value::bytes(&hex(&value.text())),
        ("UNHEX", [value]) => Value::bytes(&unhex(&value.text())),
        ("LEFT", [Value::Null, _]) => Value::Null,
        ("LEFT", [value, n]) => {
            let text = value.text();
            Value::bytes(&text[..text.len().min(n.number() as usize)])
        }
        ("SUBSTRING" | "CONV", values) if values.contains(&Value::Null) => Value::Null,
        ("SUBSTRING", [value, from, rest @ ..]) => {
            let bytes = value.text();
            let rest = rest.first().map_or(bytes.len(), |n| n.number() as usize);
            let bytes = bytes.into_iter().skip(from.number() as usize - 1).take(rest);
            Value::bytes(&bytes.collect::<Vec<_>>())
        }
        ("CONV", [digits, Value::Number(16), Value::Number(10)]) => {
            let text = String::from_utf8_lossy(&digits.text()).into_owned();
            Value::Number(u64::from_str_radix(&text, 16).unwrap_or(0).into())
        }
        ("RIGHT", [value, n]) => {
            let text = value.text();
            Value::bytes(&text[text.len().saturating_sub(n.number() as usize)..])
        }
        // The start of 1970, the only moment that is written as text.
        ("TIMESTAMP", [_]) => Value::Time(0),
        // For histories, which only people read.
        ("DATE_FORMAT", [time, _]) => Value::bytes(time.number().to_string().as_bytes()),
        ("SHA2", [value, _]) => {
            Value::bytes(&hex(&Sha256::digest(value.text())).to_ascii_lowercase())
        }
        ("@@", [name]) if *name == Value::bytes(b"auto_increment_increment") => Value::Number(1),
        ("@@", _) => Value::Number(16 << 20),
        _ => return ask.call(name, arguments, context.session),
    })
}

/// Computes a CRC-32 as in zip files.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

fn unhex(digits: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(digits);
    let pair = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(pair).collect()
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect()
}
