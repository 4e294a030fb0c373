//! A case: loads to compare, each in the same rounds as its reference.

use serde::{Deserialize, Serialize};

use crate::figure::Name;
use crate::load::Load;

/// Loads that answer one question.
pub(crate) struct Case {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// The question.
    pub(crate) about: &'static str,
    /// Its loads.
    pub(crate) members: fn(&Scale) -> Vec<Member>,
    /// The least scale at which it runs.
    pub(crate) from: Extent,
}

/// One load of a case.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Member {
    /// The label of its row.
    pub(crate) name: String,
    /// The load to run.
    pub(crate) load: Load,
    /// The member by whose figures its own are divided.
    pub(crate) reference: Option<String>,
    /// The bars that its figures must meet.
    pub(crate) bars: Vec<Bar>,
}

/// The value that a figure must reach.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bar {
    /// Which figure.
    pub(crate) figure: Name,
    /// Whether the bar is for the ratio to the reference, or for the figure itself.
    pub(crate) of: Measure,
    /// The side of the bar on which the figure must lie.
    pub(crate) side: Side,
}

/// What a bar measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// The figure divided by its reference's.
    Ratio,
    /// The figure.
    Value,
}

/// The side of its bar on which a figure must lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Side {
    /// Returns whether `value` is on this side.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

impl Member {
    /// Creates a member without a reference.
    pub(crate) fn new(name: impl Into<String>, load: Load) -> Self {
        Self { name: name.into(), load, reference: None, bars: Vec::new() }
    }

    /// Divides its figures by those of the member of this name.
    pub(crate) fn against(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// Requires its rate, divided by the reference's, to be at least this.
    pub(crate) fn bar(self, least: f64) -> Self {
        self.must(Name::Rate, Measure::Ratio, Side::AtLeast(least))
    }

    /// Requires a figure to meet this bar.
    pub(crate) fn must(mut self, figure: Name, of: Measure, side: Side) -> Self {
        self.bars.push(Bar { figure, of, side });
        self
    }
}

/// How much time a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Extent {
    /// Minutes: for a first look, and to see that everything runs.
    Quick,
    /// Half an hour and more: for figures to be quoted.
    Full,
    /// With the backlogs of millions.
    Long,
}

/// How large the loads of a run are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// How much time it may take.
    pub(crate) extent: Extent,
    /// How often each load is run, in turn with the others of its case.
    pub(crate) rounds: usize,
    /// How long loads in a loop run.
    pub(crate) seconds: u64,
    /// Messages of a backlog that is drained in batches of hundreds and more.
    pub(crate) backlog: u64,
    /// Whether the server writes a binary log, which a doorbell needs.
    pub(crate) binlog: bool,
}

impl Scale {
    /// Returns the scale of an extent, on a server with or without a binary log.
    pub(crate) fn of(extent: Extent, binlog: bool) -> Self {
        let (rounds, seconds, backlog) = match extent {
            Extent::Quick => (1, 1, 20_000),
            Extent::Full | Extent::Long => (5, 4, 200_000),
        };
        Self { extent, rounds, seconds, backlog, binlog }
    }
}
