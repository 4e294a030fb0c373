//! How `rowmq` finds the benchmark's program.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const URL: &str = "mysql://u:secret@127.0.0.1:9/q";

/// Returns `rowmq` in its own folder, with another folder in PATH.
fn rowmq(beside: &Path, path: &Path, arguments: &[&str]) -> Command {
    let program = beside.join("rowmq");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_rowmq"), &program).expect("copied");
    }
    let mut command = Command::new(program);
    command.env("ROWMQ_URL", URL).env("PATH", format!("{}:/usr/bin:/bin", path.display()));
    command.arg("bench").args(arguments);
    command
}

/// Runs it. A file that was just written cannot be executed while a child of another test, started
/// in between, still has it open.
fn ended(command: &mut Command) -> Output {
    loop {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
            ended => return ended.expect("it runs"),
        }
    }
}

/// Writes a program that prints its arguments.
fn put(folder: &Path, name: &str) {
    let program = folder.join(name);
    fs::write(&program, "#!/bin/sh\necho \"${0##*/} $ROWMQ_URL $*\"\nexit 3\n").expect("written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("made a program");
}

#[test]
fn without_the_program_it_says_where_to_get_it() {
    let (beside, path) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    // In another folder, `bench` may be any program.
    put(path.path(), "bench");
    put(beside.path(), "bench");
    let ended = ended(&mut rowmq(beside.path(), path.path(), &["cases"]));
    let error = String::from_utf8(ended.stderr).expect("text");
    assert_eq!(ended.status.code(), Some(1));
    assert!(error.contains("cargo build --release --package bench"), "{error}");
}

#[test]
fn the_program_is_given_the_server_and_all_arguments() {
    let (beside, path) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let said = |arguments: &[&str]| {
        let ended = ended(&mut rowmq(beside.path(), path.path(), arguments));
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        String::from_utf8(ended.stdout).expect("text")
    };
    put(path.path(), "rowmq-bench");
    let all = ["run", "--only", "drain", "--json", "--help"];
    assert_eq!(said(&all), format!("rowmq-bench {URL} run --only drain --json --help\n"));
    let short = said(&[]);
    assert!(short.starts_with(&format!("rowmq-bench {URL} run --quick --only ")), "{short}");
    put(beside.path(), "bench");
    fs::create_dir(beside.path().join("deps")).expect("made");
    assert!(said(&["cases"]).starts_with("bench "), "beside rowmq goes before PATH");
}
