//! A case's newest results on several servers, as the Markdown table of docs/performance.md.

use std::io::Write;
use std::path::PathBuf;

use crate::case::Extent;
use crate::figure::{Name, Shown};
use crate::measurement::FigureOutcome;
use crate::report;
use crate::results::{Circumstances, Recorded, newest};

/// Prints the table of a case, with three columns for each file: the figure, its ratio to the
/// reference, and its bar.
pub(crate) fn print(out: &mut impl Write, case: &str, files: &[PathBuf]) -> anyhow::Result<()> {
    let columns: anyhow::Result<Vec<_>> = files.iter().map(|file| newest(file, case)).collect();
    table(out, &columns?)
}

fn table(out: &mut impl Write, columns: &[Recorded]) -> anyhow::Result<()> {
    let heads = columns.iter().map(|column| format!(" {} | ÷ | bar |", server(&column.run)));
    writeln!(out, "| load |{}", heads.collect::<String>())?;
    writeln!(out, "|---|{}", "---|---|---|".repeat(columns.len()))?;
    for (load, figure) in rows(columns) {
        let cells = columns.iter().map(|column| cells(column, load, figure));
        let of = if figure == Name::Rate { String::new() } else { format!(", {}", figure.word()) };
        writeln!(out, "| {load}{of} |{}", cells.collect::<String>())?;
    }
    for column in columns {
        writeln!(out, "\n{}", origin(&column.run))?;
    }
    Ok(())
}

/// Returns the loads and their figures, each once, in the order in which they were measured.
fn rows(columns: &[Recorded]) -> Vec<(&str, Name)> {
    let mut rows = Vec::new();
    for row in columns.iter().flat_map(|column| &column.rows) {
        for result in &row.results {
            if !rows.contains(&(row.name.as_str(), result.name)) {
                rows.push((&row.name, result.name));
            }
        }
    }
    rows
}

fn cells(column: &Recorded, load: &str, figure: Name) -> String {
    let row = column.rows.iter().find(|row| row.name == load);
    let result = row.and_then(|row| row.results.iter().find(|result| result.name == figure));
    result.map_or_else(|| "  |  |  |".to_owned(), cells_of)
}

fn cells_of(result: &FigureOutcome) -> String {
    let shown = |value| Shown(value, result.unit);
    let value = result.value;
    let ratio = result.ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.median));
    let bars = result.bars.iter().map(|bar| {
        let missed = if bar.met { "" } else { " **missed**" };
        format!("{}{missed}", report::side(bar, result.unit))
    });
    let bars = bars.collect::<Vec<_>>().join("; ");
    let (median, min, max) = (shown(value.median), shown(value.min), shown(value.max));
    format!(" {median} ({min}–{max}) | {ratio} | {bars} |")
}

/// Returns the product and its version, and whether it syncs a binary log.
fn server(run: &Circumstances) -> String {
    let binlog = if run.server.has_binlog() { ", binary log" } else { "" };
    match run.server.version.split_once("-MariaDB") {
        Some((version, _)) => format!("MariaDB {version}{binlog}"),
        None => format!("{}{binlog}", run.server.version),
    }
}

/// Says where the figures of a column come from.
fn origin(run: &Circumstances) -> String {
    let settings = run.server.settings.iter().map(|(name, value)| format!("`{name}={value}`"));
    let extent = if run.extent == Extent::Quick { ", the quick form" } else { "" };
    let commit = run.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    format!(
        "{}: rounds {}{extent}, {} cores, {}{commit}; {}.",
        server(run),
        run.rounds,
        run.cores,
        run.at.format("%Y-%m-%d"),
        settings.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as a run adds it, with what the table does not show left out.
    const LINE: &str = r#"{"at":"2026-11-29T08:00:00Z","commit":"37bab983",
        "server":{"version":"11.8.9-MariaDB-log","settings":[["log_bin","ON"]]},
        "extent":"full","rounds":3,"cores":2,"case":"brokers","about":"","rows":[
        {"name":"redis","results":[{"name":"rate","unit":"per_second",
            "value":{"median":2e5,"min":1e5,"max":3e5},"ratio":null,"bars":[]}]},
        {"name":"ours","results":[{"name":"rate","unit":"per_second",
            "value":{"median":1e5,"min":1e5,"max":1e5},
            "ratio":{"median":0.5,"min":0.4,"max":0.6},
            "bars":[{"figure":"rate","of":"ratio","side":{"at_least":1.5},"met":false}]}]}]}"#;

    #[test]
    fn a_table_has_a_row_for_each_load_and_three_columns_for_each_server() {
        let recorded: Recorded = serde_json::from_str(LINE).expect("a line");
        let mut text = Vec::new();
        table(&mut text, &[recorded]).expect("written");
        let expected = "\
| load | MariaDB 11.8.9, binary log | ÷ | bar |
|---|---|---|---|
| redis | 200 k (100 k–300 k) |  |  |
| ours | 100 k (100 k–100 k) | 0.50 | ≥ 1.5 **missed** |

MariaDB 11.8.9, binary log: rounds 3, 2 cores, 2026-11-29, commit 37bab983; `log_bin=ON`.
";
        assert_eq!(String::from_utf8(text).expect("UTF-8"), expected);
    }
}
