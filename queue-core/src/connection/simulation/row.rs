use std::ops::Range;
use std::sync::Arc;

use diesel::backend::Backend;
use diesel::mysql::{Mysql, MysqlType, MysqlValue};
use diesel::row::{Field, PartialRow, RowIndex, RowSealed};

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How its values are encoded.
    pub kind: MysqlType,
}

/// A row of a result, with its values as they come over the wire.
#[derive(Debug, Clone)]
pub struct Row {
    /// The columns, the same for all rows of a result.
    pub columns: Arc<[Column]>,
    /// One per column; `None` is NULL.
    pub values: Vec<Option<Vec<u8>>>,
}

/// A value of a row.
#[derive(Debug)]
pub struct RowField<'r> {
    column: &'r Column,
    value: Option<&'r [u8]>,
}

impl RowIndex<usize> for Row {
    fn idx(&self, index: usize) -> Option<usize> {
        (index < self.values.len()).then_some(index)
    }
}

impl<'n> RowIndex<&'n str> for Row {
    fn idx(&self, name: &'n str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

impl RowSealed for Row {}

impl<'a> diesel::row::Row<'a, Mysql> for Row {
    type Field<'f>
        = RowField<'f>
    where
        'a: 'f,
        Self: 'f;
    type InnerPartialRow = Self;

    fn field_count(&self) -> usize {
        self.values.len()
    }

    fn get<'b, I>(&'b self, index: I) -> Option<RowField<'b>>
    where
        'a: 'b,
        Self: RowIndex<I>,
    {
        let index = self.idx(index)?;
        Some(RowField { column: &self.columns[index], value: self.values[index].as_deref() })
    }

    fn partial_row(&self, range: Range<usize>) -> PartialRow<'_, Self> {
        PartialRow::new(self, range)
    }
}

impl Field<'_, Mysql> for RowField<'_> {
    fn field_name(&self) -> Option<&str> {
        Some(&self.column.name)
    }

    fn value(&self) -> Option<<Mysql as Backend>::RawValue<'_>> {
        self.value.map(|value| MysqlValue::new(value, self.column.kind))
    }
}
