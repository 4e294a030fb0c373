//! Settings under one name: a TOML file, overridden by the environment, overridden by the command
//! line.
//!
//! Every long option of a process that says how it works is a setting: `--give-up-after` of the
//! producer is `ROWMQ_PRODUCER_GIVE_UP_AFTER`, and `give_up_after` in the table `[producer]` of the
//! file. All three are read by the option's own parser, so that they cannot drift apart.

pub mod declarations;
mod file;
mod layers;
mod names;
mod settings;
mod source;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

pub(crate) use self::file::File;
use self::layers::{Layers, Refusal};
pub use self::settings::{Setting, Settings};
use crate::paperwork;

/// A process, as its configuration knows it.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Its table in the file, and its part of the names of variables.
    pub table: &'static str,
    /// The options, by their names in the file, that say what to do this time rather than how: they
    /// can only be given on the command line.
    pub apart: &'static [&'static str],
}

/// A process's configuration, and where each value comes from.
#[derive(Debug)]
pub struct Configured<T> {
    /// Its command line, filled up from the environment and the file.
    pub arguments: T,
    /// Where each setting comes from.
    pub settings: Settings,
}

/// Reads the process's command line, environment and configuration file.
///
/// An error becomes one line on standard error that names the place and the fix, or clap's own
/// words if the command line itself is misused. Both exit with 2.
#[must_use]
pub fn parse<T: CommandFactory + FromArgMatches>(process: Process) -> Configured<T> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let program = paperwork::command_line::<T>();
    if let Ok(matches) = program.clone().try_get_matches_from(&arguments) {
        paperwork::answer(program, &matches);
    }
    match read(process, &arguments, &environment()) {
        Ok(configured) => configured,
        Err(Refusal::Usage(error)) => error.exit(),
        Err(Refusal::Sentence(sentence)) => {
            crate::process::complain(&sentence);
            std::process::exit(2)
        }
    }
}

/// Reads them again, with the file as it is now: for a running process.
///
/// # Errors
/// One sentence that names the place.
pub fn parse_again<T: CommandFactory + FromArgMatches>(
    process: Process,
) -> anyhow::Result<Configured<T>> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    read(process, &arguments, &environment()).map_err(|refusal| match refusal {
        Refusal::Usage(error) => anyhow::Error::new(error),
        Refusal::Sentence(sentence) => anyhow::Error::msg(sentence),
    })
}

/// Reports what is wrong with the configuration, as one line on standard error; returns the exit
/// code.
#[must_use]
pub fn refuse(error: &anyhow::Error) -> ExitCode {
    crate::process::complain(&crate::process::sentence(error));
    ExitCode::from(2)
}

/// Returns the environment. A name or value that is not Unicode cannot be one of our settings.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn read<T: CommandFactory + FromArgMatches>(
    process: Process,
    arguments: &[OsString],
    environment: &[(String, String)],
) -> Result<Configured<T>, Refusal> {
    let program = paperwork::command_line::<T>();
    let mut command = layers::named(program, process, environment);
    // Help is shown even if the file is wrong.
    if let Err(error) = command.clone().try_get_matches_from(arguments)
        && !error.use_stderr()
    {
        return Err(Refusal::Usage(error));
    }
    let layers = Layers::read(&command, process, arguments, environment)?;
    command = layers.lay(command);
    // Only a command that is built can be shown in a sentence.
    command.build();
    let matches = command
        .clone()
        .try_get_matches_from(arguments)
        .map_err(|error| layers.explain(&command, error))?;
    let settings = layers.settings(&command, &matches);
    let arguments = T::from_arg_matches(&matches).map_err(Refusal::Usage)?;
    Ok(Configured { arguments, settings })
}

#[cfg(test)]
mod tests;
