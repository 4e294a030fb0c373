//! What the janitor reports to systemd.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::process::{Command, Stdio};
use std::time::Duration;

use rowmq_core::store;
use rowmq_test::{Supervisor, TestDatabase};
use rustix::process::{Pid, Signal, kill_process};

#[tokio::test(flavor = "multi_thread")]
async fn a_janitor_tells_systemd_that_it_sweeps_and_goes_on_and_stops() {
    let (database, supervisor) = (TestDatabase::new().await, Supervisor::new());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-janitor"));
    command.env("ROWMQ_URL", database.url().expose()).stdin(Stdio::null()).stderr(Stdio::null());
    let mut janitor =
        supervisor.supervise(&mut command, Duration::from_secs(2)).spawn().expect("it starts");
    supervisor.wait_for("READY=1");
    let mut conn = database.connect().await;
    let duties = store::duty::all(&mut conn).await.expect("duties");
    assert!(!duties.is_empty(), "it was not ready before its first sweep");
    for _ in 0..3 {
        supervisor.wait_for("WATCHDOG=1");
    }
    let id = i32::try_from(janitor.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::TERM).expect("it runs");
    supervisor.wait_for("STOPPING=1");
    assert!(janitor.wait().expect("it ends").success());
}
