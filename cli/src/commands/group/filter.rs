use std::str::FromStr;

use rowmq_core::Error;
use rowmq_core::model::{HeaderCondition, HeaderFilter};

/// Which messages a group wants, as users write it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct FilterArgs {
    /// Only messages whose headers meet this: type=created, region=eu,us (one of them), type!=test
    /// (none of them), or type (the header is there). If several are given, all must be met.
    /// Messages that are not wanted count as passed. None: all messages. New groups: none.
    #[arg(long = "filter", value_name = "CONDITION|none")]
    conditions: Vec<MaybeCondition>,
}

/// A condition, or `none`.
#[derive(Debug, Clone)]
struct MaybeCondition(Option<HeaderCondition>);

impl FromStr for MaybeCondition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|it| Self(Some(it))) }
    }
}

impl FilterArgs {
    /// The filter that was given, or else this one.
    pub(super) fn or(self, filter: HeaderFilter) -> HeaderFilter {
        if self.conditions.is_empty() {
            return filter;
        }
        let conditions: Vec<_> = self.conditions.into_iter().filter_map(|it| it.0).collect();
        conditions.into()
    }
}
