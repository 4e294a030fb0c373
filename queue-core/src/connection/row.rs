//! Rows by position: the columns of a SELECT, read from the first to the last. Looking each of a
//! dozen columns up by its name took a tenth of a consumer's time.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryResult;
use diesel::deserialize::{FromSql, Result};
use diesel::mysql::sql_types::Datetime;
use diesel::mysql::{Mysql, MysqlValue};
use diesel::result::Error;
use diesel::row::{Field, Row};
use diesel::sql_types::{BigInt, Binary, Bool, Integer, TinyInt, Unsigned};
use uuid::Uuid;

use crate::model::{
    AuditNo, ClaimNo, ConnId, DeliveryNo, Headers, MemberName, MsgId, Offset, PartitionNo, Percent,
    Priority, RangeId, RowId, TopicId, TopicName, WorkerId,
};

/// The type that one column, or several consecutive ones, are read as: a [`FromColumn`], a tuple,
/// or a struct whose fields `row!` names in the order of the SELECT.
pub trait FromRow: Sized {
    /// Reads its columns.
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> Result<Self>;
}

/// The type that one column is read as.
pub trait FromColumn: Sized {
    /// Reads it; `None` is NULL.
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self>;
}

/// The columns of a row that have not been read yet.
#[derive(Debug)]
pub struct Columns<'c, R> {
    row: &'c R,
    next: usize,
}

impl<'r, R: Row<'r, Mysql>> Columns<'_, R> {
    /// Reads the next columns.
    pub fn take<T: FromRow>(&mut self) -> Result<T> {
        T::from_row(self)
    }
}

/// Reads a row, which must have no columns beyond those of `T`.
pub(super) fn read<'r, T: FromRow>(row: &impl Row<'r, Mysql>) -> QueryResult<T> {
    let mut columns = Columns { row, next: 0 };
    let read = columns.take().map_err(Error::DeserializationError)?;
    let (taken, all) = (columns.next, row.field_count());
    if taken == all {
        return Ok(read);
    }
    Err(Error::DeserializationError(format!("{taken} of the {all} columns were read").into()))
}

/// The remaining columns, whatever they are.
#[derive(Debug)]
pub(crate) struct Rest;

impl FromRow for Rest {
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> Result<Self> {
        columns.next = columns.row.field_count();
        Ok(Self)
    }
}

impl<T: FromColumn> FromRow for T {
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> Result<Self> {
        let at = columns.next;
        columns.next += 1;
        let field = columns.row.get(at).ok_or_else(|| format!("there is no column {at}"))?;
        T::from_column(field.value()).map_err(|error| {
            format!("column {at} ({}): {error}", field.field_name().unwrap_or_default()).into()
        })
    }
}

macro_rules! tuples {
    ($(($($T:ident),+))+) => {$(
        impl<$($T: FromRow),+> FromRow for ($($T,)+) {
            fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> Result<Self> {
                Ok(($(columns.take::<$T>()?,)+))
            }
        }
    )+};
}

tuples! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

/// Reads a struct from a row: its fields, in the order of the SELECT. A function after a field
/// converts the value that was read.
macro_rules! row {
    ($Row:ident { $($field:ident $(: $through:path)?),+ $(,)? }) => {
        impl $crate::connection::FromRow for $Row {
            fn from_row<'r, R: diesel::row::Row<'r, diesel::mysql::Mysql>>(
                columns: &mut $crate::connection::Columns<'_, R>,
            ) -> diesel::deserialize::Result<Self> {
                Ok(Self { $($field: $($through)?(columns.take()?)),+ })
            }
        }
    };
}
pub(crate) use row;

impl<T: FromColumn> FromColumn for Option<T> {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        value.map(|value| T::from_column(Some(value))).transpose()
    }
}

macro_rules! plain {
    ($($Type:ty: $Sql:ty),+ $(,)?) => {$(
        impl FromColumn for $Type {
            fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
                <Self as FromSql<$Sql, Mysql>>::from_nullable_sql(value)
            }
        }
    )+};
}

plain! {
    bool: Bool,
    u8: Unsigned<TinyInt>,
    u32: Unsigned<Integer>,
    u64: Unsigned<BigInt>,
    i64: BigInt,
    Vec<u8>: Binary,
    NaiveDateTime: Datetime,
    AuditNo: Unsigned<BigInt>,
    ClaimNo: Unsigned<BigInt>,
    ConnId: Unsigned<BigInt>,
    DeliveryNo: Unsigned<Integer>,
    MemberName: Binary,
    MsgId: Binary,
    Offset: Unsigned<BigInt>,
    PartitionNo: Unsigned<Integer>,
    RangeId: Unsigned<BigInt>,
    RowId: Unsigned<BigInt>,
    TopicId: Unsigned<Integer>,
    TopicName: Binary,
    WorkerId: Unsigned<BigInt>,
}

impl FromColumn for Priority {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        u8::from_column(value).map(Self::from_stored)
    }
}

impl FromColumn for Percent {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        u8::from_column(value).map(Self::new)
    }
}

impl FromColumn for Uuid {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        Ok(Self::from_slice(bytes(value.as_ref())?)?)
    }
}

impl FromColumn for Headers {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        Ok(Self::from_stored(value.as_ref().map(MysqlValue::as_bytes)))
    }
}

impl FromColumn for DateTime<Utc> {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        NaiveDateTime::from_column(value).map(|time| time.and_utc())
    }
}

/// Replaces invalid UTF-8, so that people see the rest.
impl FromColumn for String {
    fn from_column(value: Option<MysqlValue<'_>>) -> Result<Self> {
        Ok(Self::from_utf8_lossy(bytes(value.as_ref())?).into_owned())
    }
}

fn bytes<'v>(value: Option<&MysqlValue<'v>>) -> Result<&'v [u8]> {
    value.map(MysqlValue::as_bytes).ok_or_else(|| "NULL, where a value must be".into())
}

#[cfg(test)]
mod tests {
    use diesel::mysql::MysqlType;

    use super::*;

    fn read<T: FromColumn>(bytes: &[u8]) -> Result<T> {
        T::from_column(Some(MysqlValue::new(bytes, MysqlType::Blob)))
    }

    #[test]
    fn an_id_of_another_length_is_an_error() {
        assert_eq!(read::<MsgId>(&[7; 16]).unwrap(), MsgId(Uuid::from_bytes([7; 16])));
        assert!(read::<MsgId>(&[7; 15]).is_err());
        assert!(MsgId::from_column(None).is_err());
        assert_eq!(Option::<MsgId>::from_column(None).unwrap(), None);
    }

    #[test]
    fn a_name_that_is_none_is_an_error_and_a_text_is_read_as_far_as_it_goes() {
        assert!(read::<TopicName>(b"a b").is_err());
        assert_eq!(read::<String>(b"a\xffb").unwrap(), "a\u{fffd}b");
    }
}
