use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::names::meant;
use super::source::{Entry, Source, text_of};

/// The processes that have a table.
const TABLES: [&str; 4] = ["console", "consumer", "janitor", "producer"];

/// The other names allowed at the top.
const LOCATION: [&str; 2] = ["url", "url_file"];

/// The configuration file, as far as one process reads it.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    /// The top: where the server is.
    pub(crate) location: BTreeMap<String, Entry>,
    /// The process's own table.
    pub(super) table: BTreeMap<String, Entry>,
}

impl File {
    /// Reads the top, and the table `table` if one is wanted.
    ///
    /// # Errors
    /// One sentence that names the file and the line.
    pub(crate) fn read(path: &Path, table: Option<&str>) -> anyhow::Result<Self> {
        let text = text_of(path, "the configuration")?;
        let source = Source { path, text: &text };
        let mut file =
            Self { path: path.into(), location: BTreeMap::new(), table: BTreeMap::new() };
        for (name, value) in source.top()?.get_ref() {
            let (word, line) = (name.get_ref().as_ref(), source.line(name.span().start));
            if LOCATION.contains(&word) {
                file.location.insert(word.to_owned(), source.entry(word, value)?);
            } else if TABLES.contains(&word) {
                let Some(settings) = value.get_ref().as_table() else {
                    bail!("{}:{line}: '{word}' is a table: write [{word}]", path.display());
                };
                if table == Some(word) {
                    file.table = source.table(settings)?;
                }
            } else {
                let names = LOCATION.iter().chain(&TABLES).copied();
                bail!(
                    "{}:{line}: '{word}' may not stand at the top of the file; {}",
                    path.display(),
                    meant(word, names)
                );
            }
        }
        Ok(file)
    }

    /// Returns `FILE:LINE` of a setting.
    pub(crate) fn place(&self, entry: &Entry) -> String {
        format!("{}:{}", self.path.display(), entry.line)
    }

    /// Resolves a relative path in the file against the file's own folder.
    pub(crate) fn beside(&self, path: &str) -> PathBuf {
        self.path.parent().map_or_else(|| path.into(), |folder| folder.join(path))
    }
}
