//! The result of a soak, as a table for people and one line of JSON for programs.

use std::io::Write;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde_json::{Value, json};

use super::Outcome;
use super::series::{Key, rounded};
use super::verdict::{HISTORY_BOUND, Judgement, SHORTEST, Verdict, warm_up};
use crate::arena::ServerKind;
use crate::check::Findings;
use crate::report;

/// Shows the outcome, and returns whether everything was flat and nothing was lost.
pub(super) fn show(
    outcome: &Outcome,
    server: ServerKind,
    findings: &Findings,
    out_folder: &Path,
) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    let Outcome { seed, time, restarts, judged, failures, .. } = outcome;
    let minutes = time.as_secs_f64() / 60.0;
    writeln!(out, "{} for {minutes:.1} min, seed {seed}, {restarts} restarts", server.word())?;
    report::proof(&mut out, *seed, findings)?;
    writeln!(out, "{}", table(judged))?;
    if *time < SHORTEST {
        let least = SHORTEST.as_secs() / 60;
        writeln!(out, "slopes are not judged: the run is shorter than {least} minutes")?;
    } else {
        let skipped = warm_up(*time).as_secs() / 60;
        writeln!(
            out,
            "judged: the medians of the minutes after the first {skipped}; noise: what may be \
             growth over all of them, and for the history {HISTORY_BOUND} at any moment"
        )?;
    }
    for failure in failures {
        writeln!(out, "{failure}")?;
    }
    writeln!(out, "samples and plots: {}", out_folder.display())?;
    let mut line = report::json(server.word(), *seed, findings);
    line["minutes"] = rounded(minutes).into();
    line["restarts"] = (*restarts).into();
    line["judged"] = (*time >= SHORTEST).into();
    line["failures"] = failures.clone().into();
    line["grows"] = names(judged, |it| it.verdict.is_failure());
    line["series"] = judged.iter().map(of_series).collect();
    writeln!(out, "{line}")?;
    let grows = judged.iter().any(|(_, judgement)| judgement.verdict.is_failure());
    Ok(findings.is_sound() && failures.is_empty() && !grows)
}

fn names(judged: &[(Key, Judgement)], is: impl Fn(&Judgement) -> bool) -> Value {
    let chosen = judged.iter().filter(|(_, judgement)| is(judgement));
    chosen.map(|(key, _)| format!("{} {}", key.kind.word(), key.of)).collect()
}

fn of_series((key, judgement): &(Key, Judgement)) -> Value {
    let Judgement { start, end, most, per_hour, allowed, verdict } = *judgement;
    json!({
        "kind": key.kind.word(),
        "of": key.of,
        "start": rounded(start),
        "end": rounded(end),
        "most": rounded(most),
        "per_hour": rounded(per_hour),
        "noise": rounded(allowed),
        "verdict": verdict.words(),
    })
}

fn table(judged: &[(Key, Judgement)]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["series", "start", "end", "most", "slope/hour", "noise", "verdict"]);
    for (key, judgement) in judged {
        let Judgement { start, end, most, per_hour, allowed, verdict } = *judgement;
        let (slope, noise) = match verdict {
            Verdict::NotJudged => ("-".to_owned(), "-".to_owned()),
            _ => (format!("{per_hour:+.1}"), format!("{allowed:.1}")),
        };
        let name = format!("{} {}", key.kind.word(), key.of);
        let shown = |value: f64| rounded(value).to_string();
        let (start, end, most) = (shown(start), shown(end), shown(most));
        table.add_row([&name, &start, &end, &most, &slope, &noise, verdict.words()]);
    }
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
