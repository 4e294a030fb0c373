//! The result of a run, as a table for people and one line of JSON for programs.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use comfy_table::{Table, presets::NOTHING};
use serde_json::{Value, json};

use crate::arena::ServerKind;
use crate::check::{Breach, Findings, RescueTimes, TOLD, Times};
use crate::failover::FailoverPlan;
use crate::fault::{CATALOGUE, Setting};
use crate::run::Plan;

/// Shows every fault.
pub(crate) fn faults() -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["fault", "matrix", "when", "what happens"]);
    for fault in CATALOGUE {
        let when = match fault.setting {
            Setting::Alone => "alone, measured",
            Setting::Storm => "with others",
            Setting::EveryStorm => "in every storm",
            Setting::OnDemand => "by name only",
        };
        table.add_row([fault.name, fault.rows, when, fault.what]);
    }
    writeln!(std::io::stdout(), "{table}").context("Cannot write to standard output")
}

/// Shows the outcome of a run; `missed`: the bounds of recovery that it missed.
pub(crate) fn show(
    plan: &Plan,
    server: ServerKind,
    findings: &Findings,
    missed: &[String],
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} for {} s, seed {}", server.word(), plan.time.as_secs(), plan.seed)?;
    let strikes = findings.strikes.iter().map(|(fault, n)| format!("{fault} {n}"));
    writeln!(out, "faults: {}", strikes.collect::<Vec<_>>().join(", "))?;
    proof(&mut out, plan.seed, findings)?;
    for sentence in missed {
        writeln!(out, "{sentence}")?;
    }
    if !plan.is_rated() {
        writeln!(out, "recovery is measured and not judged: that takes --seconds 300 or more")?;
    }
    let mut line = json(server.word(), plan.seed, findings);
    line["missed_bounds"] = missed.into();
    writeln!(out, "{line}")?;
    Ok(())
}

/// Shows the outcome of a run on a cluster; `missed`: the bound that its times missed.
pub(crate) fn show_failovers(
    plan: &FailoverPlan,
    seed: u64,
    findings: &Findings,
    missed: Option<&str>,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let cluster = plan.cluster.kind.word();
    let how = if plan.cluster.asynchronous {
        format!(", asynchronous and {} ms behind", plan.lag_ms)
    } else {
        String::new()
    };
    writeln!(out, "{cluster}{how}, {} failovers, seed {seed}", findings.failovers.len())?;
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "failover",
        "the cluster has a writer",
        "first acknowledged enqueue",
        "first claim on the new writer",
    ]);
    let shown = |time: Option<Duration>| time.map_or("never".to_owned(), seconds);
    for (n, failover) in (1..).zip(&findings.failovers) {
        let times = [failover.writer, failover.acknowledged, failover.claimed];
        table.add_row([vec![n.to_string()], times.map(shown).to_vec()].concat());
    }
    writeln!(out, "{table}")?;
    if let Some(missed) = missed {
        writeln!(out, "{missed}")?;
    }
    proof(&mut out, seed, findings)?;
    let mut line = json(cluster, seed, findings);
    line["failovers"] = findings
        .failovers
        .iter()
        .map(|f| {
            let [writer, ack, claim] = [f.writer, f.acknowledged, f.claimed].map(millis);
            json!({"writer_ms": writer, "ack_ms": ack, "claim_ms": claim})
        })
        .collect();
    writeln!(out, "{line}")?;
    Ok(())
}

/// Shows each promise and how it was kept, and the first that were broken.
pub(crate) fn proof(out: &mut impl Write, seed: u64, findings: &Findings) -> anyhow::Result<()> {
    writeln!(out, "{}", table(findings))?;
    for violation in findings.violations.iter().take(TOLD) {
        let breach = violation.breach;
        match violation.share {
            Some(share) => writeln!(out, "{breach:?}: message {share}, seed {seed}")?,
            None => writeln!(out, "{breach:?}, seed {seed}")?,
        }
        write!(out, "{}", violation.history)?;
    }
    if findings.violations.len() > TOLD {
        writeln!(out, "and {} more broken promises", findings.violations.len() - TOLD)?;
    }
    Ok(())
}

