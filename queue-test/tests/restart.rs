//! Tests that need a private server: crashes and restarts, the server's settings, connections
//! running out. Each test starts one with `ops/dev-server`, of the kind that `ROWMQ_URL` names.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::connection::{Link, ServerUrl, SessionKind, connect, connect_to_any, transaction};
use rowmq_core::doctor::{Verdict, examine, require};
use rowmq_core::model::{ClaimNo, OnDone, Settlement, WorkerId};
use rowmq_core::rescue::{Why, take_back};
use rowmq_core::store::{claim, process_list, worker};
use rowmq_core::worker::{Phase, SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{
    AsyncMysqlConnection, Delivery, Error, Fault, NewMessage, Topic, enqueue, migration,
};
use rowmq_test::{TestDatabase, session_at, until};
use uuid::Uuid;

/// A server that ends when this value is dropped, or with the test's process if that is killed.
struct OwnServer {
    /// Keeps the server up until its input ends.
    holder: Child,
    kind: &'static str,
    name: String,
    url: ServerUrl,
}

fn dev_server() -> Command {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/dev-server"))
}

impl OwnServer {
    /// Returns the kind of the server that the tests share.
    async fn kind() -> &'static str {
        let shared = std::env::var("ROWMQ_URL").expect("ROWMQ_URL says which kind of server");
        let shared = ServerUrl::new(&shared).unwrap();
        let version = examine(&shared).await.unwrap().server;
        if version.contains("MariaDB") { "mariadb" } else { "mysql" }
    }

    async fn start() -> Self {
        let kind = Self::kind().await;
        let mut holder = dev_server()
            .args(["run", "--server", kind, "--", "sh", "-c"])
            .arg("echo $ROWMQ_SERVER_NAME $ROWMQ_URL; exec cat >/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (name, url) = line.trim().split_once(' ').expect("the server starts");
        let url = ServerUrl::new(url).unwrap();
        Self { holder, kind, name: name.to_owned(), url }
    }

    fn command(&self, word: &str) {
        let mut command = dev_server();
        command.args([word, "--server", self.kind, "--name", &self.name]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills the server as a power cut does, and starts it again on the same data and port.
    fn crash_and_start(&self) {
        self.command("crash");
        self.command("start");
    }

    async fn root(&self) -> AsyncMysqlConnection {
        connect_to_any(&self.url, SessionKind::Plain).await.unwrap()
    }

    async fn set(&self, variable: &str, value: &str) {
        let set = format!("SET GLOBAL {variable} = {value}");
        self.root().await.batch_execute(&set).await.unwrap();
    }

    /// Turns writes off or on, as a failover does on the former writer.
    async fn set_read_only(&self, on: bool) {
        let value = if on { "ON" } else { "OFF" };
        if self.kind == "mysql" && on {
            self.set("super_read_only", value).await;
        } else {
            self.set("read_only", value).await;
        }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let ended = self.holder.wait();
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

async fn number(conn: &mut AsyncMysqlConnection, query: &str) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }
    let query = format!("SELECT CAST(({query}) AS SIGNED) AS n");
    let rows: Vec<Row> = diesel::sql_query(query).load(conn).await.unwrap();
    rows[0].n
}

async fn start_worker(url: &ServerUrl) -> Worker {
    let mut options = WorkerOptions::new(url.clone(), "restart");
    options.beat = Duration::from_millis(300);
    Worker::start(options).await.unwrap()
}

async fn enqueue_n(db: &TestDatabase, topic: &Topic, n: usize) {
    let mut conn = db.connect().await;
    for i in 0..n {
        enqueue(&mut conn, &topic.name, &NewMessage::new(i.to_string())).await.unwrap();
    }
}

fn acks(deliveries: &[Delivery]) -> Vec<Settled> {
    let ack = |delivery| Settled::new(delivery, Settlement::Ack, OnDone::Delete);
    deliveries.iter().map(ack).collect()
}

/// Found through servers that were left behind by runs with failed commands.
#[tokio::test]
async fn a_server_goes_with_its_run_however_the_command_ends() {
    let kind = OwnServer::kind().await;
    for code in [0, 3] {
        let ended = dev_server()
            .args(["run", "--server", kind, "--", "sh", "-c"])
            .arg(format!("echo $ROWMQ_URL; exit {code}"))
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(code));
        let url = String::from_utf8(ended.stdout).unwrap();
        let (_, address) = url.trim().split_once('@').expect("an account in the URL");
        let address = address.trim_end_matches("/queue");
        assert!(std::net::TcpStream::connect(address).is_err(), "exit {code}: {address} answers");
    }
}

/// H21: after a restart the server numbers connections from the beginning, and a new connection
/// gets the number of a dead one. It must not adopt the dead one's claims, which must be rescued
/// although the number is alive.
#[tokio::test]
async fn after_a_restart_nobody_adopts_the_claims_of_a_dead_connection_with_his_number() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let topic = db.topic("t").await;
    enqueue_n(&db, &topic, 2).await;
    let dead = start_worker(db.url()).await;
    assert_eq!(dead.claim(topic.id, 2).await.unwrap().deliveries.len(), 2);
    let seen = worker::find(&mut db.connect().await, dead.id()).await.unwrap().unwrap();
    server.command("crash");
    drop(dead);
    server.command("start");
    // Opens connections until one has the dead one's number; they stay open, so that no number
    // comes twice.
    let mut namesakes = Vec::new();
    until("a connection gets the dead one's number", async || {
        namesakes.push(db.connect().await);
        let conn = namesakes.last_mut().unwrap();
        u64::try_from(number(conn, "SELECT CONNECTION_ID()").await).unwrap() >= seen.conn.0
    })
    .await;
    let mut conn = namesakes.pop().unwrap();
    let same = "SELECT COUNT(*) FROM queue_message WHERE conn_id = CONNECTION_ID()";
    assert_eq!(number(&mut conn, same).await, 2, "the trap is set");
    assert!(process_list::show(&mut conn).await.unwrap().contains(&seen.conn));
    let other = start_worker(db.url()).await;
    assert!(other.claim(topic.id, 9).await.unwrap().deliveries.is_empty());
    assert!(claim::of_worker(&mut conn, other.id(), ClaimNo(0)).await.unwrap().is_empty());
    // The dead worker: its lock is free, and its beat stands still.
    let row = worker::find(&mut conn, seen.id).await.unwrap().unwrap();
    assert_eq!((row.locked, row.state.as_str()), (false, "alive"));
    assert_eq!(worker::declare_dead(&mut conn, &row, "restart").await.unwrap(), 1);
    let claims = claim::of_worker(&mut conn, seen.id, ClaimNo(0)).await.unwrap();
    let why = Why::Crashed { rows_held: 2 };
    let taken = transaction(&mut conn, "rescue", async |c| take_back(c, &claims[0], why).await);
    assert_eq!(taken.await.unwrap().freed, 2);
    until("the other one has both", async || {
        other.claim(topic.id, 9).await.unwrap().deliveries.len() == 2
    })
    .await;
}

/// A live worker recovers on its own, keeps what it holds, and settles it: nothing acknowledged is
/// lost and nothing runs twice.
#[tokio::test]
async fn a_worker_outlives_the_crash_of_its_server_with_all_it_holds() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let topic = db.topic("t").await;
    enqueue_n(&db, &topic, 20).await;
    let worker = start_worker(db.url()).await;
    let held = worker.claim(topic.id, 5).await.unwrap().deliveries;
    assert_eq!(held.len(), 5);
    let before = worker::incarnation(&mut db.connect().await).await.unwrap();
    server.command("crash");
    // A settle waits for the server to come back.
    let settling = {
        let (worker, batch) = (worker.clone(), acks(&held));
        tokio::spawn(async move { worker.settle(batch).await.unwrap() })
    };
    server.command("start");
    assert_eq!(settling.await.unwrap(), [SettleOutcome::Settled; 5]);
    let mut life = worker.life();
    let alive = life.wait_for(|life| life.phase == Phase::Alive);
    tokio::time::timeout(Duration::from_secs(30), alive).await.unwrap().unwrap();
    let mut conn = db.connect().await;
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM queue_message").await, 15);
    until("its row tells of the new server", async || {
        let row = worker::find(&mut conn, worker.id()).await.unwrap().unwrap();
        row.locked && row.state == "alive"
    })
    .await;
    let after = worker::incarnation(&mut conn).await.unwrap();
    assert_eq!(before.server_uid, after.server_uid);
    assert!(after.started_at > before.started_at);
    let mut got = 0;
    until("the rest is claimed", async || {
        let claimed = worker.claim(topic.id, 20).await.unwrap().deliveries;
        assert!(claimed.iter().all(|delivery| delivery.delivery_no.0 == 1));
        got += claimed.len();
        got == 15
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_told_apart_and_worked_with_again_once_it_takes_writes() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let topic = db.topic("t").await;
    enqueue_n(&db, &topic, 1).await;
    // Not an account that may write to a read-only server.
    let url = db.account(&["SELECT, INSERT, UPDATE, DELETE ON {}.*", "PROCESS ON *.*"]).await;
    let worker = start_worker(&url).await;
    let bare = TestDatabase::empty_on(&server.url).await;
    server.set_read_only(true).await;
    let refused = connect(&url, SessionKind::Plain).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
    let mut conn = connect_to_any(&url, SessionKind::Plain).await.unwrap();
    let refused = enqueue(&mut conn, &topic.name, &NewMessage::new("m")).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::ReadOnly, "{refused}");
    let refused = worker.claim(topic.id, 1).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::ReadOnly, "{refused}");
    let refused = migration::run(bare.url()).await.unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
    let report = examine(&url).await.unwrap();
    let writable = report.checks.iter().find(|check| check.name == "writable").unwrap();
    assert_eq!(writable.verdict, Verdict::Failure);
    let refused = require(&url).await.unwrap_err();
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused}");
    assert!(refused.to_string().contains("is this a replica?"), "{refused}");
    server.set_read_only(false).await;
    until("the worker claims again", async || {
        worker.claim(topic.id, 1).await.is_ok_and(|claimed| claimed.deliveries.len() == 1)
    })
    .await;
    migration::run(bare.url()).await.unwrap();
}

