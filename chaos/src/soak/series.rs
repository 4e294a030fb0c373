//! What is measured: series of numbers over the time of the run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// What a series counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Resident memory, in mebibytes.
    Memory,
    /// Open file descriptors.
    Descriptors,
    /// Threads.
    Threads,
    /// Sessions at the server.
    Sessions,
    /// Rows of a table.
    Rows,
    /// Transactions whose old row versions InnoDB has not purged.
    History,
}

impl Kind {
    pub(super) const ALL: [Self; 6] =
        [Self::Memory, Self::Descriptors, Self::Threads, Self::Sessions, Self::Rows, Self::History];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Threads => "threads",
            Self::Sessions => "sessions",
            Self::Rows => "rows",
            Self::History => "history",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Memory => "resident memory in MiB",
            Self::Descriptors => "open file descriptors",
            Self::Threads => "threads",
            Self::Sessions => "sessions at the server",
            Self::Rows => "rows",
            Self::History => "transactions not purged",
        }
    }
}

/// The name of a series: what is counted, and of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) of: String,
}

impl Key {
    pub(super) fn new(kind: Kind, of: impl Into<String>) -> Self {
        Self { kind, of: of.into() }
    }
}

/// One number over the time.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) key: Key,
    /// The seconds since the beginning, and the number.
    pub(super) points: Vec<(f64, f64)>,
}

/// All series of a run. Each sample is also a line of a file, so that a run that ends early leaves
/// its samples.
pub(super) struct Book {
    file: BufWriter<File>,
    pub(super) series: Vec<Series>,
}

impl Book {
    /// Begins the file `samples.csv` in `folder`, with a column for each series.
    pub(super) fn begin(folder: &Path, keys: Vec<Key>) -> anyhow::Result<Self> {
        let path = folder.join("samples.csv");
        let file =
            File::create(&path).with_context(|| format!("Cannot create {}", path.display()))?;
        let mut file = BufWriter::new(file);
        write!(file, "seconds")?;
        for key in &keys {
            write!(file, ",{} {}", key.kind.word(), key.of)?;
        }
        writeln!(file)?;
        let series = keys.into_iter().map(|key| Series { key, points: Vec::new() }).collect();
        Ok(Self { file, series })
    }

    /// Adds a sample, with its numbers in the order of the series.
    pub(super) fn add(&mut self, seconds: f64, values: &[f64]) -> anyhow::Result<()> {
        anyhow::ensure!(values.len() == self.series.len(), "a sample has a number for each series");
        write!(self.file, "{seconds:.1}")?;
        for (series, &value) in self.series.iter_mut().zip(values) {
            series.points.push((seconds, value));
            write!(self.file, ",{}", rounded(value))?;
        }
        writeln!(self.file)?;
        Ok(self.file.flush()?)
    }
}

/// Rounds to hundredths: that is enough for memory, and everything else is whole.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
