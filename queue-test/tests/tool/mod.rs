//! Third-party programs that tests need.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test that cannot be set up has failed, and one that cannot run here says so"
)]

use std::path::Path;
use std::process::Command;

/// The exit code of `ops/lib/tools` where the tool is not available for the machine.
const UNAVAILABLE: i32 = 3;

/// Returns the path of a program, and fetches it if the machine has none; `None` where it is not
/// available.
pub(crate) fn tool(name: &str) -> Option<String> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/lib/tools");
    let tool = Command::new(tools).arg(name).output().expect("ops/lib/tools runs");
    let said = String::from_utf8_lossy(&tool.stderr);
    if tool.status.code() == Some(UNAVAILABLE) {
        eprintln!("NOT RUN HERE: {said}");
        return None;
    }
    assert!(tool.status.success(), "{said}");
    Some(String::from_utf8(tool.stdout).expect("a path").trim().to_owned())
}
