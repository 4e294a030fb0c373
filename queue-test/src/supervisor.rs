use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::PATIENCE;

/// The longest report that can be read, in bytes.
const LONGEST: usize = 4096;

/// Takes systemd's place: the socket that a service of `Type=notify` reports to.
#[derive(Debug)]
pub struct Supervisor {
    path: PathBuf,
    socket: UnixDatagram,
}

impl Supervisor {
    /// Makes a socket that no service reports to yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes a file")]
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("queue-{}", Uuid::new_v4().simple()));
        let socket = UnixDatagram::bind(&path).expect("A socket can be made.");
        Self { path, socket }
    }

    /// Sets what systemd would set for the command: the socket, and the `WatchdogSec=` after which
    /// a unit is killed.
    pub fn supervise<'a>(&self, command: &'a mut Command, watchdog: Duration) -> &'a mut Command {
        command
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string())
            .env_remove("WATCHDOG_PID")
    }

    /// Returns the next report, one assignment a line; `None` if none comes within `wait`.
    #[must_use]
    pub fn report_within(&self, wait: Duration) -> Option<Vec<String>> {
        self.socket.set_read_timeout(Some(wait)).expect("A time can be set.");
        let mut report = [0; LONGEST];
        match self.socket.recv(&mut report) {
            Ok(n) => {
                Some(String::from_utf8_lossy(&report[..n]).lines().map(str::to_owned).collect())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                None
            }
            Err(error) => panic!("Nothing can be read from the socket: {error}."),
        }
    }

    /// Waits for a report with this assignment.
    ///
    /// # Panics
    /// When it does not come within [`PATIENCE`].
    pub fn wait_for(&self, assignment: &str) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let report = self.report_within(PATIENCE).unwrap_or_default();
            if report.iter().any(|line| line == assignment) {
                return;
            }
        }
        panic!("not reported within {PATIENCE:?}: {assignment}");
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // It may be gone with its directory.
        drop(std::fs::remove_file(&self.path));
    }
}
