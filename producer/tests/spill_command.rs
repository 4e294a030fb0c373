//! The commands with a spill journal: killed at any point, and what they report.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::setup::relay::{Relay, post};
use crate::setup::stored;
use rowmq_core::connection::ServerUrl;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::STORE_IN_LANE;
use rowmq_test::{TestDatabase, until};

/// Returns `rowmq-producer send mail` with a journal in this directory, ready to run.
fn send(url: &ServerUrl, dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-producer"));
    command.args(["send", "mail", "--json", "--spill-dir"]).arg(dir).args(arguments);
    command.env("ROWMQ_URL", url.expose()).env("RUST_LOG", "warn");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(mut command: Command) -> Child {
    command.spawn().expect("it starts")
}

async fn end(child: Child) -> Output {
    let ended = tokio::task::spawn_blocking(|| child.wait_with_output().expect("it ends"));
    ended.await.expect("no panic")
}

fn count(ended: &Output, name: &str) -> u64 {
    let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("a summary");
    summary[name].as_u64().expect("a number")
}

/// Writes a file with the numbers below `n` as its lines.
fn lines(dir: &Path, n: usize) -> String {
    let file = dir.join("lines");
    let lines: String = (0..n).map(|n| format!("{n}\n")).collect();
    std::fs::write(&file, lines).expect("written");
    file.display().to_string()
}

/// Returns the bodies of the topic `mail`, as numbers.
async fn numbers(database: &TestDatabase) -> Vec<usize> {
    let rows = stored(database, "mail").await;
    let number = |body: &[u8]| String::from_utf8_lossy(body).parse().expect("a number");
    rows.iter().map(|row| number(&row.body)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_killed_again_and_again_while_it_drains_stores_each_message_once_and_in_order() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    let file = lines(folder.path(), 20_000);
    proxy.refuse();
    let spilling = ["--lines", &file, "--batch", "100", "--leave-spilled"];
    let spilled = end(spawn(send(&url, &dir, &spilling))).await;
    assert!(spilled.status.success(), "{spilled:?}");
    assert_eq!([count(&spilled, "spilled"), count(&spilled, "in_journal")], [20_000, 20_000]);
    proxy.pass();
    let drain = ["--lines", "/dev/null"];
    for killed in 1..=12 {
        let mut child = spawn(send(&url, &dir, &drain));
        let some = killed * 1200;
        until("some more is stored", async || numbers(&database).await.len() >= some).await;
        child.kill().expect("killed");
        child.wait().expect("it has ended");
    }
    let before = numbers(&database).await.len() as u64;
    let drained = end(spawn(send(&url, &dir, &drain))).await;
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(count(&drained, "in_journal"), 0);
    assert!(count(&drained, "drained") >= 20_000 - before, "{drained:?}");
    assert_eq!(numbers(&database).await, (0..20_000).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_again_and_again_over_outages_loses_and_doubles_nothing_it_has_answered() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    let dir = dir.display().to_string();
    let start = || Relay::start(&url, &["--spill-dir", &dir]);
    let mut relay = start();
    let address = Arc::new(Mutex::new(relay.address.clone()));
    let (ended, spilled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let (address, ended) = (Arc::clone(&address), Arc::clone(&ended));
            let spilled = Arc::clone(&spilled);
            thread::spawn(move || {
                let mut answered = Vec::new();
                for n in 0.. {
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    let at = address.lock().expect("no panic").clone();
                    let body = (sender * 1_000_000 + n).to_string();
                    // An unanswered message is never sent again: it may be stored.
                    if let Ok(answer) = post(&at, "/topics/mail/messages", "", body.as_bytes())
                        && [201, 202].contains(&answer.status)
                    {
                        answered.push(sender * 1_000_000 + n);
                        spilled.fetch_add(usize::from(answer.status == 202), Ordering::SeqCst);
                    }
                }
                answered
            })
        })
        .collect();
    for round in 1..=10 {
        let stored = numbers(&database).await.len();
        until("more is stored", async || numbers(&database).await.len() > stored + 20).await;
        let before = spilled.load(Ordering::SeqCst);
        match round % 3 {
            0 => proxy.drop_reply_after(STORE_IN_LANE),
            _ => proxy.refuse(),
        }
        let is_spilled = || spilled.load(Ordering::SeqCst) > before;
        until("the journal takes messages", async || round % 3 == 0 || is_spilled()).await;
        relay.child.kill().expect("killed");
        relay.child.wait().expect("it has ended");
        // It starts while the server is away.
        relay = start();
        *address.lock().expect("no panic") = relay.address.clone();
        proxy.pass();
    }
    ended.store(true, Ordering::SeqCst);
    let answered: Vec<_> =
        senders.into_iter().map(|sender| sender.join().expect("no panic")).collect();
    relay.stop();
    let drained = end(spawn(send(&url, Path::new(&dir), &["--lines", "/dev/null"]))).await;
    assert!(drained.status.success(), "{drained:?}");
    let found = numbers(&database).await;
    let mut once = found.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), found.len(), "nothing is doubled");
    for ids in &answered {
        let of_this: Vec<_> = found.iter().copied().filter(|id| ids.contains(id)).collect();
        assert_eq!(of_this, *ids, "nothing answered is lost, and the order is kept");
    }
    let (spilled, all) = (spilled.load(Ordering::SeqCst), answered.iter().flatten().count());
    assert!(spilled > 0 && spilled < all, "{spilled} of {all} spilled");
}

