//! Which messages of its stream a group wants.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{Error, Headers, Result};

/// The most bytes of a filter as it is stored.
const FILTER_LIMIT: usize = 4096;

/// One condition of a filter. A message without the header meets no condition.
///
/// As text: `type` (the header is there), `type=created,paid` (it is one of these),
/// `type!=created,paid` (it is none of these). Values are compared byte for byte; blanks around
/// names and values do not count, and a value has no comma.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct HeaderCondition {
    name: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Present,
    OneOf(BTreeSet<String>),
    NoneOf(BTreeSet<String>),
}

impl HeaderCondition {
    fn is_met(&self, headers: &Headers) -> bool {
        let Some(value) = headers.get(&self.name) else { return false };
        match &self.test {
            Test::Present => true,
            Test::OneOf(values) => values.contains(value),
            Test::NoneOf(values) => !values.contains(value),
        }
    }
}

impl fmt::Display for HeaderCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let (sign, values) = match &self.test {
            Test::Present => return Ok(()),
            Test::OneOf(values) => ("=", values),
            Test::NoneOf(values) => ("!=", values),
        };
        f.write_str(sign)?;
        for (at, value) in values.iter().enumerate() {
            write!(f, "{}{value}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for HeaderCondition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |reason| Error::InvalidFilter { text: text.to_owned(), reason };
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        let (name, is_not) = match name.strip_suffix('!') {
            Some(name) if values.is_some() => (name, true),
            _ => (name, false),
        };
        let name = name.trim();
        if name.is_empty() {
            return Err(refused("it begins with the name of a header"));
        }
        if name.contains(['!', ',']) {
            return Err(refused("the name of a header has neither ! nor a comma"));
        }
        if text.contains(char::is_control) {
            return Err(refused("it has a control character"));
        }
        let test = match values {
            None => Test::Present,
            Some(values) => {
                let values: BTreeSet<_> =
                    values.split(',').map(|value| value.trim().to_owned()).collect();
                if values.contains("") {
                    return Err(refused(
                        "a value is missing; the name alone asks whether the header is there",
                    ));
                }
                if is_not { Test::NoneOf(values) } else { Test::OneOf(values) }
            }
        };
        Ok(Self { name: name.to_owned(), test })
    }
}

impl TryFrom<String> for HeaderCondition {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<HeaderCondition> for String {
    fn from(condition: HeaderCondition) -> Self {
        condition.to_string()
    }
}

/// Which messages of its stream a group wants: those that meet every condition. Without conditions
/// it wants all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct HeaderFilter(Vec<HeaderCondition>);

impl HeaderFilter {
    /// Whether the group wants every message.
    #[must_use]
    pub fn wants_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the group wants a message with these headers.
    #[must_use]
    pub fn wants(&self, headers: &Headers) -> bool {
        self.0.iter().all(|condition| condition.is_met(headers))
    }

    /// What the database stores: `None` for a group that wants all.
    pub(crate) fn to_stored(&self) -> Result<Option<Vec<u8>>> {
        if self.wants_all() {
            return Ok(None);
        }
        let refused = |reason| Error::InvalidFilter { text: self.to_string(), reason };
        let stored = serde_json::to_vec(self).map_err(|_| refused("it is not JSON"))?;
        if stored.len() > FILTER_LIMIT {
            return Err(refused("it has more than 4096 bytes as JSON"));
        }
        Ok(Some(stored))
    }

    /// Reads what the database stores; `None` if it is no filter.
    pub(crate) fn from_stored(stored: Option<&[u8]>) -> Option<Self> {
        stored.map_or_else(|| Some(Self::default()), |stored| serde_json::from_slice(stored).ok())
    }
}

impl From<Vec<HeaderCondition>> for HeaderFilter {
    fn from(conditions: Vec<HeaderCondition>) -> Self {
        Self(conditions)
    }
}

impl fmt::Display for HeaderFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, condition) in self.0.iter().enumerate() {
            write!(f, "{}{condition}", if at == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(conditions: &[&str]) -> HeaderFilter {
        let parsed = conditions.iter().map(|text| text.parse().expect("a condition"));
        HeaderFilter(parsed.collect())
    }

    #[test]
    fn every_condition_must_be_met_by_one_of_its_values() {
        let headers = |pairs: &[(&str, &str)]| Headers::from_iter(pairs.iter().copied());
        let both = filter(&["type=created", "region=eu,us"]);
        assert!(both.wants(&headers(&[("type", "created"), ("region", "us"), ("x", "y")])));
        assert!(!both.wants(&headers(&[("type", "created"), ("region", "asia")])));
        assert!(!both.wants(&headers(&[("type", "created")])));
        assert!(!both.wants(&headers(&[("type", "Created"), ("region", "us")])));
        let not = filter(&["type!=created,paid"]);
        assert!(not.wants(&headers(&[("type", "sent")])));
        assert!(!not.wants(&headers(&[("type", "paid")])));
        assert!(!not.wants(&Headers::default()), "the header must be there");
        assert!(filter(&["type"]).wants(&headers(&[("type", "")])));
        assert!(!filter(&["type"]).wants(&headers(&[("kind", "")])));
        assert!(filter(&[]).wants(&Headers::default()) && filter(&[]).wants_all());
    }

    #[test]
    fn conditions_are_written_as_they_are_read() {
        for (text, written) in [
            ("type", "type"),
            (" type = created ", "type=created"),
            ("region=us, eu,us", "region=eu,us"),
            ("type != a , b", "type!=a,b"),
            ("query=a=b!", "query=a=b!"),
            ("city=New York", "city=New York"),
        ] {
            let condition: HeaderCondition = text.parse().expect("a condition");
            assert_eq!(condition.to_string(), written);
            assert_eq!(written.parse::<HeaderCondition>().expect("a condition"), condition);
        }
        let both = filter(&["type=created", "region!=eu,us"]);
        assert_eq!(both.to_string(), "type=created and region!=eu,us");
        let stored = both.to_stored().expect("it fits").expect("it says something");
        assert_eq!(HeaderFilter::from_stored(Some(&stored)), Some(both));
        assert_eq!(HeaderFilter::default().to_stored().expect("it fits"), None);
        assert_eq!(HeaderFilter::from_stored(Some(b"type=created")), None);
    }

    #[test]
    fn what_is_no_condition_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "name of a header"),
            ("=created", "name of a header"),
            ("!=created", "name of a header"),
            ("type=", "a value is missing"),
            ("type=a,,b", "a value is missing"),
            ("!type", "neither ! nor a comma"),
            ("type,kind=a", "neither ! nor a comma"),
            ("type=a\nb", "control character"),
        ] {
            let error = text.parse::<HeaderCondition>().expect_err("no condition").to_string();
            assert!(error.contains(reason) && error.contains(&format!("{text:?}")), "{error}");
        }
        let long = filter(&[&format!("type={}", "x".repeat(5000))]);
        assert!(long.to_stored().expect_err("too long").to_string().contains("4096"));
    }
}
