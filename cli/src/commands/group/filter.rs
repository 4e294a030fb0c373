use std::str::FromStr;

use rowmq_core::model::{HeaderCondition, HeaderFilter};

use crate::units::{Maybe, maybe};

/// Which messages a group wants, as users write it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct FilterArgs {
    /// Only messages whose headers meet this: type=created, region=eu,us (one of them), type!=test
    /// (none of them), or type (the header is there). If several are given, all must be met.
    /// Messages that are not wanted count as passed. None: all messages. New groups: none.
    #[arg(long = "filter", value_name = "CONDITION|none")]
    #[arg(value_parser = maybe(HeaderCondition::from_str))]
    conditions: Vec<Maybe<HeaderCondition>>,
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
