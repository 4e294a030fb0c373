use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rowmq_core::MsgId;
use rowmq_core::connection::Session;
use rowmq_core::find::between;
use rowmq_core::model::DeadCause;
use rowmq_core::store::dead::DeadFilter;

use crate::units::{self, parse_time};

/// Which dead letters: those that match everything given.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Those that died within this time: 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    within: Option<Duration>,
    /// Those that died longer ago than this: 30d.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    older_than: Option<Duration>,
    /// Those that died of this cause.
    #[arg(long, value_parser = causes())]
    cause: Option<DeadCause>,
    /// Those whose last error contains this text, letter by letter.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// The message id.
    id: Option<MsgId>,
}

fn causes() -> impl TypedValueParser<Value = DeadCause> {
    PossibleValuesParser::new(DeadCause::ALL.map(DeadCause::stored)).try_map(|word| {
        let cause = DeadCause::ALL.into_iter().find(|cause| cause.stored() == word);
        cause.ok_or("no such cause")
    })
}

/// The filter's arguments, by clap's names.
pub(super) const NAMES: [&str; 5] = ["within", "older_than", "cause", "error", "id"];

/// A command that changes dead letters needs a filter, or --all.
pub(super) fn some_or_all() -> ArgGroup {
    ArgGroup::new("which").required(true).multiple(true).args(NAMES).arg("all")
}

impl FilterArgs {
    /// The filter in words, for the audit.
    pub(super) fn words(&self) -> String {
        let words = [
            self.error.as_ref().map(|text| format!("error has {text}")),
            self.cause.map(|cause| format!("cause {}", cause.stored())),
            self.within.map(|time| format!("within {}", units::time(time))),
            self.older_than.map(|time| format!("older than {}", units::time(time))),
            self.id.map(|id| id.to_string()),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        if words.is_empty() { "all".to_owned() } else { words.join(", ") }
    }

    pub(super) async fn filter(self, session: &mut Session) -> anyhow::Result<DeadFilter> {
        let (since, before) = between(session, self.within, self.older_than).await?;
        Ok(DeadFilter { cause: self.cause, error: self.error, msg_id: self.id, since, before })
    }
}
