//! Programs of others that tests need.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test that cannot be set up has failed, and one that cannot run here says so"
)]

use std::path::Path;
use std::process::Command;

/// What `ops/lib/tools` ends with where the machine cannot have the tool.
const UNAVAILABLE: i32 = 3;

/// The path of a program, which is fetched if the machine has none; `None` where it cannot be had.
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
