use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::until;

/// A running program, which is killed at the latest when the test ends. Its standard error is its
/// log, and is printed if the test fails.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Program {
    /// Returns the command of a program of this workspace, as it was last built. It is in the
    /// folder of the tests, and building a test alone does not build it.
    #[must_use]
    pub fn built(name: &str) -> Command {
        let test = std::env::current_exe().expect("A test knows its own path.");
        let folder =
            test.parent().and_then(|deps| deps.parent()).expect("It is in a target folder.");
        Command::new(PathBuf::from(folder).join(name))
    }

    /// Starts it, with an empty standard input.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{} cannot be started: {error}.", command.get_program().display())
        });
        let lines = BufReader::new(child.stderr.take().expect("It was piped.")).split(b'\n');
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, log, reader }
    }

    /// Returns the lines of its log that contain this text.
    #[must_use]
    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Waits for a line with this text in its log.
    ///
    /// # Panics
    /// If none comes within [`PATIENCE`](crate::PATIENCE), or before the program ends.
    pub async fn said(&self, text: &str) -> String {
        let said = self.said_or_ended(text).await;
        said.unwrap_or_else(|| panic!("It has ended, and did not say: {text}"))
    }

    /// As [`said`](Self::said), but returns `None` if the program ends before.
    pub async fn said_or_ended(&self, text: &str) -> Option<String> {
        let mut said = None;
        until(text, async || {
            let has_ended = self.reader.is_finished();
            said = self.lines(text).pop();
            said.is_some() || has_ended
        })
        .await;
        said
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("It was not waited for yet.")
    }

    /// Kills it at once, as the kernel does when memory is short.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("It was not waited for yet.");
        self.ended()
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