/// A replica does not become a second writer, although the account may write to it.
#[tokio::test]
async fn of_several_hosts_the_one_that_takes_writes_is_found_and_found_again() {
    let former = OwnServer::start().await;
    let shared = ServerUrl::new(&std::env::var("ROWMQ_URL").unwrap()).unwrap();
    let both = former.url.with_hosts([&*former.url.server(), &*shared.server()]).unwrap();
    let port = async |link: &mut Link| match link {
        Link::Server(conn) => Ok(number(conn, "SELECT @@port").await),
        other => panic!("{other:?} is no connection to a server"),
    };
    let patience = Duration::from_secs(10);
    let mut session = session_at(&both, patience).await;
    let first = session.call("ask", port).await.unwrap();
    let db = TestDatabase::on(&former.url).await;
    let account = db.account(&["SELECT, UPDATE ON {}.*"]).await;
    let mut stopped = session_at(&account, patience).await;
    former.set_read_only(true).await;
    let write = async |conn: &mut Link| worker::beat(conn, WorkerId(1), Uuid::nil()).await;
    let refused = stopped.call("beat", write).await.unwrap_err();
    assert_eq!((refused.fault(), stopped.is_lost()), (Fault::ReadOnly, true), "{refused}");
    let mut session = session_at(&both, patience).await;
    assert_ne!(session.call("ask", port).await.unwrap(), first);
    // With no other host left the error names both.
    let none = both.with_hosts([&*former.url.server(), "127.0.0.1:1"]).unwrap();
    let refused = connect(&none, SessionKind::Plain).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::NoWriter { .. }) && refused.is_transient(), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("read_only is") && text.contains("127.0.0.1:1: "), "{text}");
    let report = examine(&both).await.unwrap();
    let hosts = report.checks.iter().find(|check| check.name == "hosts").unwrap();
    assert_eq!(hosts.verdict, Verdict::Ok, "{hosts:?}");
    assert!(hosts.detail.contains("takes none"), "{hosts:?}");
    former.set_read_only(false).await;
    // Both accept writes now and do not know of each other.
    let report = examine(&both).await.unwrap();
    let hosts = report.checks.iter().find(|check| check.name == "hosts").unwrap();
    assert_eq!(hosts.verdict, Verdict::Warning, "{hosts:?}");
    assert!(hosts.detail.contains("Several take writes"), "{hosts:?}");
}

