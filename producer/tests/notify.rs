//! What the relay reports to systemd.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::process::{Command, Stdio};
use std::time::Duration;

use rowmq_test::{Supervisor, TestDatabase};
use rustix::process::{Pid, Signal, kill_process};

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_tells_systemd_that_it_serves_and_goes_on_and_stops() {
    let (database, supervisor) = (TestDatabase::new().await, Supervisor::new());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-producer"));
    command.args(["relay", "--listen", "0"]).env("ROWMQ_URL", database.url().expose());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut relay =
        supervisor.supervise(&mut command, Duration::from_secs(20)).spawn().expect("it starts");
    supervisor.wait_for("READY=1");
    for _ in 0..2 {
        supervisor.wait_for("WATCHDOG=1");
    }
    let id = i32::try_from(relay.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::TERM).expect("it runs");
    supervisor.wait_for("STOPPING=1");
    assert!(relay.wait().expect("it ends").success());
}
