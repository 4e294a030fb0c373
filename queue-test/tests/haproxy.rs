//! A real `HAProxy` between the queue and its server: it forwards bytes, so each client has one
//! connection to the server, and every guarantee holds.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests: what cannot be set up has failed"
)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use rowmq_core::connection::ServerUrl;
use rowmq_core::doctor::{Verdict, examine, require};
use rowmq_core::model::{OnDone, Settlement};
use rowmq_core::store::worker;
use rowmq_core::worker::{SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, enqueue};
use rowmq_test::{TestDatabase, until};

use crate::tool::tool;

/// The settings of docs/servers.md, except for the addresses.
const CONFIG: &str = "\
global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  option clitcpka
  option srvtcpka
listen queue
  bind 127.0.0.1:FRONT
  server writer BACK
";

struct HaProxy {
    child: Child,
    url: ServerUrl,
    _folder: tempfile::TempDir,
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts it in front of the database's server; returns `None` where it is not available.
async fn before(database: &TestDatabase) -> Option<HaProxy> {
    let program = tool("haproxy")?;
    let free = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = free.local_addr().expect("an address");
    drop(free);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("haproxy.cfg");
    let config = CONFIG
        .replace("FRONT", &address.port().to_string())
        .replace("BACK", &database.url().server());
    fs::write(&file, config).expect("written");
    let child = Command::new(program)
        .args(["-db", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it listens", async || TcpStream::connect(address).is_ok()).await;
    let url = database.url().with_hosts([address.to_string().as_str()]).expect("a URL");
    Some(HaProxy { child, url, _folder: folder })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_self_test_finds_nothing_and_a_worker_claims_and_settles_through_it() {
    let database = TestDatabase::new().await;
    let topic = database.topic("t").await;
    let Some(proxy) = before(&database).await else { return };
    let report = examine(&proxy.url).await.expect("a report");
    for name in ["no multiplexing proxy", "name locks", "skip locked"] {
        let check = report.checks.iter().find(|check| check.name == name).expect("checked");
        assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
    }
    require(&proxy.url).await.expect("it will do");
    let mut conn = database.connect().await;
    enqueue(&mut conn, &topic.name, &NewMessage::new("m")).await.expect("enqueued");
    let worker = Worker::start(WorkerOptions::new(proxy.url.clone(), "through")).await;
    let worker = worker.expect("registered");
    let mut claimed = Vec::new();
    until("claimed", async || {
        claimed.extend(worker.claim(topic.id, 1).await.expect("claimed").deliveries);
        !claimed.is_empty()
    })
    .await;
    let ack = Settled::new(&claimed[0], Settlement::Ack, OnDone::Delete);
    assert_eq!(worker.settle(vec![ack]).await.expect("settled"), [SettleOutcome::Settled]);
}

/// The proxy forwards the end of a client: the server drops its session at once, not after a
/// timeout.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_client_is_the_end_of_its_session() {
    let database = TestDatabase::new().await;
    let topic = database.topic("t").await;
    let Some(proxy) = before(&database).await else { return };
    let mut conn = database.connect().await;
    enqueue(&mut conn, &topic.name, &NewMessage::new("m")).await.expect("enqueued");
    let opts = Opts::from_url(proxy.url.expose()).expect("a URL");
    let client = Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await;
    let mut client = client.expect("a session");
    let id: u64 =
        client.query_first("SELECT CONNECTION_ID()").await.expect("asked").expect("a row");
    assert_eq!(u64::from(client.id()), id, "the greeting is the server's");
    // A lease that would never expire within this test.
    client.query_drop("SET @queue_lease = 86400").await.expect("set");
    client.query_drop("CALL queue_claim('t', 1, NULL)").await.expect("claimed");
    let is_locked = async |conn: &mut _| {
        worker::alive(conn).await.expect("read").first().is_some_and(|worker| worker.locked)
    };
    assert!(is_locked(&mut conn).await);
    drop(client);
    until("its name lock is free", async || !is_locked(&mut conn).await).await;
}