/// H5: the worker finds no free connection to return by before it is declared dead. It then finds
/// its row dead, reports it, and claims and settles nothing more.
#[tokio::test]
async fn a_worker_that_could_not_reconnect_in_time_finds_itself_dead() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let topic = db.topic("t").await;
    enqueue_n(&db, &topic, 1).await;
    // An account without the extra connection that an administrator has.
    let url = db.account(&["SELECT, INSERT, UPDATE, DELETE ON {}.*"]).await;
    let worker = start_worker(&url).await;
    let held = worker.claim(topic.id, 1).await.unwrap().deliveries;
    let mut root = server.root().await;
    let row = worker::find(&mut db.connect().await, worker.id()).await.unwrap().unwrap();
    let mut in_use = Vec::new();
    let in_all = process_list::show(&mut root).await.unwrap().len();
    let limit = async |root: &mut AsyncMysqlConnection, n: usize| {
        root.batch_execute(&format!("SET GLOBAL max_connections = {n}")).await.unwrap();
    };
    limit(&mut root, in_all + 20).await;
    let refused = loop {
        match connect(&url, SessionKind::Plain).await {
            Ok(conn) => in_use.push(conn),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.fault(), Fault::Busy, "{refused}");
    assert!(refused.to_string().contains("raise max_connections"), "{refused}");
    // Fewer than the connections in use, so that a kill makes no room.
    limit(&mut root, in_all + 10).await;
    root.batch_execute(&format!("KILL {}; KILL {}", row.life_conn, row.conn)).await.unwrap();
    root.batch_execute(&format!("USE {}", db.name())).await.unwrap();
    until("its death is decided", async || {
        let seen = worker::find(&mut root, worker.id()).await.unwrap().unwrap();
        !seen.locked && worker::declare_dead(&mut root, &seen, "missing").await.unwrap() == 1
    })
    .await;
    in_use.clear();
    let mut life = worker.life();
    let dead = life.wait_for(|life| matches!(life.phase, Phase::Dead { .. }));
    tokio::time::timeout(Duration::from_secs(30), dead).await.unwrap().unwrap();
    let refused = worker.settle(acks(&held)).await.unwrap_err();
    assert!(matches!(refused, Error::WorkerDead { .. }), "{refused}");
    let refused = worker.claim(topic.id, 1).await.unwrap_err();
    assert!(matches!(refused, Error::WorkerDead { .. }), "{refused}");
}

