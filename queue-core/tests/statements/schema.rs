//! The tables and columns of the Diesel schema.

use std::collections::{BTreeMap, BTreeSet};

use sqlparser::ast::ObjectName;

use crate::scope::last;

/// The schema files that Diesel reads.
const FILES: [&str; 3] = [
    include_str!("../../src/schema.rs"),
    include_str!("../../src/schema/limit.rs"),
    include_str!("../../src/schema/stream.rs"),
];

/// Tables that the Diesel schema lacks, with their columns.
const BESIDE: [(&str, &[&str]); 3] = [
    // The ledger of applied migrations, and the secret: no query of a user's needs them.
    ("queue_schema_migration", &["name", "applied_at"]),
    ("queue_installation", &["only_row", "secret", "links"]),
    // The view of `ops/deploy/grants/process-list.sql`, which an operator may make.
    ("queue_connection", &["conn_id", "sees_all"]),
];

/// The columns of each table of ours.
pub(crate) struct Schema(BTreeMap<String, BTreeSet<String>>);

impl Schema {
    /// Reads the `table!` blocks as text: Diesel's own types do not give their names.
    pub(crate) fn read() -> Self {
        let mut tables = BTreeMap::new();
        for block in FILES.iter().flat_map(|file| file.split("table! {").skip(1)) {
            let (head, rest) = block.split_once('{').unwrap();
            let (name, _key) = head.trim().split_once('(').unwrap();
            let (columns, _) = rest.split_once('}').unwrap();
            let columns = columns.lines().filter_map(|line| line.trim().split_once(" -> "));
            let columns = columns.map(|(name, _)| name.to_owned()).collect();
            tables.insert(name.trim().to_owned(), columns);
        }
        let beside = BESIDE.map(|(table, columns)| {
            (table.to_owned(), columns.iter().map(ToString::to_string).collect())
        });
        tables.extend(beside);
        Self(tables)
    }

    /// Returns whether there is such a table. The server's own are named with their database, and
    /// are not looked for.
    pub(crate) fn has(&self, table: &ObjectName) -> bool {
        table.0.len() > 1 || self.0.contains_key(&last(table))
    }

    /// Returns the table's columns; `None` if it is the server's, or does not exist.
    pub(crate) fn columns(&self, table: &ObjectName) -> Option<BTreeSet<String>> {
        self.0.get(&last(table)).filter(|_| table.0.len() == 1).cloned()
    }
}
