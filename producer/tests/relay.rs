//! The command `rowmq-producer relay`, as used by programs without their own connection.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::thread;
use std::time::Duration;

use crate::setup::relay::{Relay, answer, begin, command, post};
use crate::setup::{depth, stored};
use rowmq_core::codec::{Codec, Codecs, Gzip};
use rowmq_core::model::{Access, Backlog, TopicSettings, WhenFull};
use rowmq_core::store;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{TestDatabase, until};
use tokio::time::sleep;

#[tokio::test]
async fn a_message_that_is_there_already_is_answered_200_with_its_id() {
    let database = TestDatabase::new().await;
    let window = Some(Duration::from_secs(3600));
    let settings = TopicSettings { dedupe_window: window, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    let relay = Relay::start(database.url(), &[]);
    let given = "msg_id=0199f5a0-0000-7000-8000-000000000001";
    for query in [given, "unique=k", "unique=h&unique_for=1h"] {
        let path = format!("/topics/mail/messages?{query}");
        let first = relay.post(&path, "", b"a");
        assert_eq!((first.status, &first.body["outcome"]), (201, &"stored".into()), "{first:?}");
        let again = relay.post(&path, "", b"b");
        assert_eq!((again.status, &again.body["outcome"]), (200, &"duplicate".into()), "{again:?}");
        assert_eq!(first.body["msg_id"], again.body["msg_id"]);
    }
    let replace = "/topics/mail/messages?unique=r&on_conflict=replace";
    assert_eq!(relay.post(replace, "", b"a").status, 201);
    assert_eq!(relay.post(replace, "", b"b").body["outcome"], "replaced");
    for wrong in ["unique=", "unique_for=1h", "unique=k&on_conflict=swap", "unique=k&max_wait=1h"] {
        let refused = relay.post(&format!("/topics/mail/messages?{wrong}"), "", b"a");
        assert_eq!(refused.status, 400, "{wrong}: {refused:?}");
    }
    assert_eq!(stored(&database, "mail").await.len(), 4);
    relay.stop();
}

#[tokio::test]
async fn a_message_is_stored_with_all_that_the_request_says_before_it_is_answered() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let relay = Relay::start(database.url(), &[]);
    let answer = relay.post(
        "/topics/mail/messages?priority=3&key=k%20k&biz_id=b&expires=1h",
        "Queue-Header-Trace: t1\r\nX-Other: no\r\n",
        b"a\0\xffb",
    );
    assert_eq!(answer.status, 201, "{answer:?}");
    let found = stored(&database, "mail").await.remove(0);
    assert_eq!(answer.body["msg_id"], found.msg_id.to_string());
    assert_eq!((found.body.as_slice(), found.priority.level()), (&b"a\0\xffb"[..], 3));
    assert_eq!((found.key.as_deref(), found.biz_id.as_deref()), (Some("k k"), Some("b")));
    assert_eq!(found.headers.0.len(), 1);
    assert_eq!(found.headers.get("trace"), Some("t1"));
    let later = relay.post("/topics/mail/messages?deliver=48h", "", b"");
    assert_eq!(later.status, 201);
    assert_eq!(depth(&database, "mail").await.scheduled, 1);
    relay.stop();
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_with_a_reason() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let topic = database.topic_with("mail", &settings).await;
    let relay = Relay::start(database.url(), &["--body-limit", "20"]);
    for (path, body, status, part) in [
        ("/topics/nowhere/messages", &b""[..], 404, "There is no topic 'nowhere'"),
        ("/topics/a%20b/messages", b"", 400, "'a b' is not a name"),
        ("/topics/mail/messages?priority=12", b"", 400, "Priority 12"),
        ("/topics/mail/messages?deliver=soon", b"", 400, "'soon' is no moment"),
        ("/topics/mail/messages?prio=1", b"", 400, "unknown field `prio`"),
        ("/topics/mail/messages?deliver=2h&expires=1h", b"", 400, "not after the moment"),
        ("/topics/mail/messages", b"12345678901", 413, "too large for the topic 'mail'"),
        ("/topics/mail/messages", &[b'x'; 21], 413, "more than 20 bytes"),
    ] {
        let answer = relay.post(path, "", body);
        let reason = answer.body["error"].as_str().unwrap_or_default();
        assert!(answer.status == status && reason.contains(part), "{path}: {answer:?}");
    }
    let mut conn = database.connect().await;
    store::topic::set_access(&mut conn, &topic.name, Access::ReadOnly).await.expect("paused");
    let answer = relay.post("/topics/mail/messages", "", b"");
    assert!(answer.status == 503 && answer.head.contains("retry-after: 1"), "{answer:?}");
    assert_eq!(stored(&database, "mail").await.len(), 0);
}

