//! A small fleet of the real programs, each with its metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rowmq_core::model::{OffsetSpec, Retention, RetryPolicy, TopicName, TopicSettings};
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_test::{Program, TestDatabase};

/// What a handler of the fleet does: the body decides how a run ends.
const HANDLER: &str = r#"read -r body; case $body in retry) [ "$ROWMQ_DELIVERY_NO" -gt 1 ] || exit 75 ;; dead) exit 65 ;; esac"#;

/// A program of the fleet.
struct Serving {
    _program: Program,
    /// The address of its metrics.
    metrics: String,
    /// The address where a relay accepts messages.
    messages: Option<String>,
}

impl Serving {
    /// Starts it and reads the addresses from its log.
    async fn start(database: &TestDatabase, name: &str, arguments: &[&str]) -> Self {
        let mut command = Program::built(name);
        command.args(arguments).env("ROWMQ_URL", database.url().expose()).env_remove("RUST_LOG");
        let program = Program::start(&mut command);
        let address = async |said: &str| {
            let line = program.said(said).await;
            line.rsplit('=').next().expect("an address").to_owned()
        };
        let metrics = address("Metrics are served").await;
        let messages = match arguments.contains(&"relay") {
            true => Some(address("Messages are taken").await),
            false => None,
        };
        Self { _program: program, metrics, messages }
    }
}

/// The fleet: a janitor, consumers of a queue and of a group, a relay.
pub(crate) struct Fleet {
    programs: Vec<Serving>,
    _journal: tempfile::TempDir,
}

async fn topics(database: &TestDatabase) {
    let name = |text| TopicName::new(text).expect("a name");
    let retry: RetryPolicy = "exponential 1s..1s".parse().expect("a policy");
    let limit = std::num::NonZeroU64::new(1_000_000);
    let settings = TopicSettings { retry, max_depth: limit, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    let mut conn = database.connect().await;
    let retention = Retention { time: Some(Duration::from_secs(3600)), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    create_stream(&mut conn, &name("orders"), 2, &settings).await.expect("made");
    let settings = TopicSettings::default();
    let billing = name("orders@billing");
    let group = create_group(&mut conn, &billing, false, OffsetSpec::Earliest, &settings);
    group.await.expect("made");
}

impl Fleet {
    pub(crate) async fn start(database: &TestDatabase) -> Self {
        topics(database).await;
        let journal = tempfile::tempdir().expect("a folder");
        let folder = journal.path().to_str().expect("a path").to_owned();
        let handle = ["--metrics", "0", "--", "/bin/sh", "-c", HANDLER];
        let consumer = |topic| [&["exec", topic][..], &handle].concat();
        let janitor = Serving::start(database, "rowmq-janitor", &["--metrics", "0"]).await;
        let mail = Serving::start(database, "rowmq-consumer", &consumer("mail")).await;
        let billing = Serving::start(database, "rowmq-consumer", &consumer("orders@billing")).await;
        let relay = ["relay", "--listen", "0", "--metrics", "0", "--spill-dir", &folder];
        let relay = Serving::start(database, "rowmq-producer", &relay).await;
        Self { programs: vec![janitor, mail, billing, relay], _journal: journal }
    }

    /// Returns the addresses that Prometheus scrapes.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        self.programs.iter().map(|program| program.metrics.as_str()).collect()
    }

    /// Sends messages of every kind.
    pub(crate) fn send(&self) {
        let relay = self.programs.iter().find_map(|program| program.messages.as_ref());
        let relay = relay.expect("the fleet has a relay");
        for (path, body) in [
            ("/topics/mail/messages", "fine"),
            ("/topics/mail/messages", "retry"),
            ("/topics/mail/messages", "dead"),
            ("/topics/mail/messages?deliver=1s", "later"),
            ("/topics/orders/messages", "order"),
        ] {
            post(relay, path, body);
        }
    }
}

fn post(address: &str, path: &str, body: &str) {
    let mut stream = TcpStream::connect(address).expect("the relay listens");
    let len = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}
