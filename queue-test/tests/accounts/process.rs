//! The real programs, each under its own account.

use std::process::{Command, Stdio};

use rowmq_core::connection::ServerUrl;
use rowmq_test::Program;

/// What the handlers do: the body decides how a run ends.
const HANDLER: &str = r#"read -r body
case $body in
  retry) [ "$ROWMQ_DELIVERY_NO" -gt 1 ] || exit 75 ;;
  dead) exit 65 ;;
  sleep) sleep 600 ;;
esac"#;

fn program(url: &ServerUrl, name: &str, arguments: &[&str]) -> Command {
    let mut command = Program::built(name);
    command.args(arguments).env("ROWMQ_URL", url.expose()).env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs a program to its end and asserts success; returns what it wrote.
pub(crate) fn run(url: &ServerUrl, name: &str, arguments: &[&str]) -> String {
    let ended = program(url, name, arguments).output().expect("built: ops/test does");
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{name} {arguments:?}: {out}{err}");
    assert!(!err.contains("denied"), "{name} {arguments:?}: {err}");
    out.into_owned()
}

/// Runs `rowmq` with the arguments of this line.
pub(crate) fn rowmq(url: &ServerUrl, line: &str) -> String {
    let mut words = Vec::new();
    for (nth, part) in line.split('\'').enumerate() {
        if nth % 2 == 0 {
            words.extend(part.split_whitespace());
        } else {
            words.push(part);
        }
    }
    run(url, "rowmq", &words)
}

/// A running program that must not be refused anything.
pub(crate) struct Process {
    program: Program,
}

impl Process {
    pub(crate) fn start(url: &ServerUrl, name: &str, arguments: &[&str]) -> Self {
        Self { program: Program::start(&mut program(url, name, arguments)) }
    }

    pub(crate) fn consumer(url: &ServerUrl, topic: &str, options: &[&str]) -> Self {
        let handler = ["--timeout", "700s", "--", "/bin/sh", "-c", HANDLER];
        Self::start(url, "rowmq-consumer", &[options, &["exec", topic], &handler].concat())
    }

    /// Starts a consumer of the topic `slow` that never stands in for the janitor.
    pub(crate) fn victim(url: &ServerUrl) -> Self {
        let arguments = ["exec", "slow", "--timeout", "700s", "--", "/bin/sh", "-c", HANDLER];
        let mut command = program(url, "rowmq-consumer", &arguments);
        command.env("ROWMQ_CONSUMER_SWEEP", "false");
        Self { program: Program::start(&mut command) }
    }

    pub(crate) fn kill(&mut self) {
        self.program.kill();
    }

    /// Returns the log lines that report a refusal.
    pub(crate) fn denied(&self) -> Vec<String> {
        self.program.lines("denied")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Its last output counts, too.
            self.program.kill();
            assert_eq!(self.denied(), Vec::<String>::new());
        }
    }
}
