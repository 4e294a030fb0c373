//! The real programs, under accounts of their own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use queue_core::connection::ServerUrl;

/// What the handlers do: the body says how they end.
const HANDLER: &str = r#"read -r body
case $body in
  retry) [ "$QUEUE_DELIVERY_NO" -gt 1 ] || exit 75 ;;
  dead) exit 65 ;;
  sleep) sleep 600 ;;
esac"#;

fn program(url: &ServerUrl, name: &str, arguments: &[&str]) -> Command {
    let test = std::env::current_exe().expect("this test's path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target/debug");
    let mut command = Command::new(PathBuf::from(folder).join(name));
    command.args(arguments).env("QUEUE_URL", url.expose()).env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs a program to its end, which must be a good one; what it wrote.
pub(crate) fn run(url: &ServerUrl, name: &str, arguments: &[&str]) -> String {
    let ended = program(url, name, arguments).output().expect("built: ops/test does");
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{name} {arguments:?}: {out}{err}");
    assert!(!err.contains("denied"), "{name} {arguments:?}: {err}");
    out.into_owned()
}

/// `queuectl` with the arguments of this line.
pub(crate) fn queuectl(url: &ServerUrl, line: &str) -> String {
    let mut words = Vec::new();
    for (nth, part) in line.split('\'').enumerate() {
        if nth % 2 == 0 {
            words.extend(part.split_whitespace());
        } else {
            words.push(part);
        }
    }
    run(url, "queuectl", &words)
}

/// A program under way, killed at the latest when the test ends.
pub(crate) struct Process {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(crate) fn start(url: &ServerUrl, name: &str, arguments: &[&str]) -> Self {
        Self::spawn(program(url, name, arguments))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("built: ops/test does");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, log }
    }

    pub(crate) fn consumer(url: &ServerUrl, topic: &str, options: &[&str]) -> Self {
        let handler = ["--timeout", "700s", "--", "/bin/sh", "-c", HANDLER];
        Self::start(url, "consumer", &[options, &["exec", topic], &handler].concat())
    }

    /// A consumer of the topic `slow` that never stands in for the janitor.
    pub(crate) fn victim(url: &ServerUrl) -> Self {
        let arguments = ["exec", "slow", "--timeout", "700s", "--", "/bin/sh", "-c", HANDLER];
        let mut command = program(url, "consumer", &arguments);
        command.env("QUEUE_CONSUMER_SWEEP", "false");
        Self::spawn(command)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// What of its log tells that it was refused something.
    pub(crate) fn denied(&self) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|line| line.contains("denied")).cloned().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        let denied = self.denied();
        if std::thread::panicking() {
            // What was refused is mostly why.
            denied.iter().for_each(|line| println!("{line}"));
        } else {
            assert_eq!(denied, Vec::<String>::new());
        }
    }
}
