//! What every program can print about itself: shell completions and manual pages.

use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches};
use clap_complete::Shell;

const COMPLETIONS: &str = "completions";
const MANUAL: &str = "manual";

/// Print a shell's completions.
#[derive(Debug, Args)]
struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages of this program and of its commands into a directory.
#[derive(Debug, Args)]
struct Manual {
    /// The directory. It must be there.
    directory: PathBuf,
}

/// Returns the program's command line under the name that it was called by: completions and manual
/// pages are those of the program as it is installed.
pub(crate) fn command_line<T: CommandFactory>() -> Command {
    with_commands(T::command().name(crate::process::name()))
}

/// Adds the commands that all programs have. The command for manual pages is for packagers, and
/// hidden.
fn with_commands(program: Command) -> Command {
    let name = program.get_name().to_owned();
    let about = format!("Print a shell's completions: `source <({name} completions bash)`");
    program
        .subcommand(Completions::augment_args(Command::new(COMPLETIONS)).about(about))
        .subcommand(Manual::augment_args(Command::new(MANUAL)).hide(true))
}

/// Writes what these arguments ask for, and exits; returns if they ask for the program's own work.
pub(crate) fn answer(program: Command, arguments: &ArgMatches) {
    match write(program, arguments) {
        Ok(false) => {}
        Ok(true) => std::process::exit(0),
        Err(error) => {
            crate::process::complain(&crate::process::sentence(&error));
            std::process::exit(1)
        }
    }
}

/// Writes what these arguments ask for; returns whether they asked for it.
///
/// # Errors
/// If it cannot be written.
fn write(program: Command, arguments: &ArgMatches) -> anyhow::Result<bool> {
    match arguments.subcommand() {
        Some((COMPLETIONS, arguments)) => {
            let shell = Completions::from_arg_matches(arguments)?.shell;
            print(&completions(program, shell)).context("Cannot write the completions")?;
        }
        Some((MANUAL, arguments)) => {
            let directory = Manual::from_arg_matches(arguments)?.directory;
            let cannot = || format!("Cannot write manual pages into {}", directory.display());
            clap_mangen::generate_to(program, &directory).with_context(cannot)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn completions(mut program: Command, shell: Shell) -> Vec<u8> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    script
}

/// `rowmq completions bash | head` may close the pipe early; that is no failure.
fn print(text: &[u8]) -> std::io::Result<()> {
    match stdout().lock().write_all(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let sweep = clap::Arg::new("once").long("once").help("Sweep once.");
        with_commands(Command::new("sweeper").about("Sweeps.").arg(sweep))
    }

    fn asked(arguments: &[&str]) -> ArgMatches {
        let program = program();
        program.try_get_matches_from([&["sweeper"], arguments].concat()).expect("understood")
    }

    #[test]
    fn completions_are_made_for_every_shell_and_option() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let script = String::from_utf8(completions(program(), shell)).expect("text");
            assert!(script.contains("sweeper") && script.contains("once"), "{shell}");
        }
    }

    #[test]
    fn manual_pages_are_written_of_the_program_and_its_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let arguments = asked(&["manual", folder.to_str().expect("text")]);
        assert!(write(program(), &arguments).expect("written"));
        let page = std::fs::read_to_string(folder.join("sweeper.1")).expect("a page");
        assert!(page.contains(".TH") && page.contains("Sweep once."), "{page}");
        assert!(folder.join("sweeper-completions.1").exists());
        assert!(!folder.join("sweeper-manual.1").exists(), "not for readers");
        let nowhere = asked(&["manual", "/nowhere"]);
        let error = write(program(), &nowhere).expect_err("refused");
        assert_eq!(error.to_string(), "Cannot write manual pages into /nowhere");
    }

    #[test]
    fn a_program_that_is_to_work_writes_nothing() {
        assert!(!write(program(), &asked(&["--once", "1"])).expect("no failure"));
    }
}
