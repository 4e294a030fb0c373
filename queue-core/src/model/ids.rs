//! Newtypes for every number and id of the protocol, so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::mysql::{Mysql, MysqlValue};
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{BigInt, Binary, Integer, Unsigned};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty) as $Sql:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[derive(AsExpression, FromSqlRow)]
        #[diesel(sql_type = $Sql)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl FromSql<$Sql, Mysql> for $name {
            fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
                <$inner as FromSql<$Sql, Mysql>>::from_sql(value).map(Self)
            }
        }

        impl ToSql<$Sql, Mysql> for $name {
            fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> serialize::Result {
                <$inner as ToSql<$Sql, Mysql>>::to_sql(&self.0, out)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A topic's number in the database.
    TopicId(u32) as Unsigned<Integer>
}
number! {
    /// The row's auto-increment id: the order of insertion within a topic and priority.
    RowId(u64) as Unsigned<BigInt>
}
number! {
    /// A worker's registration; never reused.
    WorkerId(u64) as Unsigned<BigInt>
}
number! {
    /// The worker's own claim counter; `(WorkerId, ClaimNo)` is the fence and is never reused.
    ClaimNo(u64) as Unsigned<BigInt>
}
number! {
    /// A server connection, as shown by `CONNECTION_ID()` and the process list.
    ConnId(u64) as Unsigned<BigInt>
}
number! {
    /// How often the message has been claimed; together with the message id, the token that a
    /// handler passes on.
    DeliveryNo(u32) as Unsigned<Integer>
}
number! {
    /// A partition of a stream, from 0.
    PartitionNo(u32) as Unsigned<Integer>
}
number! {
    /// A message's place within its partition: dense, from 0, in the order of commits.
    Offset(u64) as Unsigned<BigInt>
}
number! {
    /// An entry of the audit.
    AuditNo(u64) as Unsigned<BigInt>
}
number! {
    /// The row of a claimed range.
    RangeId(u64) as Unsigned<BigInt>
}

/// A message's position in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Position {
    /// The partition.
    pub partition: PartitionNo,
    /// The offset in it.
    pub offset: Offset,
}

/// The message id: a UUIDv7 made by the producer before the first send.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    AsExpression,
    FromSqlRow,
)]
#[diesel(sql_type = Binary)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct MsgId(pub Uuid);

impl FromSql<Binary, Mysql> for MsgId {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(Uuid::from_slice(value.as_bytes())?))
    }
}

impl ToSql<Binary, Mysql> for MsgId {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> serialize::Result {
        ToSql::<Binary, Mysql>::to_sql(self.as_bytes(), out)
    }
}

impl MsgId {
    /// A new id; ids made later sort later.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The 16 bytes as the database stores them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// When it was made, by its producer's clock, to the millisecond; `None` for an id that the
    /// sender supplied and that is no UUIDv7.
    #[must_use]
    pub fn made_at(&self) -> Option<DateTime<Utc>> {
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        let is_v7 = self.0.get_version_num() == 7;
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos).filter(|_| is_v7)
    }

    /// The id from the database's bytes; `None` unless there are 16.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Uuid::from_slice(bytes).ok().map(Self)
    }
}

impl Default for MsgId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MsgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MsgId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}
