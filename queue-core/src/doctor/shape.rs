//! Whether the tables have the columns and keys that the migrations create. A restore, another tool
//! or a person may have changed them.

use std::collections::BTreeSet;

use super::{Check, Verdict, check};
use crate::connection::Connection;
use crate::model::Result;
use crate::store::doctor::shape;

/// The shape that the migrations create, as [`shape`] reads it. A test compares it with both
/// servers, and writes it: `the_tables_have_the_shape_that_the_doctor_expects`.
const EXPECTED: &str = include_str!("shape.txt");

/// The most differences that the check names.
const NAMED: usize = 5;

pub(super) async fn tables(conn: &mut impl Connection) -> Result<Check> {
    let found: BTreeSet<String> = shape(conn).await?.into_iter().collect();
    let missing: Vec<_> = EXPECTED.lines().filter(|line| !found.contains(*line)).collect();
    let named: Vec<_> = missing.iter().take(NAMED).map(|line| repair(line)).collect();
    let detail = match missing.len() {
        0 => "the tables have the columns and keys that the migrations make".to_owned(),
        count if count > NAMED => {
            format!("{}; and {} more differences", named.join("; "), count - NAMED)
        }
        _ => named.join("; "),
    };
    Ok(check("tables", missing.is_empty(), Verdict::Failure, detail))
}

/// Names what is missing and how to restore it. Additional columns and keys are the user's own.
fn repair(line: &str) -> String {
    match line.split_once(" COLUMN ") {
        Some((table, column)) => format!(
            "{table} lacks the column {column}, or has another type of it: take it from SHOW CREATE \
             TABLE {table} in an empty database after `rowmq migrate`"
        ),
        None => {
            let (table, key) = line.split_once(' ').unwrap_or((line, ""));
            format!("{table} lacks a key: ALTER TABLE {table} ADD {key}")
        }
    }
}
