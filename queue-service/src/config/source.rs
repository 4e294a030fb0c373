//! A TOML file in which settings are written, with the line of each.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A setting in the file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The value as it would be written on the command line; several for a list.
    pub(crate) values: Vec<String>,
    pub(super) is_list: bool,
    pub(super) line: usize,
}

/// Reads the text of the file, which is `what`.
pub(super) fn text_of(path: &Path, what: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("Cannot read {what} {}", path.display()))
}

/// The file and its text.
pub(super) struct Source<'f> {
    pub(super) path: &'f Path,
    pub(super) text: &'f str,
}

impl<'f> Source<'f> {
    /// Parses the file. The parser's own text quotes the line with the error, which may hold the
    /// password: the error shows only the place, and what was expected there.
    pub(super) fn top(&self) -> anyhow::Result<Spanned<DeTable<'f>>> {
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

    pub(super) fn table(&self, settings: &DeTable<'_>) -> anyhow::Result<BTreeMap<String, Entry>> {
        let entry = |(name, value): (&Spanned<_>, &Spanned<_>)| {
            let name: &str = std::borrow::Cow::as_ref(name.get_ref());
            Ok((name.to_owned(), self.entry(name, value)?))
        };
        settings.iter().map(entry).collect()
    }

    pub(super) fn entry(&self, name: &str, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Entry> {
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

    pub(super) fn line(&self, offset: usize) -> usize {
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
