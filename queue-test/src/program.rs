use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::until;

/// A program under way, which is killed at the latest when the test ends. What it writes to its
/// standard error is its log, and is printed if the test fails.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Program {
    /// The command of a program that was built together with this test: of the same folder.
    #[must_use]
    pub fn built(name: &str) -> Command {
        let test = std::env::current_exe().expect("A test knows its own path.");
        let folder =
            test.parent().and_then(|deps| deps.parent()).expect("It is in a target folder.");
        Command::new(PathBuf::from(folder).join(name))
    }

    /// Starts it. It reads nothing.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{} cannot be started: {error}.", command.get_program().display())
        });
        let lines = BufReader::new(child.stderr.take().expect("It was piped.")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, log }
    }

    /// The lines of its log that have this text in them.
    #[must_use]
    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Waits for a line with this text in its log.
    ///
    /// # Panics
    /// When none comes within [`PATIENCE`](crate::PATIENCE).
    pub async fn said(&self, text: &str) -> String {
        until(text, async || !self.lines(text).is_empty()).await;
        self.lines(text).pop().expect("There was one.")
    }

    /// Kills it at once, as the kernel does when memory is short.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("It was not waited for yet.");
        self.child.wait().expect("It has ended.")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            self.lines("").iter().for_each(|line| println!("{line}"));
        }
    }
}
