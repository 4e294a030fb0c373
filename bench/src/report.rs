//! The results of a run, as a table for people.

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets::NOTHING};

use crate::case::{Measure, Side};
use crate::figure::{Shown, Unit};
use crate::measurement::{BarOutcome, FigureOutcome, Outcome};
use crate::results::Circumstances;

/// Describes what is measured, before the first figure.
pub(crate) fn head(out: &mut impl Write, run: &Circumstances) -> anyhow::Result<()> {
    let settings = run.server.settings.iter().map(|(name, value)| format!("{name}={value}"));
    writeln!(out, "{}, {} cores", run.server.version, run.cores)?;
    writeln!(out, "{}", settings.collect::<Vec<_>>().join(", "))?;
    writeln!(
        out,
        "rounds {}; median (least–greatest); bodies of 200 bytes, 4 consumers with 16 \
         handlers, batches of 100, where a row says nothing else",
        run.rounds
    )?;
    Ok(())
}

/// Returns how many bars there were, and how many were met.
pub(crate) fn bars(cases: &[Outcome]) -> (usize, usize) {
    let rows = cases.iter().flat_map(|case| &case.rows);
    let bars = rows.flat_map(|row| &row.results).flat_map(|result| &result.bars);
    bars.fold((0, 0), |(all, met), bar| (all + 1, met + usize::from(bar.met)))
}

/// Shows the outcome of a case.
pub(crate) fn show(out: &mut impl Write, outcome: &Outcome) -> anyhow::Result<()> {
    writeln!(out, "\n{}: {}", outcome.case, outcome.about)?;
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["", "", "median", "(least–greatest)", "÷", "bar"]);
    for column in [2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in &outcome.rows {
        for (n, result) in row.results.iter().enumerate() {
            let name = if n == 0 { row.member.name.as_str() } else { "" };
            table.add_row(cells(name, result));
        }
    }
    writeln!(out, "{table}")?;
    let notes = outcome.rows.iter().filter_map(|row| Some((row, row.samples.first()?)));
    for (row, note) in notes.filter_map(|(row, sample)| Some((row, sample.note.as_ref()?))) {
        writeln!(out, "{}: {note}", row.member.name)?;
    }
    Ok(())
}

fn cells(name: &str, result: &FigureOutcome) -> [String; 6] {
    let shown = |value| Shown(value, result.unit);
    let value = result.value;
    let ratio = result.ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.median));
    let bars: Vec<_> = result.bars.iter().map(|bar| bar_text(bar, result.unit)).collect();
    [
        name.to_owned(),
        result.name.word().to_owned(),
        shown(value.median).to_string(),
        format!("({}–{})", shown(value.min), shown(value.max)),
        ratio,
        bars.join("; "),
    ]
}

fn bar_text(outcome: &BarOutcome, unit: Unit) -> String {
    let met = if outcome.met { "met" } else { "MISSED" };
    format!("{} {met}", side(outcome, unit))
}

/// Returns the bar itself, such as `≥ 0.9`.
pub(crate) fn side(outcome: &BarOutcome, unit: Unit) -> String {
    let shown = |value: f64| match outcome.bar.of {
        Measure::Ratio => format!("{value}"),
        Measure::Value => Shown(value, unit).to_string(),
    };
    match outcome.bar.side {
        Side::AtLeast(least) => format!("≥ {}", shown(least)),
        Side::AtMost(most) => format!("≤ {}", shown(most)),
    }
}
