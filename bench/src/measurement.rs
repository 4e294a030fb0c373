//! Runs a case: every load once a round, in turn, so that a slow minute of the machine affects a
//! load and its reference alike.

use std::collections::HashMap;

use anyhow::Context;
use indicatif::ProgressBar;
use rowmq_core::connection::ServerUrl;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::case::{Bar, Measure, Member};
use crate::figure::{Name, Sample, Spread, Unit};

/// The outcome of a case.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// Its name.
    pub(crate) case: String,
    /// Its question.
    pub(crate) about: String,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
}

/// The outcome of a load.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The load, stated in full.
    #[serde(flatten)]
    pub(crate) member: Member,
    /// Its figures.
    pub(crate) results: Vec<FigureOutcome>,
    /// Its rounds.
    pub(crate) samples: Vec<Sample>,
}

/// The outcome of a figure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FigureOutcome {
    /// Which figure.
    pub(crate) name: Name,
    /// Its unit.
    pub(crate) unit: Unit,
    /// Its values over the rounds.
    pub(crate) value: Spread,
    /// Divided, round by round, by the reference's.
    pub(crate) ratio: Option<Spread>,
    /// Its bars, and whether it met them.
    pub(crate) bars: Vec<BarOutcome>,
}

/// Whether a bar was met.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct BarOutcome {
    /// The bar.
    #[serde(flatten)]
    pub(crate) bar: Bar,
    /// Whether the median met it.
    pub(crate) met: bool,
}

/// Runs the loads of a case, `rounds` times each.
pub(crate) async fn run(
    server: &ServerUrl,
    members: Vec<Member>,
    rounds: usize,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Row>> {
    let mut samples: Vec<Vec<Sample>> = members.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        // A separate database: rows that one round leaves to be purged do not slow down the next.
        let arena = Arena::new(server).await?;
        for (member, samples) in members.iter().zip(&mut samples) {
            bar.set_message(format!("{} (round {round})", member.name));
            let sample = member.load.run(&arena).await;
            samples.push(sample.with_context(|| format!("The load '{}' failed", member.name))?);
            bar.inc(1);
        }
    }
    let by_name: HashMap<String, Vec<Sample>> =
        members.iter().map(|member| member.name.clone()).zip(samples.iter().cloned()).collect();
    Ok(members
        .into_iter()
        .zip(samples)
        .map(|(member, samples)| {
            let reference = member.reference.as_ref().and_then(|name| by_name.get(name));
            let results = results(&member, &samples, reference.map(Vec::as_slice));
            Row { member, results, samples }
        })
        .collect())
}

fn results(member: &Member, samples: &[Sample], of: Option<&[Sample]>) -> Vec<FigureOutcome> {
    let names = samples.first().map(|sample| sample.figures.iter().map(|figure| figure.name));
    let outcome = |name: Name| {
        let value = Spread::of(samples.iter().filter_map(|sample| sample.value(name)))?;
        let ratio = of.and_then(|of| {
            let pairs = samples.iter().zip(of);
            Spread::of(pairs.filter_map(|(one, of)| Some(one.value(name)? / of.value(name)?)))
        });
        let bars = member.bars.iter().filter(|bar| bar.figure == name);
        let bars = bars.filter_map(|bar| {
            let value = match bar.of {
                Measure::Ratio => ratio?.median,
                Measure::Value => value.median,
            };
            Some(BarOutcome { bar: *bar, met: bar.side.holds(value) })
        });
        Some(FigureOutcome { name, unit: name.unit(), value, ratio, bars: bars.collect() })
    };
    names.into_iter().flatten().filter_map(outcome).collect()
}
