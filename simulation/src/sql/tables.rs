//! The tables, read from the migrations, so that the model has the schema that servers have.

use rowmq_core::store::installation::TABLE;

use super::Expr;
use super::parser::Parser;

const MIGRATION: &str = include_str!("../../../migrations/2026-11-21-000001_queue/up.sql");

const SHARES: &str = include_str!("../../../migrations/2026-11-28-000001_shares/up.sql");

const LATER: [&str; 3] = [
    include_str!("../../../migrations/2026-11-24-000001_keep_dead/up.sql"),
    include_str!("../../../migrations/2026-11-29-000001_pages/up.sql"),
    include_str!("../../../migrations/2026-11-29-000002_doorbell/up.sql"),
];

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) default: Option<Expr>,
    pub(crate) counts_up: bool,
}

/// A table.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// The places of the primary key's columns.
    pub(crate) key: Vec<usize>,
    /// Every other index: its name, its columns' places, and whether it is unique.
    pub(crate) indexes: Vec<(String, Vec<usize>, bool)>,
    /// The conditions that every row must meet.
    pub(crate) checks: Vec<Expr>,
}

impl Definition {
    pub(crate) fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name.eq_ignore_ascii_case(column))
    }
}

/// Every table of the migrations.
pub(crate) fn definitions() -> Vec<Definition> {
    let later = [TABLE, SHARES].into_iter();
    let later = later.flat_map(|text| text.split("CREATE TABLE IF NOT EXISTS ").skip(1));
    let parts = MIGRATION.split("CREATE TABLE ").skip(1).chain(later);
    let tables = parts.map(|part| definition(part.split("ENGINE").next().unwrap_or_default()));
    let mut tables: Vec<_> = tables.collect();
    add_columns(&mut tables);
    tables
}

/// Adds the columns of later migrations.
fn add_columns(tables: &mut [Definition]) {
    for addition in LATER.iter().flat_map(|text| text.split("ALTER TABLE ").skip(1)) {
        let (table, text) = addition.split_once(" ADD COLUMN ").expect("it adds a column");
        let text = text.split(", ALGORITHM").next().unwrap_or_default();
        let table = tables.iter_mut().find(|known| known.name == table).expect("a table");
        for text in text.split(", ADD COLUMN ") {
            table.columns.push(column(&mut Parser::new(text)));
        }
    }
}

fn definition(text: &str) -> Definition {
    let mut parser = Parser::new(text);
    let name = parser.word();
    let mut table =
        Definition { name, columns: vec![], key: vec![], indexes: vec![], checks: vec![] };
    parser.in_parentheses(|p| p.list(|p| part(p, &mut table)));
    table
}

fn part(parser: &mut Parser, table: &mut Definition) {
    let places = |parser: &mut Parser, table: &Definition| {
        let names = parser.in_parentheses(|p| p.list(Parser::word));
        names.iter().map(|name| table.place(name).expect("a column")).collect::<Vec<_>>()
    };
    if parser.take_all("PRIMARY KEY") {
        table.key = places(parser, table);
    } else if parser.take_all("UNIQUE KEY") {
        let name = parser.word();
        let places = places(parser, table);
        table.indexes.push((name, places, true));
    } else if parser.takes("KEY") {
        let name = parser.word();
        let places = places(parser, table);
        table.indexes.push((name, places, false));
    } else if parser.takes("CONSTRAINT") {
        parser.word();
        parser.takes("CHECK");
        let check = parser.in_parentheses(Parser::expr);
        table.checks.push(check);
    } else {
        let column = column(parser);
        table.columns.push(column);
    }
}

fn column(parser: &mut Parser) -> Column {
    let name = parser.word();
    // Its type is skipped: the values that the store binds have it.
    parser.word();
    if parser.takes_symbol("(") {
        parser.next();
        parser.needs_symbol(")");
    }
    parser.takes("UNSIGNED");
    let nullable = !parser.take_all("NOT NULL") && parser.takes("NULL");
    let mut default = nullable.then_some(Expr::Null);
    if parser.takes("DEFAULT") {
        default = Some(parser.expr());
    }
    let counts_up = parser.takes("AUTO_INCREMENT");
    Column { name, default, counts_up }
}
