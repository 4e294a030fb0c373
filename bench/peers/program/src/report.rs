use std::io::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::tally::Drained;
use crate::{Case, Peer};

/// The line on standard output.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    peer: &'static str,
    version: &'static str,
    case: &'static str,
    messages: u64,
    seconds: f64,
    settings: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    drain: Option<Drain>,
}

#[derive(Debug, Serialize)]
struct Drain {
    handled: u64,
    duplicates: u64,
    /// Consumers that ended by themselves, and why the first of them did.
    ended_consumers: usize,
    ended_because: Option<String>,
}

impl Report {
    pub(crate) fn new<P: Peer>(peer: &P, case: &Case, messages: u64, time: Duration) -> Self {
        Self {
            peer: P::NAME,
            version: P::VERSION,
            case: case.name(),
            messages,
            seconds: time.as_secs_f64(),
            settings: peer.settings(case),
            drain: None,
        }
    }

    pub(crate) fn of_drain<P: Peer>(peer: &P, case: &Case, drained: Drained) -> Self {
        let drain = Drain {
            handled: drained.handled,
            duplicates: drained.duplicates,
            ended_consumers: drained.ended.len(),
            ended_because: drained.ended.into_iter().next(),
        };
        let report = Self::new(peer, case, case.messages(), drained.time);
        Self { drain: Some(drain), ..report }
    }

    pub(crate) fn print(&self) -> anyhow::Result<()> {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(self)?)?;
        Ok(())
    }
}
