//! What a consumer reports to systemd, and when it falls silent.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rowmq_consumer::{Consumer, Shutdown, TopicOptions};
use rowmq_core::connection::ServerUrl;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::{NewMessage, TopicName, enqueue_to, store};
use rowmq_test::{Supervisor, TestDatabase, until};
use rustix::process::{Pid, Signal, kill_process};

/// Names the file for [`a_consumer_whose_handler_holds_the_loop`].
const ROLE: &str = "NOTIFY_TEST_FILE";

/// The `WatchdogSec=` of these tests: far longer than an idle loop takes to turn.
const WATCHDOG: Duration = Duration::from_secs(4);

/// A process that is killed when the test ends, if not before.
struct Process(Child);

impl Process {
    fn start(supervisor: &Supervisor, database: &TestDatabase, command: &mut Command) -> Self {
        command.env("ROWMQ_URL", database.url().expose()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(supervisor.supervise(command, WATCHDOG).spawn().expect("it starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_tells_systemd_that_it_claims_and_goes_on_and_stops() {
    let (database, supervisor) = (TestDatabase::new().await, Supervisor::new());
    database.topic("mail").await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"));
    command.args(["exec", "mail", "--", "true"]);
    let mut process = Process::start(&supervisor, &database, &mut command);
    supervisor.wait_for("READY=1");
    let mut conn = database.connect().await;
    let workers = store::worker::latest(&mut conn, 10).await.expect("workers");
    assert_eq!(workers.len(), 1, "it was not ready before it had registered");
    for _ in 0..3 {
        supervisor.wait_for("WATCHDOG=1");
    }
    let id = i32::try_from(process.0.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::TERM).expect("it runs");
    supervisor.wait_for("STOPPING=1");
    assert!(process.0.wait().expect("it ends").success());
}

/// Blocks the only thread of its runtime while the file exists.
struct Hold(PathBuf);

impl RawHandler for Hold {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        std::fs::write(&self.0, "").expect("written");
        while self.0.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Not a test but a process for the next one, which starts this program again.
#[tokio::test(flavor = "current_thread")]
async fn a_consumer_whose_handler_holds_the_loop() {
    let Some(file) = std::env::var_os(ROLE) else { return };
    let url = ServerUrl::new(&std::env::var("ROWMQ_URL").expect("a server")).expect("usable");
    let topic = TopicName::new("mail").expect("a name");
    let consumer = Consumer::builder(url)
        .raw_handler(topic, TopicOptions::default(), Hold(file.into()))
        .build()
        .expect("built");
    consumer.run(Shutdown::default()).await.expect("it runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_bites_when_the_claim_loop_stands_still() {
    let (database, supervisor) = (TestDatabase::new().await, Supervisor::new());
    let topic = database.topic("mail").await;
    let held = std::env::temp_dir().join(format!("rowmq-held-{}", database.name()));
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "notify::a_consumer_whose_handler_holds_the_loop"]).env(ROLE, &held);
    let _process = Process::start(&supervisor, &database, &mut command);
    supervisor.wait_for("READY=1");
    supervisor.wait_for("WATCHDOG=1");
    let mut conn = database.connect().await;
    enqueue_to(&mut conn, &topic, &[NewMessage::new("hold")]).await.expect("enqueued");
    until("held", async || Path::new(&held).exists()).await;
    // Reports that were sent before.
    while supervisor.report_within(Duration::from_millis(1)).is_some() {}
    assert_eq!(supervisor.report_within(WATCHDOG), None, "systemd believes that it works");
    std::fs::remove_file(&held).expect("removed");
    supervisor.wait_for("WATCHDOG=1");
}
