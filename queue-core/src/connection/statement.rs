use std::borrow::Cow;
use std::panic::Location;

use diesel::QueryResult;
use diesel::mysql::Mysql;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Binary, Nullable, Unsigned, Untyped};

/// SQL text with `?` for each bound value.
///
/// diesel's own `sql_query` is prepared again at every call (two round trips instead of one, in the
/// wire trace behind this); this one is kept prepared by its text. So the text must have few
/// shapes: numbers and names are bound, never written into it, and lists come padded
/// ([`RowSet`](crate::store::row_set::RowSet)).
#[derive(Debug, Clone)]
pub struct Statement<'q> {
    sql: Cow<'static, str>,
    values: Vec<Value<'q>>,
    once: bool,
}

/// A value bound to a statement.
#[derive(Debug, Clone)]
enum Value<'q> {
    /// An unsigned number.
    Number(u64),
    /// Bytes.
    Bytes(Cow<'q, [u8]>),
    /// Bytes, or NULL.
    MaybeBytes(Option<Cow<'q, [u8]>>),
    /// An unsigned number, or NULL.
    MaybeNumber(Option<u64>),
}

impl<'q> Statement<'q> {
    /// Logs, at level trace, the text and the file that makes the statement, but no values: they
    /// may be secrets of users.
    #[track_caller]
    pub(crate) fn new(sql: impl Into<Cow<'static, str>>) -> Self {
        let sql = sql.into();
        tracing::trace!(made_in = Location::caller().file(), %sql, "Making a statement.");
        Self { sql, values: Vec::new(), once: false }
    }

    pub(crate) fn sql(mut self, text: &str) -> Self {
        self.sql.to_mut().push_str(text);
        self
    }

    /// Does not keep the statement prepared if `once`: for texts of many shapes. A connection that
    /// had kept an INSERT of every size up to 1000 rows cost the server 2 GB, and 16 such
    /// connections used up all its prepared statements.
    pub(crate) fn once(mut self, once: bool) -> Self {
        self.once = once;
        self
    }

    /// Appends the text and values of `tail`.
    pub(crate) fn followed_by(mut self, tail: Self) -> Self {
        self.sql.to_mut().push_str(&tail.sql);
        self.values.extend(tail.values);
        self
    }

    pub(crate) fn number(mut self, value: impl Into<u64>) -> Self {
        self.values.push(Value::Number(value.into()));
        self
    }

    pub(crate) fn maybe_number(mut self, value: Option<u64>) -> Self {
        self.values.push(Value::MaybeNumber(value));
        self
    }

    pub(crate) fn numbers(mut self, values: impl IntoIterator<Item = u64>) -> Self {
        self.values.extend(values.into_iter().map(Value::Number));
        self
    }

    pub(crate) fn bytes(mut self, value: impl Into<Cow<'q, [u8]>>) -> Self {
        self.values.push(Value::Bytes(value.into()));
        self
    }

    pub(crate) fn maybe_bytes(mut self, value: Option<impl Into<Cow<'q, [u8]>>>) -> Self {
        self.values.push(Value::MaybeBytes(value.map(Into::into)));
        self
    }
}

impl QueryFragment<Mysql> for Statement<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        if self.once {
            out.unsafe_to_cache_prepared();
        }
        let mut texts = self.sql.split('?');
        out.push_sql(texts.next().unwrap_or_default());
        for (value, text) in self.values.iter().zip(&mut texts) {
            match value {
                Value::Number(number) => {
                    out.push_bind_param::<Unsigned<BigInt>, u64>(number)?;
                }
                Value::MaybeNumber(number) => {
                    out.push_bind_param::<Nullable<Unsigned<BigInt>>, Option<u64>>(number)?;
                }
                Value::Bytes(bytes) => out.push_bind_param::<Binary, Cow<'_, [u8]>>(bytes)?,
                Value::MaybeBytes(bytes) => {
                    out.push_bind_param::<Nullable<Binary>, Option<Cow<'_, [u8]>>>(bytes)?;
                }
            }
            out.push_sql(text);
        }
        debug_assert!(texts.next().is_none(), "a ? without a value in: {}", self.sql);
        Ok(())
    }
}

impl QueryId for Statement<'_> {
    type QueryId = ();
    // The text is the key of the statement cache.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Statement<'_> {
    type SqlType = Untyped;
}

impl<Conn> diesel::RunQueryDsl<Conn> for Statement<'_> {}
