//! The results of all runs, as lines of JSON: each case adds one when it ends. Figures of one line
//! were measured in turn; those of two lines must not be divided by each other.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::arena::ServerFacts;
use crate::case::Extent;
use crate::measurement::{FigureOutcome, Outcome};

/// What the figures of a run depend on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    /// When it began, by this machine's clock.
    pub(crate) at: DateTime<Utc>,
    /// The commit that was measured, if known.
    pub(crate) commit: Option<String>,
    /// The server, and the settings that decide how fast a durable commit is.
    pub(crate) server: ServerFacts,
    /// How much time it was allowed to take.
    pub(crate) extent: Extent,
    /// How often each load was run.
    pub(crate) rounds: usize,
    /// Cores of the machine, which the server shares with the loads.
    pub(crate) cores: usize,
}

/// A line as it is written.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    run: &'a Circumstances,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// The file of results.
#[derive(Debug)]
pub(crate) struct Results {
    path: PathBuf,
    file: File,
}

impl Results {
    /// Opens the file, and creates it and its folder if need be.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let open = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            File::options().create(true).append(true).open(&path)
        };
        let file = open().with_context(|| format!("Cannot open the results {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Adds the outcome of a case.
    pub(crate) fn append(&mut self, run: &Circumstances, outcome: &Outcome) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&Line { run, outcome })?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| format!("Cannot add to the results {}", self.path.display()))
    }

    /// Returns where they are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A line as it is read: the figures, without the rounds that they came from.
#[derive(Debug, Deserialize)]
pub(crate) struct Recorded {
    /// What its figures depend on.
    #[serde(flatten)]
    pub(crate) run: Circumstances,
    /// The name of the case.
    pub(crate) case: String,
    /// Its rows.
    pub(crate) rows: Vec<RecordedRow>,
}

/// The figures of one load.
#[derive(Debug, Deserialize)]
pub(crate) struct RecordedRow {
    /// The load.
    pub(crate) name: String,
    /// Its figures.
    pub(crate) results: Vec<FigureOutcome>,
}

/// Returns the newest outcome of a case in a file of results.
pub(crate) fn newest(path: &Path, case: &str) -> anyhow::Result<Recorded> {
    let read = || -> anyhow::Result<Option<Recorded>> {
        let mut newest = None;
        for line in BufReader::new(File::open(path)?).lines() {
            let line: Recorded = serde_json::from_str(&line?)?;
            if line.case == case {
                newest = Some(line);
            }
        }
        Ok(newest)
    };
    let newest = read().with_context(|| format!("Cannot read the results {}", path.display()))?;
    newest.with_context(|| format!("No run of '{case}' is in {}: run it first", path.display()))
}
