//! What the names in a part of a statement can mean.

use std::collections::BTreeSet;
use std::iter;

use sqlparser::ast::{
    Expr, JsonTableColumn, ObjectName, Query, Select, SelectItem, SetExpr, TableFactor,
    TableWithJoins,
};

use crate::schema::Schema;

/// The tables that can be named, and the names that are made on the way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    /// The tables, as they are called there, with their columns; `None` for any.
    tables: Vec<(String, Option<BTreeSet<String>>)>,
    /// The names that a select list gives.
    given: BTreeSet<String>,
}

impl Scope {
    /// The scope of one table.
    pub(crate) fn of_table(table: &ObjectName, schema: &Schema) -> Self {
        let tables = vec![(last(table), schema.columns(table))];
        Self { tables, given: BTreeSet::new() }
    }

    /// The scope of what follows a FROM.
    pub(crate) fn of<'t>(
        from: impl IntoIterator<Item = &'t TableWithJoins>,
        schema: &Schema,
    ) -> Self {
        let mut scope = Self::default();
        for tables in from {
            let joined = tables.joins.iter().map(|join| &join.relation);
            for table in iter::once(&tables.relation).chain(joined) {
                scope.add(table, schema);
            }
        }
        scope
    }

    /// The scope within a SELECT.
    pub(crate) fn within(select: &Select, schema: &Schema) -> Self {
        let given = select.projection.iter().filter_map(|item| match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
            _ => None,
        });
        Self { given: given.collect(), ..Self::of(&select.from, schema) }
    }

    /// The scope where the rows of a query are ordered: that of its first SELECT.
    pub(crate) fn at_the_end_of(query: &Query, schema: &Schema) -> Self {
        let select = first_select(&query.body);
        select.map(|select| Self::within(select, schema)).unwrap_or_default()
    }

    /// Returns whether a table is called so.
    pub(crate) fn has_table(&self, called: &str) -> bool {
        self.tables.iter().any(|(table, _)| table == called)
    }

    /// Returns whether a column can be named so, without its table.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.given.contains(name) || self.has_column(None, name)
    }

    /// Returns whether a table has the column; only those that are called `of`, if it is given.
    pub(crate) fn has_column(&self, of: Option<&str>, name: &str) -> bool {
        let tables = self.tables.iter().filter(|(table, _)| of.is_none_or(|of| of == table));
        let is_there = |columns: &BTreeSet<String>| columns.contains(name);
        tables.map(|(_, columns)| columns.as_ref()).any(|columns| columns.is_none_or(is_there))
    }

    fn add(&mut self, table: &TableFactor, schema: &Schema) {
        match table {
            TableFactor::Table { name, alias, .. } => {
                let called = alias.as_ref().map_or_else(|| last(name), |it| it.name.value.clone());
                self.tables.push((called, schema.columns(name)));
            }
            TableFactor::Derived { subquery, alias: Some(alias), .. } => {
                let columns = results(&subquery.body, schema);
                self.tables.push((alias.name.value.clone(), Some(columns)));
            }
            TableFactor::JsonTable { columns, alias: Some(alias), .. } => {
                let columns = columns.iter().filter_map(|column| match column {
                    JsonTableColumn::Named(column) => Some(column.name.value.clone()),
                    JsonTableColumn::ForOrdinality(name) => Some(name.value.clone()),
                    JsonTableColumn::Nested(_) => None,
                });
                self.tables.push((alias.name.value.clone(), Some(columns.collect())));
            }
            // Diesel writes a join so.
            TableFactor::NestedJoin { table_with_joins, .. } => {
                self.tables.extend(Self::of([&**table_with_joins], schema).tables);
            }
            other => panic!("this test cannot read a table such as {other}"),
        }
    }
}

/// Returns the names of a query's columns, which its first SELECT gives.
fn results(query: &SetExpr, schema: &Schema) -> BTreeSet<String> {
    let Some(select) = first_select(query) else { return BTreeSet::new() };
    let Scope { tables, given } = Scope::within(select, schema);
    let mut results = given;
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                results.insert(name.value.clone());
            }
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
                results.extend(parts.last().map(|name| name.value.clone()));
            }
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => {
                results.extend(tables.iter().flat_map(|(_, columns)| columns.clone()).flatten());
            }
            _ => {}
        }
    }
    results
}

fn first_select(query: &SetExpr) -> Option<&Select> {
    match query {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// Returns the last part of a name, without the database.
pub(crate) fn last(name: &ObjectName) -> String {
    name.0.last().and_then(|it| it.as_ident()).map(|it| it.value.clone()).unwrap_or_default()
}
