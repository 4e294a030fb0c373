//! An import cut off at its worst moments: each message is stored once, in a topic that remembers
//! no ids.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use rowmq_core::connection::ServerUrl;
use rowmq_core::model::RowId;
use rowmq_core::store::lane::{self, LaneId, LaneKind};
use rowmq_core::store::ready;
use rowmq_core::{Priority, Topic};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase, until};
use serde_json::Value;

use crate::import::file_of;
use crate::run::Rowmq;

/// Five transactions.
const MESSAGES: usize = 2500;

/// Returns how often each body is in the topic.
async fn bodies(database: &TestDatabase, topic: &Topic) -> BTreeMap<String, usize> {
    let mut conn = database.connect().await;
    let (mut bodies, mut after) = (BTreeMap::new(), RowId(0));
    loop {
        let page = ready::read(&mut conn, (topic.id, Priority::default()), after, 1000).await;
        let page = page.expect("read");
        let Some(last) = page.last() else { return bodies };
        after = last.row;
        for stored in page {
            *bodies.entry(String::from_utf8(stored.body).expect("text")).or_default() += 1;
        }
    }
}

async fn assert_each_once(database: &TestDatabase, topic: &Topic) {
    let bodies = bodies(database, topic).await;
    let expected: BTreeMap<_, _> = (0..MESSAGES).map(|n| (n.to_string(), 1)).collect();
    let wrong = bodies.iter().filter(|(body, n)| expected.get(*body) != Some(*n));
    let missing = expected.keys().filter(|body| !bodies.contains_key(*body));
    let wrong: Vec<_> = wrong.map(|(body, n)| (body.clone(), *n)).collect();
    assert_eq!((wrong, missing.count()), (Vec::new(), 0));
}

fn start(url: &ServerUrl, file: &str) -> Program {
    let mut command: Command = Rowmq::at(url).command(&["import", file]);
    Program::start(command.stdout(Stdio::null()))
}

/// What happens to a COMMIT: it is done without a reply, not done, or done after the client is
/// gone.
type Arm = fn(&FaultProxy, &str);
const ARMS: [Arm; 3] = [FaultProxy::drop_reply_after, FaultProxy::cut_before, FaultProxy::strand];

#[tokio::test]
async fn an_import_that_is_killed_at_its_commits_stores_each_message_once() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let url = proxy.url(database.url());
    let (_folder, file) = file_of(MESSAGES);
    let file = file.to_str().expect("text");
    let mut most = 0;
    for arm in ARMS.iter().cycle().take(6) {
        arm(&proxy, "COMMIT");
        let mut import = start(&url, file);
        proxy.sprung().await;
        import.kill();
        let stored: usize = bodies(&database, &topic).await.values().sum();
        assert!(stored < MESSAGES, "it was killed in the middle");
        most = most.max(stored);
        // The COMMIT of a dead client arrives while the next one works.
        proxy.release();
    }
    assert!(most > 0, "some of it was stored by those that were killed");
    proxy.pass();
    Rowmq::on(&database).say(&["import", file]);
    assert_each_once(&database, &topic).await;
}

#[tokio::test]
async fn an_import_whose_commits_are_lost_finds_out_by_itself() {
    for arm in ARMS {
        let database = TestDatabase::new().await;
        let topic = database.topic("mail").await;
        let proxy = FaultProxy::start(database.url()).await;
        let (_folder, file) = file_of(MESSAGES);
        let file = file.to_str().expect("text");
        arm(&proxy, "COMMIT");
        let url = proxy.url(database.url());
        let command = Rowmq::at(&url).command(&["import", file, "--json"]);
        let import = tokio::task::spawn_blocking(move || { command }.output());
        proxy.sprung().await;
        proxy.release();
        let ended = import.await.expect("it runs").expect("it runs");
        assert!(ended.status.success(), "{ended:?}");
        assert_each_once(&database, &topic).await;
    }
}

#[tokio::test]
async fn an_import_that_is_killed_at_any_moment_stores_each_message_once() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let (_folder, file) = file_of(MESSAGES);
    let file = file.to_str().expect("text");
    // Each import is killed once it has stored more, while it stores the next piece.
    let mut killed = 0;
    loop {
        let stored: usize = bodies(&database, &topic).await.values().sum();
        if stored >= MESSAGES {
            break;
        }
        let mut import = start(database.url(), file);
        until("it has stored more", async || {
            bodies(&database, &topic).await.values().sum::<usize>() > stored
        })
        .await;
        import.kill();
        killed += 1;
    }
    assert!(killed > 0);
    Rowmq::on(&database).say(&["import", file]);
    assert_each_once(&database, &topic).await;
}

#[tokio::test]
async fn an_import_whose_row_a_failover_has_lost_stores_nothing_more() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (_folder, file) = file_of(MESSAGES);
    let file = file.to_str().expect("text");
    proxy.darken_at("COMMIT");
    let command = Rowmq::at(&proxy.url(database.url())).command(&["import", file]);
    let import = tokio::task::spawn_blocking(move || { command }.output());
    proxy.sprung().await;
    proxy.refuse();
    let journal = fs::read_to_string(format!("{file}.import")).expect("there");
    let begun: Value = serde_json::from_str(&journal).expect("a line of JSON");
    let lane = LaneId {
        row: RowId(begun["lane"]["row"].as_u64().expect("a number")),
        name: begun["lane"]["name"].as_str().expect("text").parse().expect("a name"),
        kind: LaneKind::Durable,
    };
    lane::close(&mut database.connect().await, lane).await.expect("its row is gone");
    proxy.pass();
    let ended = import.await.expect("it runs").expect("it runs");
    assert_eq!(ended.status.code(), Some(1));
    let sentence = String::from_utf8(ended.stderr).expect("text");
    assert!(sentence.contains("knows nothing of this import"), "{sentence}");
    assert_eq!(bodies(&database, &topic).await.len(), 0);
}

#[tokio::test]
async fn two_imports_of_one_file_do_not_meet() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let (_folder, file) = file_of(MESSAGES);
    let file = file.to_str().expect("text");
    proxy.darken_at("COMMIT");
    let mut import = start(&proxy.url(database.url()), file);
    proxy.sprung().await;
    let sentence = Rowmq::on(&database).refuse(&["import", file]);
    assert!(sentence.contains("in use by another import"), "{sentence}");
    import.kill();
}
