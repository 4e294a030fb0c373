use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ExecError;

/// Finds the absolute path of the program `name`. This happens once, so that a later change of
/// `PATH` or of the working directory cannot put another program in its place.
pub(super) fn find(name: &OsStr, search_path: Option<&OsStr>) -> Result<PathBuf, ExecError> {
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
