//! Types for columns of the database that Diesel has no type for.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::mysql::sql_types::Datetime;
use diesel::mysql::{Mysql, MysqlValue};
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{Binary, Nullable};

/// Text in a column of bytes. Invalid UTF-8 is replaced, so that people see the rest.
#[derive(Debug, Clone, PartialEq, Eq, AsExpression, FromSqlRow)]
#[diesel(sql_type = Binary)]
pub struct Text(pub String);

impl FromSql<Binary, Mysql> for Text {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(String::from_utf8_lossy(value.as_bytes()).into_owned()))
    }
}

impl ToSql<Binary, Mysql> for Text {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> serialize::Result {
        ToSql::<Binary, Mysql>::to_sql(self.0.as_bytes(), out)
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

/// As [`Text`], or NULL.
#[derive(Debug, FromSqlRow)]
pub struct MaybeText(Option<String>);

impl FromSql<Nullable<Binary>, Mysql> for MaybeText {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        Text::from_sql(value).map(|text| Self(Some(text.0)))
    }

    fn from_nullable_sql(value: Option<MysqlValue<'_>>) -> deserialize::Result<Self> {
        value.map_or(Ok(Self(None)), Self::from_sql)
    }
}

impl From<MaybeText> for Option<String> {
    fn from(text: MaybeText) -> Self {
        text.0
    }
}

/// A moment, which the database stores in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, AsExpression, FromSqlRow)]
#[diesel(sql_type = Datetime)]
pub struct Time(pub DateTime<Utc>);

impl FromSql<Datetime, Mysql> for Time {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        <NaiveDateTime as FromSql<Datetime, Mysql>>::from_sql(value)
            .map(|time| Self(time.and_utc()))
    }
}

impl ToSql<Datetime, Mysql> for Time {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> serialize::Result {
        let time = self.0.naive_utc();
        ToSql::<Datetime, Mysql>::to_sql(&time, &mut out.reborrow())
    }
}

impl From<Time> for DateTime<Utc> {
    fn from(time: Time) -> Self {
        time.0
    }
}
