//! Tests that need a private server, because they change it or need another one than the suite's.

use std::path::Path;
use std::process::Command;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::{ServerUrl, SessionKind, connect_to_any};
use rowmq_test::TestDatabase;

use crate::run::Rowmq;

/// A private server, removed at the end.
struct OwnServer {
    kind: String,
    name: String,
    url: ServerUrl,
}

impl OwnServer {
    fn start(kind: &str, purpose: &str, options: &[&str]) -> Self {
        let name = format!("rowmq-{purpose}-{}", std::process::id());
        run("start", kind, &name, options);
        let url = run("url", kind, &name, &[]);
        let url = ServerUrl::new(url.trim()).expect("a URL");
        Self { kind: kind.to_owned(), name, url }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        run("stop", &self.kind, &self.name, &[]);
    }
}

fn run(command: &str, kind: &str, name: &str, options: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/dev-server");
    let mut dev_server = Command::new(script);
    dev_server.args([command, "--server", kind, "--name", name]);
    if !options.is_empty() {
        dev_server.arg("--").args(options);
    }
    let output = dev_server.output().expect("ops/dev-server runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn a_read_only_server_is_named_with_the_fix_and_loses_nothing() {
    let kind = std::env::var("ROWMQ_SERVER_KIND").unwrap_or_else(|_| "mariadb".to_owned());
    let server = OwnServer::start(&kind, "read-only", &[]);
    let database = TestDatabase::empty_on(&server.url).await;
    let account = database.account(&["ALL ON {}.*"]).await;
    let rowmq = Rowmq::at(&account);
    rowmq.say(&["migrate"]);
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["enqueue", "mail", "before"]);
    let set_read_only = async |on: &str| {
        let mut conn = connect_to_any(&server.url, SessionKind::Plain).await.expect("it answers");
        conn.batch_execute(&format!("SET GLOBAL read_only = {on}")).await.expect("set");
    };
    set_read_only("ON").await;
    let sentence = rowmq.refuse(&["migrate"]);
    let fix = "connect to the writer (is this a replica?) or turn its writes on.";
    assert!(sentence.contains("takes no writes (read_only is"), "{sentence}");
    assert!(sentence.ends_with(fix), "{sentence}");
    let commands: [&[&str]; 5] = [
        &["enqueue", "mail", "x"],
        &["topic", "create", "other"],
        &["topic", "set", "mail", "--max-attempts", "2"],
        &["topic", "pause", "mail"],
        &["topic", "delete", "mail", "--purge", "--yes"],
    ];
    for command in commands {
        let sentence = rowmq.refuse(command);
        let fix = "connect to the writer (is this a replica?) or SET GLOBAL read_only = OFF.";
        assert!(sentence.ends_with(fix), "{command:?}: {sentence}");
        assert!(sentence.contains("read-only"), "{command:?}: {sentence}");
    }
    let doctor = rowmq.run(&["doctor"]);
    assert_eq!(doctor.code, Some(1));
    let writable = doctor.out.lines().find(|line| line.starts_with("writable"));
    assert!(writable.is_some_and(|line| line.contains("FAILURE")), "{}", doctor.out);
    assert_eq!(rowmq.json(&["peek", "mail", "--body"])[0]["body"], "before");
    set_read_only("OFF").await;
    rowmq.say(&["enqueue", "mail", "after"]);
    assert_eq!(rowmq.json(&["stats", "mail"])[0]["unsettled"], 2);
}

/// MariaDB reports to clients the version it is started with; MySQL has no such option.
#[test]
fn an_old_server_is_told_to_be_upgraded() {
    let server = OwnServer::start("mariadb", "old", &["--version=10.5.23-MariaDB"]);
    let rowmq = Rowmq::at(&server.url);
    let expected = "The server is MariaDB 10.5.23-MariaDB, which lacks SKIP LOCKED: upgrade to MariaDB 10.6 or MySQL 8.0 or later.";
    assert_eq!(rowmq.refuse(&["migrate"]), expected);
    assert_eq!(rowmq.refuse(&["migrate", "--dry-run"]), expected);
    let doctor = rowmq.run(&["doctor"]);
    assert_eq!(doctor.code, Some(1));
    let version = doctor.out.lines().find(|line| line.starts_with("version"));
    assert!(version.is_some_and(|line| line.contains("FAILURE") && line.ends_with(expected)));
}
