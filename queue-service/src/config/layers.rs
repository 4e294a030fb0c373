use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::file::File;
use super::names::meant;
use super::source::Entry;
use super::{Process, Setting, Settings};

/// Options of every process that are not settings: where settings come from, and what to do.
const APART: [&str; 6] = ["help", "version", "config", "url_file", "check", "once"];

/// Why a process does not start.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The command line is misused, or help was asked for.
    Usage(clap::Error),
    /// A setting is wrong; the sentence names the place where it is set.
    Sentence(String),
}

/// The settings below the command line.
pub(super) struct Layers {
    process: Process,
    arguments: Vec<String>,
    /// The process's variables, by the names of their settings.
    variables: BTreeMap<String, String>,
    file: Option<File>,
}

/// Returns the name of an option's variable.
fn variable(process: Process, name: &str) -> String {
    format!("ROWMQ_{}_{}", process.table, name).to_uppercase()
}

/// Returns the name of the setting that an option is, if it is one.
fn setting(arg: &Arg, process: Process) -> Option<String> {
    let name = arg.get_long()?.replace('-', "_");
    let apart = APART.contains(&name.as_str()) || process.apart.contains(&name.as_str());
    (!apart).then_some(name)
}

/// Returns the options of one command that are settings, with their names; not those of its
/// subcommands.
fn options(command: &Command, process: Process) -> Vec<(String, String)> {
    let named = |arg: &Arg| Some((arg.get_id().to_string(), setting(arg, process)?));
    command.get_arguments().filter_map(named).collect()
}

/// clap needs names that live as long as the process.
fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Gives every setting its variable. If an option already has a variable for all processes, the
/// process's own variable wins where it is set.
pub(super) fn named(
    mut command: Command,
    process: Process,
    environment: &[(String, String)],
) -> Command {
    for (id, name) in options(&command, process) {
        let variable = variable(process, &name);
        let is_set = environment.iter().any(|(name, _)| *name == variable);
        command = command.mut_arg(id, |arg| {
            let arg =
                if is_set || arg.get_env().is_none() { arg.env(leaked(variable)) } else { arg };
            arg.hide_env_values(true)
        });
    }
    below(command, |sub| named(sub, process, environment))
}

fn below(mut command: Command, change: impl Fn(Command) -> Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().into()).collect();
    for name in names {
        command = command.mut_subcommand(name, &change);
    }
    command
}

impl Layers {
    /// Reads the file; refuses names that are no settings, in the file and in the environment.
    pub(super) fn read(
        command: &Command,
        process: Process,
        arguments: &[OsString],
        environment: &[(String, String)],
    ) -> Result<Self, Refusal> {
        let arguments: Vec<String> = arguments
            .iter()
            .take_while(|argument| *argument != "--")
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        let path = config_path(&arguments).map(OsString::from).or_else(|| {
            let named = environment.iter().find(|(name, _)| name == "ROWMQ_CONFIG");
            named.map(|(_, path)| path.into()).filter(|path: &OsString| !path.is_empty())
        });
        let file = path
            .map(|path| File::read(Path::new(&path), Some(process.table)))
            .transpose()
            .map_err(|error| Refusal::Sentence(crate::process::sentence(&error)))?;
        let prefix = variable(process, "");
        let variables = environment
            .iter()
            .filter_map(|(name, _)| Some((name.strip_prefix(&prefix)?.to_lowercase(), name)))
            .map(|(name, variable)| (name, variable.clone()))
            .collect();
        let layers = Self { process, arguments, variables, file };
        layers.refuse_unknown(command)?;
        Ok(layers)
    }

    fn refuse_unknown(&self, command: &Command) -> Result<(), Refusal> {
        let mut known = Vec::new();
        gather(command, self.process, &mut known);
        let Process { table, .. } = self.process;
        if let Some(file) = &self.file {
            for (name, entry) in &file.table {
                let place = file.place(entry);
                let Some((_, is_list)) = known.iter().find(|(known, _)| known == name) else {
                    let meant = meant(name, known.iter().map(|(name, _)| name.as_str()));
                    return refused(format!("{place}: [{table}] has no setting '{name}'; {meant}"));
                };
                if entry.is_list && !is_list {
                    return refused(format!("{place}: '{name}' has one value: write no list"));
                }
            }
        }
        for (name, variable) in &self.variables {
            if known.iter().all(|(known, _)| known != name) {
                let names: Vec<String> =
                    known.iter().map(|(name, _)| self::variable(self.process, name)).collect();
                let meant = meant(variable, names.iter().map(String::as_str));
                return refused(format!("The variable {variable} is no setting; {meant}"));
            }
        }
        Ok(())
    }

    /// Puts the file's values below the command line and the environment.
    pub(super) fn lay(&self, mut command: Command) -> Command {
        for (id, name) in options(&command, self.process) {
            if let Some((_, entry)) = self.entry(&name) {
                let values: Vec<_> = entry.values.iter().cloned().map(leaked).collect();
                command = command.mut_arg(id, |arg| arg.default_values(values));
            }
        }
        below(command, |sub| self.lay(sub))
    }

