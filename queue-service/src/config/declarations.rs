//! A TOML file that declares things by name, `[topics.mail]`, with their settings. A setting is
//! read by the parser of the command-line option of the same name, so that the two cannot drift
//! apart.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{anyhow, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::names::meant;
use super::source::{Entry, Source, text_of};

/// One declared thing.
#[derive(Debug)]
pub struct Declaration {
    /// The table that it stands in: `topics`.
    pub table: String,
    /// Its name.
    pub name: String,
    file: String,
    line: usize,
    settings: BTreeMap<String, Entry>,
}

/// Reads a file in which only these tables stand, and returns what they declare.
///
/// # Errors
/// One sentence that names the file and the line.
pub fn read(path: &Path, tables: &[&str]) -> anyhow::Result<Vec<Declaration>> {
    let text = text_of(path, "the declarations")?;
    let source = Source { path, text: &text };
    let file = path.display().to_string();
    let mut declarations = Vec::new();
    for (table, value) in source.top()?.get_ref() {
        let (word, line) = (table.get_ref().as_ref(), source.line(table.span().start));
        if !tables.contains(&word) {
            let meant = meant(word, tables.iter().copied());
            bail!("{file}:{line}: '{word}' may not stand at the top of the file; {meant}");
        }
        let Some(named) = value.get_ref().as_table() else {
            bail!("{file}:{line}: '{word}' is a table: write [{word}.NAME]");
        };
        for (name, value) in named {
            let (name, line) = (name.get_ref().as_ref(), source.line(name.span().start));
            let Some(settings) = value.get_ref().as_table() else {
                bail!("{file}:{line}: '{name}' is a table: write [{word}.{name}]");
            };
            declarations.push(Declaration {
                table: word.to_owned(),
                name: name.to_owned(),
                file: file.clone(),
                line,
                settings: source.table(settings)?,
            });
        }
    }
    Ok(declarations)
}

impl Declaration {
    /// Returns `FILE:LINE: [TABLE.NAME]`, with which an error about it begins.
    #[must_use]
    pub fn place(&self) -> String {
        self.place_of(self.line)
    }

    fn place_of(&self, line: usize) -> String {
        format!("{}:{line}: [{}.{}]", self.file, self.table, self.name)
    }

    /// Reads it as the arguments `A`, whose first positional argument is its name. The settings
    /// `positional` are the positional arguments after that.
    ///
    /// # Errors
    /// One sentence that names the file, the line and the fix: a setting that `A` has no option
    /// for, one that is missing, or a wrong value.
    pub fn arguments<A: clap::Args>(&self, positional: &[&str]) -> anyhow::Result<A> {
        let command = A::augment_args(Command::new("declaration").no_binary_name(true));
        let mut words: Vec<OsString> = Vec::new();
        for (name, entry) in &self.settings {
            if !positional.contains(&name.as_str()) {
                words.extend(self.option(&command, name, entry)?.into_iter().map(OsString::from));
            }
        }
        words.extend(["--".into(), self.name.clone().into()]);
        for name in positional {
            let entry = self.settings.get(*name);
            let entry = entry.ok_or_else(|| anyhow!("{} has no '{name}'", self.place()))?;
            words.extend(entry.values.iter().map(OsString::from));
        }
        let matches = command.try_get_matches_from(words).map_err(|error| self.refusal(&error))?;
        A::from_arg_matches(&matches).map_err(|error| self.refusal(&error))
    }

    /// Writes a setting as its option: a switch, a value, or several.
    fn option(&self, command: &Command, name: &str, entry: &Entry) -> anyhow::Result<Vec<String>> {
        let place = self.place_of(entry.line);
        let named = |arg: &&Arg| arg.get_long().is_some_and(|long| long.replace('-', "_") == name);
        let Some(arg) = command.get_arguments().find(named) else {
            let known = command.get_arguments().filter_map(Arg::get_long);
            let known: Vec<_> = known.map(|long| long.replace('-', "_")).collect();
            let meant = meant(name, known.iter().map(String::as_str));
            bail!("{place} has no setting '{name}'; {meant}");
        };
        let option = format!("--{}", name.replace('_', "-"));
        let values = entry.values.iter();
        match (arg.get_action(), entry.values.as_slice()) {
            (ArgAction::SetTrue, [value]) => match value.as_str() {
                "true" => Ok(vec![option]),
                "false" => Ok(Vec::new()),
                _ => bail!("{place}: '{name}' is true or false"),
            },
            (ArgAction::Append, _) => Ok(values.map(|value| format!("{option}={value}")).collect()),
            (_, [value]) if !entry.is_list => Ok(vec![format!("{option}={value}")]),
            _ => bail!("{place}: '{name}' has one value: write no list"),
        }
    }

    /// Turns clap's words into one sentence in the words of the file.
    fn refusal(&self, error: &clap::Error) -> anyhow::Error {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            Some(ContextValue::Strings(texts)) => texts.join(", "),
            _ => String::new(),
        };
        let argument = text(ContextKind::InvalidArg);
        let option = argument.split(' ').next().unwrap_or_default();
        let name = option.trim_start_matches('-').replace('-', "_");
        let line = self.settings.get(&name).map_or(self.line, |entry| entry.line);
        let place = self.place_of(line);
        let value = text(ContextKind::InvalidValue);
        match (error.kind(), error.source()) {
            (ErrorKind::ValueValidation, Some(reason)) if name.starts_with('<') => {
                anyhow!("{place}: {reason}")
            }
            (ErrorKind::ValueValidation, Some(reason)) => {
                anyhow!("{place}: '{name}' is '{value}': {reason}")
            }
            (ErrorKind::InvalidValue, _) => {
                let valid = text(ContextKind::ValidValue);
                anyhow!("{place}: '{name}' is '{value}': use one of {valid}")
            }
            (ErrorKind::MissingRequiredArgument, _) => anyhow!("{place} has no '{name}'"),
            _ => anyhow!("{place}: {}", error.to_string().trim().replace('\n', " ")),
        }
    }
}