#[tokio::test]
async fn a_full_topic_is_503_at_once_or_after_the_wait_and_opens_by_itself() {
    let database = TestDatabase::new().await;
    let max_depth = NonZeroU64::new(5);
    let relay = Relay::start(database.url(), &["--give-up-after", "5s"]);
    let mut conn = database.connect().await;
    for (name, when_full) in [("reject", WhenFull::Reject), ("block", WhenFull::Block)] {
        let settings = TopicSettings { max_depth, when_full, ..TopicSettings::default() };
        let topic = database.topic_with(name, &settings).await;
        let measured = async |conn: &mut _, depth: u64, full: bool| {
            let backlog = Backlog { depth, bytes: None, full };
            assert!(store::backlog::publish(conn, &topic, backlog).await.expect("written"));
        };
        measured(&mut conn, 7, true).await;
        let path = format!("/topics/{name}/messages");
        let answer = relay.post(&path, "", b"");
        assert!(answer.status == 503 && answer.head.contains("retry-after: 1"), "{answer:?}");
        let reason = answer.body["error"].as_str().unwrap_or_default();
        assert!(reason.contains("about 7 messages, the limit is 5"), "{reason}");
        assert_eq!(stored(&database, name).await.len(), 0);
        measured(&mut conn, 4, false).await;
        until("it is taken", async || relay.post(&path, "", b"").status == 201).await;
    }
    relay.stop();
}

// The proxy runs beside what this test waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_is_503_and_what_was_answered_201_is_stored() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let relay = Relay::start(&proxy.url(database.url()), &["--give-up-after", "5s"]);
    let address = relay.address.clone();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || {
                let answers = (0..50).map(|_| post(&address, "/topics/mail/messages", "", b"x"));
                answers.map(|answer| answer.expect("an answer")).collect::<Vec<_>>()
            })
        })
        .collect();
    until("some are stored", async || stored(&database, "mail").await.len() > 20).await;
    proxy.refuse();
    let refused = relay.post("/topics/mail/messages", "", b"x");
    assert!(refused.status == 503 && refused.head.contains("retry-after"), "{refused:?}");
    proxy.pass();
    until("it takes messages again", async || {
        relay.post("/topics/mail/messages", "", b"x").status == 201
    })
    .await;
    let answers: Vec<_> =
        senders.into_iter().flat_map(|sender| sender.join().expect("no panic")).collect();
    let ids: BTreeSet<_> =
        stored(&database, "mail").await.iter().map(|row| row.msg_id.to_string()).collect();
    for answer in answers {
        match answer.status {
            201 => assert!(ids.contains(answer.body["msg_id"].as_str().expect("an id"))),
            503 => assert!(answer.head.contains("retry-after")),
            _ => panic!("{answer:?}"),
        }
    }
    relay.stop();
}

#[tokio::test]
async fn the_network_is_not_served() {
    let database = TestDatabase::new().await;
    let ended = command(database.url(), &["--listen", "0.0.0.0:0"]).output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(2) && said.contains("there is no password"), "{said}");
}

#[tokio::test]
async fn a_body_that_the_request_calls_compressed_is_stored_as_one() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let text = b"again and again, ".repeat(100);
    let gzip = Gzip::default().encode(&text).expect("encoded").expect("smaller");
    let relay = Relay::start(database.url(), &[]);
    let headers = "Content-Encoding: gzip\r\n";
    assert_eq!(relay.post("/topics/mail/messages", headers, &gzip).status, 201);
    relay.stop();
    let compressing = Relay::start(database.url(), &["--encode", "gzip"]);
    assert_eq!(compressing.post("/topics/mail/messages", "", &text).status, 201);
    compressing.stop();
    let stored = stored(&database, "mail").await;
    assert_eq!(stored.len(), 2);
    for message in stored {
        let decoded = Codecs::default().decode(&message.headers, &message.body);
        assert_eq!(decoded.expect("decoded"), Some(text.clone()));
    }
}

#[tokio::test]
async fn a_page_in_a_browser_cannot_enqueue() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let relay = Relay::start(database.url(), &[]);
    let ours = format!("Host: {}\r\n", relay.address);
    for headers in [
        &format!("{ours}Origin: https://evil.example\r\n")[..],
        &format!("{ours}Origin: null\r\n"),
        &format!("{ours}Sec-Fetch-Site: cross-site\r\n"),
        // A hostile name that resolves to this address: then the page counts as same-origin.
        "Host: evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n",
        "Host: evil.example\r\n",
    ] {
        let refused = begin(&relay.address, "/topics/mail/messages", headers, 0).and_then(answer);
        let refused = refused.expect("an answer");
        let reason = refused.body["error"].as_str().unwrap_or_default();
        assert!(refused.status == 403 && reason.contains("browser"), "{headers}: {refused:?}");
    }
    assert_eq!(stored(&database, "mail").await.len(), 0);
    assert_eq!(relay.post("/topics/mail/messages", "", b"a").status, 201);
    relay.stop();
}

#[tokio::test]
async fn bodies_wait_for_room_in_memory() {
    const ALL: usize = 64 << 20;
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let limit = ALL.to_string();
    let options = ["--body-limit", &limit, "--give-up-after", "1s"];
    let relay = Relay::start(database.url(), &options);
    let path = "/topics/mail/messages";
    // Each may use all of the memory, for a second, and sends nothing. The second one waits for the
    // first, and a later request waits for the second in vain.
    let hold = || begin(&relay.address, path, &format!("Host: {}\r\n", relay.address), ALL);
    until("a body finds no room", async || {
        let first = hold().expect("sent");
        sleep(Duration::from_millis(300)).await;
        let second = hold().expect("sent");
        let busy = relay.post(path, "", b"a");
        for held in [first, second] {
            assert!([408, 503].contains(&answer(held).expect("an answer").status));
        }
        let reason = busy.body["error"].as_str().unwrap_or_default();
        busy.status == 503 && reason.contains("too many bytes")
    })
    .await;
    assert_eq!(relay.post(path, "", b"a").status, 201);
    relay.stop();
}
