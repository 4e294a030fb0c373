//! Names that people choose. They need no quoting and look the same in every log.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::mysql::{Mysql, MysqlValue};
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::Binary;
use serde::{Deserialize, Serialize};

use super::column::Text;
use crate::model::{Error, Result};

/// The longest name, in bytes.
pub(crate) const NAME_LIMIT: usize = 64;

/// Whether the text is a valid name: 1 to 64 of `A-Z a-z 0-9 . _ -`.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= NAME_LIMIT && name.bytes().all(allowed)
}

/// Stores a name as its text.
macro_rules! stored_as_text {
    ($Name:ident) => {
        impl FromSql<Binary, Mysql> for $Name {
            fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
                Ok(Self::new(Text::from_sql(value)?.0)?)
            }
        }

        impl ToSql<Binary, Mysql> for $Name {
            fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> serialize::Result {
                ToSql::<Binary, Mysql>::to_sql(self.as_str().as_bytes(), out)
            }
        }
    };
}

/// Defines the type of the names of one kind of thing.
macro_rules! name_type {
    ($(#[$meta:meta])* $Name:ident) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize, AsExpression, FromSqlRow,
        )]
        #[diesel(sql_type = Binary)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(try_from = "String", into = "String")]
        pub struct $Name(String);

        stored_as_text!($Name);

        impl $Name {
            /// Checks and creates a name.
            ///
            /// # Errors
            /// [`Error::InvalidName`](crate::Error::InvalidName) if it is empty, too long or has
            /// another character.
            pub fn new(name: impl Into<String>) -> crate::model::Result<Self> {
                let name = name.into();
                if is_name(&name) {
                    Ok(Self(name))
                } else {
                    Err(crate::model::Error::InvalidName { name })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $Name {
            type Err = crate::model::Error;

            fn from_str(text: &str) -> crate::model::Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $Name {
            type Error = crate::model::Error;

            fn try_from(name: String) -> crate::model::Result<Self> {
                Self::new(name)
            }
        }

        impl From<$Name> for String {
            fn from(name: $Name) -> Self {
                name.0
            }
        }
    };
}

name_type! {
    /// A schedule's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, compared byte for byte.
    ScheduleName
}

name_type! {
    /// The name of a member whose position is kept: 1 to 64 of `A-Z a-z 0-9 . _ -`, compared byte
    /// for byte.
    MemberName
}

/// A topic's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, compared byte for byte. A group's name is its
/// stream's name, `@` and its own: `orders@billing`. Cheap to clone: every delivery carries one.
#[derive(
    Debug,
    Clone,
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
#[cfg_attr(
    feature = "json-schema",
    schemars(extend("pattern" = "^[A-Za-z0-9._-]{1,64}(@[A-Za-z0-9._-]{1,64})?$"))
)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Arc<str>);

stored_as_text!(TopicName);

impl TopicName {
    /// Checks and creates a name.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if it is empty, too long or has another character.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let is_topic = match name.split_once('@') {
            Some((stream, group)) => is_name(stream) && is_name(group),
            None => is_name(&name),
        };
        if is_topic { Ok(Self(name.into())) } else { Err(Error::InvalidName { name }) }
    }

    /// The name of the stream's group `group`.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn of_group(stream: &Self, group: &str) -> Result<Self> {
        Self::new(format!("{stream}@{group}"))
    }

    /// The group's stream, if this is a group's name.
    #[must_use]
    pub fn stream(&self) -> Option<Self> {
        self.as_group().map(|(stream, _)| Self(stream.into()))
    }

    /// The stream and the group, if this is a group's name.
    #[must_use]
    pub fn as_group(&self) -> Option<(&str, &str)> {
        self.0.split_once('@')
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TopicName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for TopicName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whitelisted_bytes() {
        for good in ["a", "Mail.v2_x-1", &"x".repeat(NAME_LIMIT)] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a'", "a`", "../a", "é", "a\n", "ａ", &"x".repeat(NAME_LIMIT + 1)]
        {
            assert!(TopicName::new(bad).is_err(), "{bad:?}");
        }
    }
}