fn table(findings: &Findings) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["promise", "must be", "is"]);
    let mut row = |what: &str, bar: &str, is: String| {
        table.add_row([what, bar, &is]);
    };
    row("messages acknowledged", "", findings.enqueued.to_string());
    row("the most of them within a second", "", findings.peak.to_string());
    row("in doubt: a commit without an answer", "", findings.in_doubt.to_string());
    row("handled to the end", "", findings.handled.to_string());
    row("handled to the end by groups of the stream", "", findings.read.to_string());
    row("dead-lettered, as they had asked for", "", findings.poisoned.to_string());
    let must = [
        (Breach::Lost, "acknowledged and lost (I1)"),
        (Breach::Phantom, "delivered but never committed (I2)"),
        (Breach::WrongAck, "wrong acks (I3)"),
        (Breach::SharedDelivery, "two owners of one delivery (I3)"),
        (Breach::TakenFromLiving, "taken from a SQL session that lived (I3)"),
        (Breach::Effects, "effects twice, or without the ack (I4)"),
        (Breach::KeyHeld, "unique keys held by nobody"),
        (Breach::Overtaken, "overtaken in an ordered group (I5)"),
        (Breach::DuplicateInQuiet, "delivered again in the quiet phase (I6)"),
        (Breach::DeadInnocent, "innocents dead-lettered (I7)"),
        (Breach::Stuck, "stuck after the faults ended (I8)"),
        (Breach::Offset, "offsets twice, left out, or against the commits (I9)"),
        (Breach::NotReplayed, "not handled again after a reset or a replay (I9)"),
        (Breach::HandledAgain, "told to a broadcast member as settled, and come again"),
        (Breach::Unwanted, "delivered against a group's filter"),
        (Breach::BeyondLimit, "begun beyond a topic's limit (I10)"),
        (Breach::HandledThoughCancelled, "handled though they were cancelled"),
        (Breach::WrongTrace, "traced otherwise than it was"),
        (Breach::Misreported, "not found, or found as what they are not"),
    ];
    for (breach, what) in must {
        row(what, "0", findings.count(breach).to_string());
    }
    row("connections and statements broken", "", findings.broken.to_string());
    row("delivered again under faults", "", findings.duplicates.to_string());
    let again = format!("{}, in {} resets and replays", findings.read_again, findings.rewinds);
    row("the same by groups, of a partition each", "", again);
    let Findings { deleted, undeleted, restored, .. } = findings;
    let topics = format!("{deleted} of {}, {restored} messages kept apart", deleted + undeleted);
    row("topics deleted under producers", "", topics);
    row("settlements of fenced owners, refused", "", findings.fenced.to_string());
    let RescueTimes { killed, frozen, killed_members, frozen_members } = &findings.rescue;
    for (what, times) in [
        ("kill -9", killed),
        ("kill -9, groups", killed_members),
        ("freeze or silent cut", frozen),
        ("freeze or silent cut, groups", frozen_members),
    ] {
        let shown = |percent| times.percentile(percent).map_or("-".to_owned(), seconds);
        let text = format!(
            "p50 {}, p99 {} ({} messages of {} consumers)",
            shown(50),
            shown(99),
            times.sorted.len(),
            times.hits
        );
        row(&format!("running again after {what}"), "", text);
    }
    table
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn millis(time: Option<Duration>) -> Option<u64> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the result for programs.
pub(crate) fn json(server: &str, seed: u64, findings: &Findings) -> Value {
    let times = |times: &Times| {
        json!({
            "n": times.sorted.len(),
            "p50": millis(times.percentile(50)),
            "p99": millis(times.percentile(99)),
        })
    };
    json!({
        "server": server,
        "seed": seed,
        "enqueued": findings.enqueued,
        "peak_per_second": findings.peak,
        "lost": findings.count(Breach::Lost),
        "phantom": findings.count(Breach::Phantom),
        "duplicates": findings.duplicates,
        "duplicates_in_quiet": findings.count(Breach::DuplicateInQuiet),
        "wrong_acks": findings.count(Breach::WrongAck) + findings.count(Breach::SharedDelivery),
        "taken_from_living": findings.count(Breach::TakenFromLiving),
        "wrong_effects": findings.count(Breach::Effects),
        "fenced": findings.fenced,
        "keys_held": findings.count(Breach::KeyHeld),
        "dead_innocents": findings.count(Breach::DeadInnocent),
        "rescue_ms": {
            "killed": times(&findings.rescue.killed),
            "frozen": times(&findings.rescue.frozen),
            "killed_members": times(&findings.rescue.killed_members),
            "frozen_members": times(&findings.rescue.frozen_members),
        },
        "read": findings.read,
        "overtaken": findings.count(Breach::Overtaken),
        "wrong_offsets": findings.count(Breach::Offset),
        "not_replayed": findings.count(Breach::NotReplayed),
        "handled_again": findings.count(Breach::HandledAgain),
        "unwanted": findings.count(Breach::Unwanted),
        "wrong_traces": findings.count(Breach::WrongTrace),
        "beyond_limit": findings.count(Breach::BeyondLimit),
        "handled_though_cancelled": findings.count(Breach::HandledThoughCancelled),
        "stuck": findings.count(Breach::Stuck),
        "topics_deleted": findings.deleted,
        "topics_not_deleted": findings.undeleted,
        "restored": findings.restored,
        "misreported": findings.count(Breach::Misreported),
    })
}

/// Copies the records and the output of the processes to a folder that outlives the run.
pub(crate) fn keep(folder: &Path, kept: &Path) -> anyhow::Result<()> {
    copy(folder, kept).with_context(|| format!("Cannot keep the records in {}", kept.display()))?;
    writeln!(std::io::stderr(), "chaos: the records are in {}", kept.display())?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
