use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{ExecError, ExecOptions, SUBCOMMAND, hidden};

/// A program that was found, and how it is started.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    supervisor: Option<PathBuf>,
    pub(super) hidden: Vec<PathBuf>,
    pub(super) timeout: Duration,
    pub(super) output_limit: usize,
    pub(super) kill_grace: Duration,
}

impl Program {
    pub(super) fn new(options: ExecOptions) -> Result<Self, ExecError> {
        let mut argv = options.argv.into_iter();
        let name = argv.next().filter(|name| !name.is_empty()).ok_or(ExecError::NoProgram)?;
        let arguments: Vec<OsString> = argv.collect();
        for text in std::iter::once(&name).chain(&arguments) {
            if text.as_encoded_bytes().contains(&0) {
                return Err(ExecError::Unsayable { what: "the argument", text: text.clone() });
            }
        }
        if !options.hidden.is_empty() && !hidden::can_hide() {
            tracing::warn!(
                hidden = ?options.hidden,
                "Without Landlock the program can read files that it should not."
            );
        }
        Ok(Self {
            path: find(&name, std::env::var_os("PATH").as_deref())?,
            arguments,
            variables: options.environment.resolve()?,
            supervisor: options.supervisor,
            hidden: options.hidden,
            timeout: options.timeout,
            output_limit: options.output_limit,
            kill_grace: options.kill_grace,
        })
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns the command that starts it as the leader of a process group, with pipes for what it
    /// writes. The standard input is left to the caller.
    pub(super) fn command(&self) -> Command {
        let mut command = match &self.supervisor {
            None => Command::new(&self.path),
            Some(supervisor) => {
                let mut command = Command::new(supervisor);
                command.arg(SUBCOMMAND).arg(std::process::id().to_string()).arg(&self.path);
                command
            }
        };
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Finds the absolute path of the program `name`. This happens once, so that a later change of
/// `PATH` or of the working directory cannot put another program in its place.
fn find(name: &OsStr, search_path: Option<&OsStr>) -> Result<PathBuf, ExecError> {
    let not_found = || ExecError::NotFound { program: name.into() };
    if name.as_bytes().contains(&b'/') {
        let program = std::path::absolute(name).map_err(|_| not_found())?;
        if !program.exists() {
            return Err(not_found());
        }
        return if is_executable(&program) {
            Ok(program)
        } else {
            Err(ExecError::NotExecutable { program })
        };
    }
    // An empty entry would mean the working directory; a service must not run what lies there.
    std::env::split_paths(search_path.unwrap_or_default())
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|program| is_executable(program))
        .ok_or_else(not_found)
}

fn is_executable(program: &Path) -> bool {
    program.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_on_the_path_and_never_in_the_working_directory() {
        let path = OsStr::new(":.:relative:/nowhere:/usr/bin:/bin");
        let program = find(OsStr::new("sh"), Some(path)).unwrap();
        assert!(program.is_absolute());
        assert!(matches!(
            find(OsStr::new("Cargo.toml"), Some(path)),
            Err(ExecError::NotFound { .. })
        ));
        assert!(matches!(find(OsStr::new("sh"), None), Err(ExecError::NotFound { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_run_is_refused_at_the_start() {
        for bad in ["/etc/passwd", "/usr"] {
            assert!(matches!(find(OsStr::new(bad), None), Err(ExecError::NotExecutable { .. })));
        }
        assert!(matches!(find(OsStr::new("/nowhere/x"), None), Err(ExecError::NotFound { .. })));
    }

    #[test]
    fn a_relative_path_becomes_absolute() {
        let working = std::env::current_dir().unwrap();
        let depth = working.components().count();
        let relative = format!("{}bin/sh", "../".repeat(depth));
        assert!(find(OsStr::new(&relative), None).unwrap().is_absolute());
    }
}
