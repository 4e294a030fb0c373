use std::collections::HashMap;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use anyhow::bail;
use rowmq_core::TopicName;
use rowmq_core::connection::Session;
use rowmq_core::inspect::{self, GroupStatus, WorkerStatus, Workers};
use rowmq_core::store::inspect::DEPTH_CAP;
use serde::Serialize;

use super::group::list;
use super::stats::{self, Stat};
use super::workers;
use crate::invocation::Invocation;
use crate::output::{self, Output, Row};
use crate::units;

/// Watch the topics, the groups and the workers, until interrupted.
///
/// A rate is how much faster a topic's messages came than they went since the last look. It reads
/// what `stats`, `group list` and `workers` read, nothing else.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// How often to look.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = units::parse_time)]
    interval: Duration,
    /// Look twice, the interval apart, print that, and end: for scripts.
    #[arg(long)]
    once: bool,
}

/// What one look saw.
#[derive(Debug, Serialize)]
struct Look {
    topics: Vec<Rated<Stat>>,
    groups: Vec<Rated<GroupStatus>>,
    workers: Vec<WorkerStatus>,
    #[serde(skip)]
    seen_at: Option<Instant>,
}

/// A row, and by how many messages a second its backlog grows, or shrinks.
#[derive(Debug, Serialize)]
struct Rated<R> {
    #[serde(flatten)]
    row: R,
    change_per_second: Option<f64>,
}

impl<R: Row> Row for Rated<R> {
    fn cells(&self) -> Vec<String> {
        let mut cells = self.row.cells();
        cells.push(self.change_per_second.map_or_else(|| "-".to_owned(), rate));
        cells
    }
}

fn rate(change: f64) -> String {
    if change == 0.0 { "0/s".to_owned() } else { format!("{change:+.1}/s") }
}

/// What identifies a row in two looks, and the count that its rate comes from.
trait Counted {
    fn name(&self) -> &TopicName;
    /// `None` where the count is capped.
    fn count(&self) -> Option<u64>;
}

impl Counted for Stat {
    fn name(&self) -> &TopicName {
        &self.topic
    }

    fn count(&self) -> Option<u64> {
        Some(self.depth.unsettled).filter(|count| *count < DEPTH_CAP)
    }
}

impl Counted for GroupStatus {
    fn name(&self) -> &TopicName {
        &self.topic.name
    }

    fn count(&self) -> Option<u64> {
        Some(self.lag)
    }
}

fn rated<R: Counted>(rows: Vec<R>, before: &[Rated<R>], passed: Option<Duration>) -> Vec<Rated<R>> {
    let counts: HashMap<&TopicName, Option<u64>> =
        before.iter().map(|one| (one.row.name(), one.row.count())).collect();
    let change = |row: &R| {
        let (before, now) = (counts.get(row.name()).copied().flatten()?, row.count()?);
        let seconds = passed.map(|passed| passed.as_secs_f64()).filter(|s| *s > 0.0)?;
        // Counts here are far below where a float would round them.
        #[allow(clippy::cast_precision_loss, reason = "only shown, to one digit")]
        Some((now as f64 - before as f64) / seconds)
    };
    rows.into_iter().map(|row| Rated { change_per_second: change(&row), row }).collect()
}

impl Look {
    const NONE: Self =
        Self { topics: Vec::new(), groups: Vec::new(), workers: Vec::new(), seen_at: None };

    async fn take(session: &mut Session, before: &Self) -> rowmq_core::Result<Self> {
        let seen_at = Instant::now();
        let passed = before.seen_at.map(|before| seen_at - before);
        Ok(Self {
            topics: rated(stats::read(session, &[]).await?, &before.topics, passed),
            groups: rated(inspect::groups(session, None).await?, &before.groups, passed),
            workers: inspect::workers(session, Workers::Alive).await?,
            seen_at: Some(seen_at),
        })
    }

    fn lines(&self, server: &str) -> Vec<String> {
        let claimed: u64 = self.topics.iter().map(|topic| topic.row.depth.claimed).sum();
        let mut lines = vec![
            format!(
                "{server}: {} topics, {} groups, {} workers, {claimed} messages claimed",
                self.topics.len(),
                self.groups.len(),
                self.workers.len()
            ),
            String::new(),
        ];
        if self.topics.is_empty() {
            lines.push(super::topic::NO_TOPICS.to_owned());
        } else {
            lines.extend(output::lines(&with_change(&stats::HEADER), &self.topics));
        }
        if !self.groups.is_empty() {
            lines.push(String::new());
            lines.extend(output::lines(&with_change(&list::HEADER), &self.groups));
        }
        lines.push(String::new());
        if self.workers.is_empty() {
            lines.push(workers::NO_WORKERS.to_owned());
        } else {
            lines.extend(output::lines(&workers::HEADER, &self.workers));
        }
        lines
    }
}

fn with_change<'h>(header: &[&'h str]) -> Vec<&'h str> {
    header.iter().copied().chain(["change"]).collect()
}

impl Top {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let json = invocation.output.is_json();
        if !self.once && !json && !stdout().is_terminal() {
            bail!("There is no terminal to redraw: say --once, or --json for a line a look.");
        }
        let url = invocation.url()?;
        let server = format!("{} on {}", url.database(), url.server());
        let mut session = invocation.session().await?;
        let mut look = Look::take(&mut session, &Look::NONE).await?;
        if !self.once {
            show(&look, json, &server)?;
        }
        loop {
            tokio::time::sleep(self.interval).await;
            look = Look::take(&mut session, &look).await?;
            if self.once {
                return if json {
                    invocation.output.report(&look, "")
                } else {
                    write(&look.lines(&server), "\n")
                };
            }
            show(&look, json, &server)?;
        }
    }
}

fn show(look: &Look, json: bool, server: &str) -> anyhow::Result<()> {
    if json {
        return Output::json_line(look);
    }
    // Move the cursor home, and clear the rest of each line and everything below: nothing flickers.
    write!(stdout(), "\x1b[H")?;
    write(&look.lines(server), "\x1b[K\n")?;
    write!(stdout(), "\x1b[J")?;
    Ok(stdout().flush()?)
}

fn write(lines: &[String], end: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    for line in lines {
        write!(out, "{line}{end}")?;
    }
    Ok(())
}
