//! Third-party programs that tests need, and commands of `ops` that need some.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test that cannot be set up has failed, and one that cannot run here says so"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The exit code of a command of `ops` where the machine lacks what it needs.
const UNAVAILABLE: i32 = 3;

/// Returns the path of a program, and fetches it if the machine has none; `None` where it is not
/// available.
pub(crate) fn tool(name: &str) -> Option<String> {
    said(&mut ops(&["lib/tools", name])).map(|path| path.trim().to_owned())
}

/// Returns a command of `ops` with its arguments, run in the checkout.
pub(crate) fn ops(words: &[&str]) -> Command {
    let checkout = checkout();
    let mut command = Command::new(checkout.join("ops").join(words[0]));
    command.args(&words[1..]).current_dir(checkout);
    command
}

pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command and returns what it prints; `None` where this machine lacks what it needs.
pub(crate) fn said(command: &mut Command) -> Option<String> {
    let Output { status, stdout, stderr } =
        command.output().expect("it is there, and built: ops/test does that");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if status.code() == Some(UNAVAILABLE) {
        eprintln!("NOT RUN HERE: {}", text(&stderr));
        return None;
    }
    assert!(status.success(), "{}{}", text(&stdout), text(&stderr));
    Some(text(&stdout))
}

/// Does the same while the test goes on.
pub(crate) async fn said_meanwhile(mut command: Command) -> Option<String> {
    tokio::task::spawn_blocking(move || said(&mut command)).await.expect("no panic")
}
