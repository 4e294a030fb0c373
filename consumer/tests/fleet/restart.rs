use std::process::Command;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::{migration, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase};

use crate::fleet::{Fleet, Start};

/// H3, H4: the network cuts every connection of a consumer; it adopts its claims before a sweeper
/// takes them away, and no message runs twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_mere_reconnect_costs_no_second_run() {
    let mut fleet = Fleet::new().await;
    let direct = fleet.database.url().clone();
    let proxy = FaultProxy::start(&direct).await;
    fleet.through(&proxy.url(&direct));
    let ids = fleet.enqueue(16).await;
    let settings = &[("ROWMQ_CONSUMER_SWEEP", "false")][..];
    let member = fleet.start(&Start { work_ms: 5_000, settings, ..Start::default() });
    fleet.until("all begun", async || fleet.begun(member) == ids.len()).await;
    // At the same time, a janitor that is not behind the proxy sweeps, with a grace that is long
    // enough even for a busy machine. Another consumer would take messages that are given back.
    let mut janitor = Program::built("rowmq-janitor");
    janitor.args(["--rescue-grace", "15s"]).env("ROWMQ_URL", direct.expose());
    let _janitor = Program::start(&mut janitor);
    fleet.through(&direct);
    fleet.start(&Start { settings, ..Start::default() });
    for cut in 1..=3 {
        proxy.reset();
        let again =
            async || fleet.said(member).matches("Life session taken up again").count() == cut;
        fleet.until("taken up again", again).await;
    }
    fleet.drained().await;
    for history in fleet.histories().values() {
        assert_eq!(history.starts, [(member, 1)], "one run, by the one that had it");
        assert_eq!(history.ends, [(member, 1)]);
    }
}

/// F4, F5, H21: the server is killed under load and comes back; connection ids restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_loses_nothing_and_consumers_go_on_by_themselves() {
    const MESSAGES: usize = 3_000;
    let server = OwnServer::start("fleet");
    let database = TestDatabase::empty_on(&server.url).await;
    migration::run(database.url()).await.expect("migrated");
    let mut fleet = Fleet::on(database).await;
    let ids = fleet.enqueue(MESSAGES).await;
    for _ in 0..3 {
        fleet.start(&Start { work_ms: 20, concurrency: 8, ..Start::default() });
    }
    for share in [4, 2] {
        let handled = async || fleet.histories().len() > MESSAGES / share;
        fleet.until("on the way", handled).await;
        server.run("crash");
        server.run("restart");
    }
    fleet.drained().await;
    let histories = fleet.histories();
    let again = histories.values().filter(|history| history.ends.len() > 1).count();
    println!("{again} of {MESSAGES} messages ran again after two crashes of the server");
    assert_eq!(histories.len(), ids.len(), "nothing is lost");
    assert!(histories.values().all(|history| !history.ends.is_empty()));
    // No worker died: every consumer adopted its own claims, so nothing ran twice.
    assert_eq!(again, 0);
}

/// A session by SQL cannot come back. After a restart the sweeper knows that the server is the
/// same, so that it need not wait for the lease, which here is longer than the test may take.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_held_when_its_server_was_killed_runs_again_before_its_lease_is_over() {
    let server = OwnServer::start("session");
    let database = TestDatabase::empty_on(&server.url).await;
    migration::run(database.url()).await.expect("migrated");
    let mut fleet = Fleet::on(database).await;
    fleet.enqueue(1).await;
    let mut session = fleet.database.connect().await;
    let claim = "SET @queue_lease = 86400; CALL queue_claim('work', 1, NULL)";
    session.batch_execute(claim).await.expect("claimed");
    let mut conn = fleet.database.connect().await;
    let depth = store::inspect::depth(&mut conn, fleet.topic.id).await.expect("a depth");
    assert_eq!(depth.claimed, 1);
    let first = store::worker::incarnation(&mut conn).await.expect("read");
    // The second in which a server started is known within two.
    let is_later = async || {
        server.run("crash");
        server.run("restart");
        let mut conn = fleet.database.connect().await;
        store::worker::incarnation(&mut conn).await.expect("read").succeeds(&first)
    };
    fleet.until("in a later life of the server", is_later).await;
    fleet.start(&Start::default());
    fleet.drained().await;
    assert_eq!(fleet.histories().len(), 1);
}

/// A private server, which the test may kill.
struct OwnServer {
    url: ServerUrl,
    name: String,
    kind: String,
}

impl OwnServer {
    fn start(name: &str) -> Self {
        let kind = std::env::var("ROWMQ_SERVER_KIND").unwrap_or_else(|_| "mariadb".to_owned());
        let name = format!("{name}-{}", std::process::id());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/dev-server");
        let started = Command::new(script)
            .args(["start", "--server", &kind, "--name", &name])
            .output()
            .expect("ops/dev-server runs");
        let said = String::from_utf8_lossy(&started.stdout);
        let url = said.lines().find_map(|line| line.strip_prefix("ROWMQ_URL="));
        let url = url.unwrap_or_else(|| panic!("no server: {said}{:?}", started.stderr));
        let url = ServerUrl::new(url).expect("a URL");
        Self { url, name, kind }
    }

    fn run(&self, command: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/dev-server");
        let done = Command::new(script)
            .args([command, "--server", &self.kind, "--name", &self.name])
            .output()
            .expect("ops/dev-server runs");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.run("stop");
    }
}