    fn entry(&self, name: &str) -> Option<(&File, &Entry)> {
        let file = self.file.as_ref()?;
        Some((file, file.table.get(name)?))
    }

    /// Turns clap's words about a wrong value into a refusal that names where the value is set.
    pub(super) fn explain(&self, command: &Command, error: clap::Error) -> Refusal {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let Some(argument) = text(ContextKind::InvalidArg) else { return Refusal::Usage(error) };
        let reason = match (error.kind(), error.get(ContextKind::ValidValue)) {
            (ErrorKind::ValueValidation, _) => {
                error.source().map(ToString::to_string).unwrap_or_default()
            }
            (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) => {
                format!("use one of {}", valid.join(", "))
            }
            _ => return Refusal::Usage(error),
        };
        let value = text(ContextKind::InvalidValue).unwrap_or_default();
        let secret = find(command, argument).filter(|arg| {
            // Every setting's values are hidden in the help. A hidden option that is no setting is
            // a secret.
            arg.is_hide_env_values_set() && setting(arg, self.process).is_none()
        });
        if let Some(arg) = secret {
            let variable = arg.get_env().map(OsStr::to_string_lossy).unwrap_or_default();
            return Refusal::Sentence(format!("{argument} or {variable} cannot be used: {reason}"));
        }
        let found =
            find(command, argument).and_then(|arg| Some((arg, setting(arg, self.process)?)));
        let place = match &found {
            Some((arg, name)) => self.place(arg, name),
            None => argument.to_owned(),
        };
        Refusal::Sentence(match found {
            Some((_, name)) => format!("{place}: '{name}' is '{value}': {reason}"),
            None => format!("invalid value '{value}' for '{place}': {reason}"),
        })
    }

    /// Returns the place that a setting's value was read from.
    fn place(&self, arg: &Arg, name: &str) -> String {
        let option = format!("--{}", name.replace('_', "-"));
        let with_value = format!("{option}=");
        if self.arguments.iter().any(|one| *one == option || one.starts_with(&with_value)) {
            return option;
        }
        let variable = arg.get_env().filter(|name| std::env::var_os(name).is_some());
        match (variable, self.entry(name)) {
            (Some(variable), _) => variable.to_string_lossy().into_owned(),
            (None, Some((file, entry))) => file.place(entry),
            (None, None) => option,
        }
    }

    /// Returns the settings that have a value.
    pub(super) fn settings(&self, command: &Command, matches: &ArgMatches) -> Settings {
        let mut list = Vec::new();
        let mut level = Some((command, matches));
        while let Some((command, matches)) = level {
            for arg in command.get_arguments() {
                if let Some(name) = setting(arg, self.process) {
                    list.extend(self.one(arg, name, matches));
                }
            }
            level = matches
                .subcommand()
                .and_then(|(name, matches)| Some((command.find_subcommand(name)?, matches)));
        }
        Settings(list)
    }

    fn one(&self, arg: &Arg, name: String, matches: &ArgMatches) -> Option<Setting> {
        let id = arg.get_id().as_str();
        let values: Vec<_> = matches.get_raw(id)?.map(OsStr::to_string_lossy).collect();
        let from = match (matches.value_source(id), self.entry(&name)) {
            (Some(ValueSource::CommandLine), _) => format!("--{}", name.replace('_', "-")),
            (Some(ValueSource::EnvVariable), _) => {
                arg.get_env().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
            }
            (_, Some((file, entry))) => file.place(entry),
            _ => "default".to_owned(),
        };
        Some(Setting { name, value: values.join(", "), from })
    }
}

fn refused(sentence: String) -> Result<(), Refusal> {
    Err(Refusal::Sentence(sentence))
}

/// Finds the file that the command line names, wherever the option stands on it.
fn config_path(arguments: &[String]) -> Option<&str> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--config" {
            return arguments.next().map(String::as_str);
        }
        if let Some(path) = argument.strip_prefix("--config=") {
            return Some(path);
        }
    }
    None
}

/// Collects the settings of a command and its subcommands, and whether each takes several values.
fn gather(command: &Command, process: Process, known: &mut Vec<(String, bool)>) {
    for arg in command.get_arguments() {
        if let Some(name) = setting(arg, process) {
            known.push((name, matches!(arg.get_action(), ArgAction::Append)));
        }
    }
    command.get_subcommands().for_each(|sub| gather(sub, process, known));
}

/// Finds the argument that clap shows as `shown`.
fn find<'c>(command: &'c Command, shown: &str) -> Option<&'c Arg> {
    let own = command.get_arguments().find(|arg| arg.to_string() == shown);
    own.or_else(|| command.get_subcommands().find_map(|sub| find(sub, shown)))
}
