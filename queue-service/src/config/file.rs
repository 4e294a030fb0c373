use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::names::meant;

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

/// A setting in the file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The value as it would be written on the command line; several for a list.
    pub(crate) values: Vec<String>,
    pub(super) is_list: bool,
    pub(super) line: usize,
}

impl File {
    /// Reads the top, and the table `table` if one is wanted.
    ///
    /// # Errors
    /// One sentence that names the file and the line.
    pub(crate) fn read(path: &Path, table: Option<&str>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("Cannot read the configuration {}", path.display()))?;
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

struct Source<'f> {
    path: &'f Path,
    text: &'f str,
}

impl<'f> Source<'f> {
    /// Parses the file. The parser's own text quotes the line with the error, which may hold the
    /// password: the error shows only the place, and what was expected there.
    fn top(&self) -> anyhow::Result<Spanned<DeTable<'f>>> {
        DeTable::parse(self.text).map_err(|error| {
            let line = self.line(error.span().map_or(0, |span| span.start));
            anyhow!(
                "{}:{line}: this is not TOML ({}); text stands in quotes there, as in \
                 lease = \"10s\"",
                self.path.display(),
                error.message()
            )
        })
    }

    fn table(&self, settings: &DeTable<'_>) -> anyhow::Result<BTreeMap<String, Entry>> {
        let entry = |(name, value): (&Spanned<_>, &Spanned<_>)| {
            let name: &str = std::borrow::Cow::as_ref(name.get_ref());
            Ok((name.to_owned(), self.entry(name, value)?))
        };
        settings.iter().map(entry).collect()
    }

    fn entry(&self, name: &str, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Entry> {
        let line = self.line(value.span().start);
        let (values, is_list) = match value.get_ref() {
            DeValue::Array(list) => {
                (list.iter().map(|one| text(one.get_ref())).collect::<Option<Vec<_>>>(), true)
            }
            one => (text(one).map(|text| vec![text]), false),
        };
        let values = values.ok_or_else(|| {
            anyhow!(
                "{}:{line}: '{name}' is a {}: write text in quotes, a number, true or false",
                self.path.display(),
                value.get_ref().type_str()
            )
        })?;
        Ok(Entry { values, is_list, line })
    }

    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }
}

fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(whether) => Some(whether.to_string()),
        _ => None,
    }
}
