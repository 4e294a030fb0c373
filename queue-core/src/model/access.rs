use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{Error, Result, TopicName};

/// The operations that are allowed on a topic, or on all topics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Producers enqueue and consumers claim.
    #[default]
    ReadWrite,
    /// Producers enqueue; consumers claim nothing, and messages wait.
    WriteOnly,
    /// Producers are refused; consumers continue with what is there.
    ReadOnly,
    /// Producers are refused, and consumers claim nothing.
    Denied,
}

impl Access {
    /// Every rule.
    pub const ALL: [Self; 4] = [Self::ReadWrite, Self::WriteOnly, Self::ReadOnly, Self::Denied];

    /// The rule that allows these operations.
    #[must_use]
    pub fn new(enqueue: bool, claim: bool) -> Self {
        match (enqueue, claim) {
            (true, true) => Self::ReadWrite,
            (true, false) => Self::WriteOnly,
            (false, true) => Self::ReadOnly,
            (false, false) => Self::Denied,
        }
    }

    /// Whether producers may enqueue.
    #[must_use]
    pub fn may_enqueue(self) -> bool {
        matches!(self, Self::ReadWrite | Self::WriteOnly)
    }

    /// Whether consumers claim.
    #[must_use]
    pub fn may_claim(self) -> bool {
        matches!(self, Self::ReadWrite | Self::ReadOnly)
    }

    /// The operations that both rules allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let enqueue = self.may_enqueue() && other.may_enqueue();
        Self::new(enqueue, self.may_claim() && other.may_claim())
    }

    /// The rule as a word, for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ReadWrite => "read-write",
            Self::WriteOnly => "write-only",
            Self::ReadOnly => "read-only",
            Self::Denied => "denied",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Access {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|access| access.word() == text).ok_or_else(|| Error::Setting {
            name: "access",
            value: text.to_owned(),
            fix: "it is read-write, write-only, read-only or denied",
        })
    }
}

/// The rule that refuses a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The topic's own.
    Topic,
    /// The switch for all topics.
    Switch,
}

impl ClosedBy {
    /// The end of the sentence that says that `topic` takes no messages.
    pub(crate) fn how_to_open(self, topic: &TopicName) -> String {
        match self {
            Self::Topic => format!(": `rowmq topic resume {topic}` opens it again"),
            Self::Switch => {
                ", nor does any other: `rowmq access read-write` opens them again".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_of_two_rules_holds_in_each_direction() {
        for one in Access::ALL {
            assert_eq!(one.and(Access::ReadWrite), one);
            assert_eq!(one.and(Access::Denied), Access::Denied);
            assert_eq!(one.and(one), one);
            assert_eq!(Access::new(one.may_enqueue(), one.may_claim()), one);
        }
        assert_eq!(Access::WriteOnly.and(Access::ReadOnly), Access::Denied);
    }

    #[test]
    fn a_rule_is_one_of_four_words() {
        for one in Access::ALL {
            assert_eq!(one.to_string().parse::<Access>().expect("a rule"), one);
        }
        for wrong in ["", "readonly", "Read-Only", "open"] {
            let error = wrong.parse::<Access>().expect_err("no rule");
            assert!(error.to_string().contains("denied"), "{error}");
        }
    }
}
