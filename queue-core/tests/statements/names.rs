//! The names in a statement that mean nothing.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::{mem, slice};

use sqlparser::ast::{
    Assignment, AssignmentTarget, Delete, Expr, FromTable, Ident, Insert, ObjectName, OnInsert,
    OrderBy, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, Statement, TableFactor,
    TableObject, Update, Visit, Visitor, visit_relations,
};

use crate::schema::Schema;
use crate::scope::{Scope, last};

/// Words that stand where a column could, and are none: a unit of `TIMESTAMPDIFF`, and a column's
/// default.
const WORDS: [&str; 2] = ["MICROSECOND", "DEFAULT"];

/// Returns what is wrong with the tables and columns that the statement names.
pub(crate) fn wrong_in(statement: &Statement, schema: &Schema) -> BTreeSet<String> {
    let (scopes, hidden, ends) = (Vec::new(), Vec::new(), Vec::new());
    let mut reader = Reader { schema, scopes, hidden, ends, wrong: BTreeSet::new() };
    match statement {
        Statement::Query(query) => reader.read(query),
        Statement::Insert(insert) => reader.insert(insert),
        Statement::Update(update) => reader.update(update),
        Statement::Delete(delete) => reader.delete(delete),
        // What else there is names variables of the server, or defines columns.
        other => {
            let ControlFlow::Continue(()) =
                visit_relations(other, |name| reader.pre_visit_relation(name));
        }
    }
    reader.wrong
}

struct Reader<'s> {
    schema: &'s Schema,
    /// From the outermost to the innermost.
    scopes: Vec<Scope>,
    /// The scopes around each derived table that is being read. It cannot name what is in them.
    hidden: Vec<Vec<Scope>>,
    /// What can be named at the end of each query that is being read, where it is ordered.
    ends: Vec<Scope>,
    wrong: BTreeSet<String>,
}

impl Reader<'_> {
    fn read(&mut self, node: &impl Visit) {
        let ControlFlow::Continue(()) = node.visit(self);
    }

    fn insert(&mut self, insert: &Insert) {
        let TableObject::TableName(table) = &insert.table else {
            panic!("this test cannot read an INSERT into {}", insert.table);
        };
        self.read_table(table);
        // First, where the columns of the table that the rows go to cannot be named.
        self.read(&insert.source);
        self.scopes.push(Scope::of_table(table, self.schema));
        insert.columns.iter().for_each(|column| self.read_target(column));
        self.read_assignments(&insert.assignments);
        if let Some(OnInsert::DuplicateKeyUpdate(assignments)) = &insert.on {
            self.read_assignments(assignments);
        }
        self.scopes.pop();
    }

    fn update(&mut self, update: &Update) {
        self.scopes.push(Scope::of([&update.table], self.schema));
        self.read(&update.table);
        self.read_assignments(&update.assignments);
        self.read(&update.selection);
        self.read(&update.order_by);
        self.scopes.pop();
    }

    fn delete(&mut self, delete: &Delete) {
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
        let scope = Scope::of(from, self.schema);
        for table in delete.tables.iter().map(last).filter(|table| !scope.has_table(table)) {
            self.wrong.insert(format!("there is no table {table} to delete from"));
        }
        self.scopes.push(scope);
        self.read(from);
        self.read(&delete.selection);
        self.read(&delete.order_by);
        self.scopes.pop();
    }

    fn read_assignments(&mut self, assignments: &[Assignment]) {
        for assignment in assignments {
            match &assignment.target {
                AssignmentTarget::ColumnName(column) => self.read_target(column),
                AssignmentTarget::Tuple(columns) => {
                    columns.iter().for_each(|column| self.read_target(column));
                }
            }
            self.read(&assignment.value);
        }
    }

    fn read_target(&mut self, column: &ObjectName) {
        let parts: Vec<Ident> = column.0.iter().filter_map(|it| it.as_ident()).cloned().collect();
        self.read_column(&parts);
    }

    fn read_table(&mut self, table: &ObjectName) {
        if !self.schema.has(table) {
            self.wrong.insert(format!("there is no table {}", last(table)));
        }
    }

    /// Reads a column's name, with that of its table before it, or alone.
    fn read_column(&mut self, parts: &[Ident]) {
        match parts {
            [column] => {
                let name = column.value.as_str();
                let is_word = column.quote_style.is_none() && WORDS.contains(&name);
                let is_variable = name.starts_with('@');
                if !is_word && !is_variable && !self.scopes.iter().any(|scope| scope.has(name)) {
                    self.wrong.insert(format!("there is no column {name}"));
                }
            }
            [.., table, column] => {
                let (table, name) = (table.value.as_str(), column.value.as_str());
                let scope = self.scopes.iter().rev().find(|scope| scope.has_table(table));
                if !scope.is_some_and(|scope| scope.has_column(Some(table), name)) {
                    self.wrong.insert(format!("there is no column {table}.{name}"));
                }
            }
            [] => {}
        }
    }
}

impl Visitor for Reader<'_> {
    type Break = Infallible;

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<Infallible> {
        self.read_table(name);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Infallible> {
        match expr {
            Expr::Identifier(name) => self.read_column(slice::from_ref(name)),
            Expr::CompoundIdentifier(parts) => self.read_column(parts),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Infallible> {
        if let TableFactor::Derived { lateral: false, .. } = table {
            self.hidden.push(mem::take(&mut self.scopes));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Infallible> {
        if let TableFactor::Derived { lateral: false, .. } = table {
            self.scopes = self.hidden.pop().unwrap();
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Infallible> {
        let scope = Scope::within(select, self.schema);
        for item in &select.projection {
            if let SelectItem::QualifiedWildcard(kind, _) = item
                && let SelectItemQualifiedWildcardKind::ObjectName(table) = kind
                && !scope.has_table(&last(table))
            {
                self.wrong.insert(format!("there is no table {table} for {item}"));
            }
        }
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &Select) -> ControlFlow<Infallible> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Infallible> {
        self.ends.push(Scope::at_the_end_of(query, self.schema));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Infallible> {
        self.ends.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_order_by(&mut self, _: &OrderBy) -> ControlFlow<Infallible> {
        self.scopes.extend(self.ends.last().cloned());
        ControlFlow::Continue(())
    }

    fn post_visit_order_by(&mut self, _: &OrderBy) -> ControlFlow<Infallible> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }
}