#[tokio::test]
async fn a_send_that_a_signal_ends_says_what_is_left_in_its_journal() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    proxy.refuse();
    let child = spawn(send(&url, &dir, &["a"]));
    let id = rustix::process::Pid::from_child(&child);
    until("the journal is begun", async || {
        std::fs::read_dir(&dir).is_ok_and(|entries| entries.count() > 2)
    })
    .await;
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it runs");
    let ended = end(child).await;
    assert_eq!(ended.status.code(), Some(128 + 15), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("1 message(s) are in") && said.contains("--spill-dir again"), "{said}");
    proxy.pass();
    let drained = end(spawn(send(&url, &dir, &["c"]))).await;
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(["sent", "drained", "in_journal"].map(|name| count(&drained, name)), [1, 2, 0]);
    let bodies = stored(&database, "mail").await.into_iter().map(|row| row.body);
    assert_eq!(bodies.collect::<Vec<_>>(), [b"a", b"c"]);
}

/// A limit on the file size stands in for a full disk, which also accepts parts of writes.
#[tokio::test]
async fn a_disk_without_room_loses_nothing_that_was_acknowledged() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    let file = lines(folder.path(), 5000);
    proxy.refuse();
    let arguments = ["--lines", &file, "--batch", "10", "--give-up-after", "300ms"];
    let command = send(&url, &dir, &arguments);
    let mut shell = Command::new("bash");
    shell.arg("-c").arg("trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\"");
    shell.arg(command.get_program()).args(command.get_args());
    shell.env("ROWMQ_URL", url.expose()).env("RUST_LOG", "warn");
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.process_group(0);
    let mut child = spawn(shell);
    let id = rustix::process::Pid::from_child(&child);
    // It reports the error, and then waits for the server with the messages it has accepted.
    let mut said = String::new();
    let mut errors = std::io::BufReader::new(child.stderr.take().expect("piped"));
    while !said.contains("cannot be written") {
        let read = std::io::BufRead::read_line(&mut errors, &mut said).expect("it says so");
        assert!(read > 0, "{said}");
    }
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it runs");
    end(child).await;
    proxy.pass();
    let drained = end(spawn(send(&url, &dir, &["--lines", "/dev/null"]))).await;
    assert!(drained.status.success(), "{drained:?}");
    let found = numbers(&database).await;
    assert!(found.len() > 10 && found.len() < 5000, "{}", found.len());
    assert_eq!(found, (0..found.len()).collect::<Vec<_>>(), "in order, and none twice");
    assert_eq!(count(&drained, "drained"), found.len() as u64);
}

#[tokio::test]
async fn a_relay_reads_standard_input_and_ends_when_all_of_it_is_stored() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    for (bad, code) in [("", 0), ("{\"json\":\n", 1)] {
        proxy.refuse();
        let mut command = crate::setup::relay::command(&url, &["--listen", "0", "--stdin", "mail"]);
        command.arg("--spill-dir").arg(&dir).stdin(Stdio::piped());
        let mut child = spawn(command);
        let mut stdin = child.stdin.take().expect("piped");
        let lines: String = (0..1000).map(|n| format!("{{\"json\":{n}}}\n")).collect();
        stdin.write_all(format!("{lines}{bad}").as_bytes()).expect("it reads");
        until("it spills", async || {
            std::fs::read_dir(&dir).is_ok_and(|entries| entries.count() > 2)
        })
        .await;
        proxy.pass();
        stdin.write_all(b"{\"json\":1000}\n").expect("it reads");
        drop(stdin);
        let ended = end(child).await;
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    }
    let all: Vec<usize> = (0..=1000).collect();
    assert_eq!(numbers(&database).await, [&all[..], &all[..]].concat());
}

#[tokio::test]
async fn a_relay_whose_standard_input_was_set_aside_does_not_end_well() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().join("journal"));
    proxy.refuse();
    let mut command = crate::setup::relay::command(&url, &["--listen", "0", "--stdin", "nowhere"]);
    command.arg("--spill-dir").arg(&dir).stdin(Stdio::piped());
    let mut child = spawn(command);
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"{\"json\":1}\n").expect("it reads");
    until("it spills", async || std::fs::read_dir(&dir).is_ok_and(|entries| entries.count() > 2))
        .await;
    proxy.pass();
    drop(stdin);
    let ended = end(child).await;
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let aside = std::fs::read_to_string(dir.join("refused-nowhere.ndjson")).expect("kept");
    assert_eq!(aside.lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_answers_201_for_stored_202_for_spilled_and_503_for_neither() {
    let (database, folder) = (TestDatabase::new().await, tempfile::tempdir().expect("a folder"));
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (url, dir) = (proxy.url(database.url()), folder.path().display().to_string());
    let limited = ["--spill-dir", &dir, "--spill-limit", "3000", "--give-up-after", "10s"];
    let relay = Relay::start(&url, &limited);
    let post = |bytes: usize| relay.post("/topics/mail/messages", "", &vec![b'x'; bytes]);
    assert_eq!(post(10).status, 201);
    proxy.refuse();
    let spilled = post(1000);
    assert!(spilled.status == 202 && spilled.body["msg_id"].is_string(), "{spilled:?}");
    let full = post(5000);
    assert!(full.status == 503 && full.head.contains("retry-after: 1"), "{full:?}");
    let reason = full.body["error"].as_str().unwrap_or_default();
    assert!(reason.contains("its limit of 3000 bytes"), "{full:?}");
    proxy.pass();
    until("the journal is sent", async || stored(&database, "mail").await.len() == 2).await;
    until("it is stored at once", async || post(10).status == 201).await;
    relay.stop();
}