#[tokio::test]
async fn the_self_test_finds_settings_that_the_queue_should_not_run_with() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let verdict = async |name: &str| {
        let report = examine(db.url()).await.unwrap();
        report.checks.iter().find(|check| check.name == name).unwrap().verdict
    };
    server.set("innodb_flush_log_at_trx_commit", "0").await;
    assert_eq!(verdict("durability").await, Verdict::Warning);
    server.set("max_allowed_packet", "1048576").await;
    assert_eq!(verdict("packet").await, Verdict::Warning);
    // And a message that does not fit is refused before it is sent.
    let topic = db.topic("t").await;
    let large = NewMessage::new(vec![0; 2 * 1024 * 1024]);
    let refused = enqueue(&mut db.connect().await, &topic.name, &large).await.unwrap_err();
    assert!(matches!(refused, Error::PacketTooLarge { .. }), "{refused}");
    // Nor is a server without room for prepared statements mistaken for a broken one.
    let mut root = server.root().await;
    root.batch_execute("SET GLOBAL max_prepared_stmt_count = 0").await.unwrap();
    let refused = connect(db.url(), SessionKind::Plain).await.map(|_| ());
    let refused = match refused {
        Ok(()) => enqueue(&mut db.connect().await, &topic.name, &NewMessage::new("m")).await.err(),
        Err(refused) => Some(refused),
    };
    assert_eq!(refused.as_ref().map(Error::fault), Some(Fault::Busy), "{refused:?}");
    root.batch_execute("SET GLOBAL max_prepared_stmt_count = 16382").await.unwrap();
    let logs = number(&mut server.root().await, "SELECT @@log_bin").await == 1;
    if server.root().await.batch_execute("SET GLOBAL binlog_format = 'STATEMENT'").await.is_ok() {
        let expected = if logs { Verdict::Failure } else { Verdict::Ok };
        assert_eq!(verdict("binlog").await, expected);
        assert_eq!(require(db.url()).await.is_err(), logs);
    }
}

/// After a crash, every message whose enqueue was acknowledged is there, in order and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_under_load_loses_nothing_that_was_acknowledged() {
    let server = OwnServer::start().await;
    let db = TestDatabase::on(&server.url).await;
    let topic = db.topic("t").await;
    let producers = (0..4).map(async |_| {
        let mut conn = db.connect().await;
        let mut acknowledged = Vec::new();
        loop {
            let message = NewMessage::new("m");
            match enqueue(&mut conn, &topic.name, &message).await {
                Ok(sent) => acknowledged.push(sent.msg_id()),
                Err(_) => return acknowledged,
            }
        }
    });
    let crash = async {
        let mut conn = db.connect().await;
        until("a few hundred are there", async || {
            number(&mut conn, "SELECT COUNT(*) FROM queue_message").await > 500
        })
        .await;
        tokio::task::block_in_place(|| server.crash_and_start());
    };
    let (acknowledged, ()) = tokio::join!(futures_util::future::join_all(producers), crash);
    let acknowledged = acknowledged.concat();
    assert!(acknowledged.len() > 400);
    let worker = start_worker(db.url()).await;
    let mut got = Vec::new();
    loop {
        let claimed = worker.claim(topic.id, 1000).await.unwrap().deliveries;
        if claimed.is_empty() {
            break;
        }
        worker.settle(acks(&claimed)).await.unwrap();
        got.extend(claimed.into_iter().map(|delivery| delivery.msg_id));
    }
    let distinct: std::collections::HashSet<_> = got.iter().collect();
    assert_eq!(distinct.len(), got.len());
    assert!(acknowledged.iter().all(|id| distinct.contains(id)), "an acknowledged one is lost");
}
