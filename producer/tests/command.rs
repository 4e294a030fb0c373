//! The command `rowmq-producer send`, as users run it.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Duration;

use crate::setup::stored;
use rowmq_core::codec::Codecs;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{Access, TopicSettings};
use rowmq_core::store::{self, inspect::Peeked};
use rowmq_core::{Headers, Priority};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::{READ_TOPIC, STORE_IN_LANE};
use rowmq_test::{TestDatabase, until};
use rustix::process::{Pid, Signal, kill_process};

/// The command, ready to run on this server.
fn command(url: &ServerUrl, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-producer"));
    command.arg("send").args(arguments).env("ROWMQ_URL", url.expose()).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The running command.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
}

/// The address where a running command serves its metrics.
struct Metrics(String);

impl Metrics {
    /// Returns whether they count this many messages of the topic `mail`.
    fn count_as_enqueued(&self, n: usize) -> bool {
        let mut metrics = String::new();
        let mut endpoint = TcpStream::connect(&self.0).expect("it is served");
        endpoint.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
        endpoint.read_to_string(&mut metrics).expect("answered");
        metrics.contains(&format!("queue_enqueued_total{{topic=\"mail\"}} {n}\n"))
    }
}

impl Running {
    /// Returns its metrics. Takes its standard error.
    fn metrics(&mut self) -> Metrics {
        let log = BufReader::new(self.child.stderr.take().expect("piped"));
        let mut lines = log.lines().map_while(Result::ok);
        let served = lines.find(|line| line.contains("Metrics are served"));
        let served = served.expect("it logs where");
        Metrics(served.rsplit('=').next().expect("an address").to_owned())
    }

    fn start(url: &ServerUrl, arguments: &[&str]) -> Self {
        let mut child = command(url, arguments).spawn().expect("the command runs");
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    fn write(&mut self, input: &[u8]) {
        self.stdin.as_mut().expect("open").write_all(input).expect("it reads");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Waits for its end, with standard input still open.
    fn end(self) -> Ended {
        let Self { child, stdin } = self;
        let ended = child.wait_with_output().expect("it ends");
        drop(stdin);
        Ended(ended)
    }
}

/// How the command ended.
struct Ended(Output);

impl Ended {
    fn code(&self) -> Option<i32> {
        self.0.status.code()
    }

    fn out(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    /// Returns its sentences on standard error, without logs.
    fn sentences(&self) -> Vec<String> {
        let errors = String::from_utf8_lossy(&self.0.stderr).into_owned();
        let own = |line: &&str| line.starts_with("rowmq-producer: ") || line.starts_with("error: ");
        errors.lines().filter(own).map(str::to_owned).collect()
    }

    /// Returns the summary that `--json` prints.
    fn summary(&self) -> serde_json::Value {
        serde_json::from_str(&self.out()).expect("a JSON object")
    }

    fn counts(&self) -> [u64; 4] {
        let summary = self.summary();
        ["sent", "resent", "failed", "unknown"]
            .map(|name| summary[name].as_u64().expect("a number"))
    }
}

/// Runs the command with this input to its end.
async fn run(url: &ServerUrl, arguments: &[&str], input: &[u8]) -> Ended {
    let mut child = command(url, arguments).spawn().expect("the command runs");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let ended = tokio::task::spawn_blocking(move || {
        // It may end before it has read all input.
        drop(stdin.write_all(&input));
        drop(stdin);
        child.wait_with_output().expect("it ends")
    });
    Ended(ended.await.expect("no panic"))
}

fn bodies(rows: &[Peeked]) -> Vec<&[u8]> {
    rows.iter().map(|row| row.body.as_slice()).collect()
}

fn numbered_lines(n: usize) -> String {
    (0..n).map(|n| format!("line {n}\n")).collect()
}

async fn mail() -> TestDatabase {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    database
}

#[tokio::test]
async fn bodies_from_the_arguments_are_sent_with_priority_key_and_headers() {
    let database = mail().await;
    let arguments = [
        "mail",
        "--priority",
        "2",
        "--key",
        "k",
        "--header",
        "a=b=c",
        "--max-attempts",
        "5",
        "one",
        "",
        "--",
        "-two",
    ];
    let ended = run(database.url(), &arguments, b"").await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    let out = ended.out();
    assert!(out.starts_with("sent 3  resent 0  failed 0  seconds "), "{out}");
    assert_eq!(out.lines().count(), 1);
    let rows = stored(&database, "mail").await;
    assert_eq!(bodies(&rows), [&b"one"[..], b"", b"-two"]);
    for row in rows {
        assert_eq!(row.priority, Priority::new(2).expect("a priority"));
        assert_eq!(row.key.as_deref(), Some("k"));
        assert_eq!(row.headers, Headers::from_iter([("a", "b=c"), ("queue-max-attempts", "5")]));
    }
}

#[tokio::test]
async fn every_line_of_standard_input_is_a_body_in_its_order() {
    let database = mail().await;
    let lines = numbered_lines(2501);
    let ended = run(database.url(), &["mail", "--lines", "-", "--json"], lines.as_bytes()).await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    assert_eq!(ended.counts(), [2501, 0, 0, 0]);
    assert!(ended.summary()["seconds"].as_f64().is_some());
    let rows = stored(&database, "mail").await;
    assert_eq!(bodies(&rows), lines.lines().map(str::as_bytes).collect::<Vec<_>>());
}

#[tokio::test]
async fn names_that_end_with_nul_are_bodies_byte_for_byte() {
    let database = mail().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("names");
    std::fs::write(&file, b"/a\nb\0/\xff\xfe\0/c").expect("written");
    let file = std::str::from_utf8(file.as_os_str().as_bytes()).expect("a plain name");
    let ended = run(database.url(), &["mail", "--null", "--lines", file], b"").await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    assert_eq!(bodies(&stored(&database, "mail").await), [&b"/a\nb"[..], b"/\xff\xfe", b"/c"]);
}

#[tokio::test]
async fn ndjson_carries_everything_a_message_has() {
    let database = mail().await;
    let input = concat!(
        r#"{"body":"text","priority":0,"key":"k","biz_id":"o-1","headers":{"a":"b"},"#,
        r#""msg_id":"0199f5a0-0000-7000-8000-000000000001"}"#,
        "\n\n",
        r#"{"json":{"b":1.0,"a":null}}"#,
        "\n",
        r#"{"body_base64":"AP8="}"#,
    );
    let arguments = ["mail", "--ndjson", "-", "--priority", "7"];
    let ended = run(database.url(), &arguments, input.as_bytes()).await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    let rows = stored(&database, "mail").await;
    assert_eq!(bodies(&rows), [&b"text"[..], br#"{"b":1.0,"a":null}"#, &[0, 0xff]]);
    assert_eq!(rows[0].msg_id.to_string(), "0199f5a0-0000-7000-8000-000000000001");
    assert_eq!(rows[0].priority, Priority::FIRST);
    assert_eq!(rows[0].key.as_deref(), Some("k"));
    assert_eq!(rows[0].biz_id.as_deref(), Some("o-1"));
    assert_eq!(rows[0].headers, Headers::from_iter([("a", "b")]));
    assert_eq!(rows[1].priority, Priority::new(7).expect("a priority"));
}

#[tokio::test]
async fn a_malformed_line_ends_the_sending_after_what_came_before_it() {
    let database = mail().await;
    let input = b"{\"body\":\"1\"}\n{\"body\":\"2\"}\n{\"bod\":\"3\"}\n{\"body\":\"4\"}\n";
    let ended = run(database.url(), &["mail", "--ndjson", "-", "--json"], input).await;
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.counts(), [2, 0, 1, 0]);
    let sentences = ended.sentences();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(sentences[0].starts_with("rowmq-producer: Line 3 of standard input is no message: "));
    assert!(sentences[0].contains("unknown field `bod`") && sentences[0].contains("--skip-bad"));
    assert_eq!(bodies(&stored(&database, "mail").await), [&b"1"[..], b"2"]);
}

#[tokio::test]
async fn skip_bad_goes_on_and_still_fails_in_the_end() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { body_limit: 8, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    let mut input = String::new();
    for n in 0..40 {
        input += &match n {
            7 => "nonsense\n".to_owned(),
            // The topic refuses it, in the middle of a batch.
            23 => "{\"body\":\"123456789\"}\n".to_owned(),
            n => format!("{{\"body\":\"{n}\"}}\n"),
        };
    }
    let arguments = ["mail", "--ndjson", "-", "--skip-bad", "--json"];
    let ended = run(database.url(), &arguments, input.as_bytes()).await;
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.counts(), [38, 0, 2, 0]);
    let sentences = ended.sentences();
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(sentences[0].contains("Line 8 of standard input is no message"), "{sentences:?}");
    assert!(sentences[1].contains("Line 24 of standard input was not sent: A body of 9 bytes"));
    let expected: Vec<String> =
        (0..40).filter(|n| ![7, 23].contains(n)).map(|n: i32| n.to_string()).collect();
    let rows = stored(&database, "mail").await;
    assert_eq!(bodies(&rows), expected.iter().map(String::as_bytes).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_message_the_topic_refuses_ends_the_sending_after_what_came_before_it() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { body_limit: 3, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    let ended = run(database.url(), &["mail", "--lines", "-", "--json"], b"a\nb\nlong\nc\n").await;
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.counts(), [2, 0, 1, 0]);
    let sentences = ended.sentences();
    assert!(sentences[0].contains("Line 3 of standard input was not sent"), "{sentences:?}");
    assert_eq!(bodies(&stored(&database, "mail").await), [&b"a"[..], b"b"]);
}

#[tokio::test]
async fn bad_input_is_one_sentence_and_an_exit_code() {
    let database = mail().await;
    let url = database.url();
    let paused = database.topic("paused").await.name;
    let mut conn = database.connect().await;
    store::topic::set_access(&mut conn, &paused, Access::ReadOnly).await.expect("paused");
    let empty = TestDatabase::empty_on(url).await;
    let nobody = database.url_as("nobody", "wrong");
    let nowhere = ServerUrl::new("mysql://u:p@127.0.0.1:9/q").expect("a URL");
    let cases: [(&ServerUrl, &[&str], i32, &str); 9] = [
        (url, &["unknown", "x"], 1, "There is no topic 'unknown': create it with"),
        (url, &["paused", "x"], 1, "The topic 'paused' takes no messages now"),
        (url, &["no name", "x"], 2, "'no name' is not a name"),
        (url, &["mail"], 2, "required"),
        (url, &["mail", "--lines", "/nowhere"], 1, "Cannot open /nowhere"),
        (url, &["mail", "--lines", "/"], 1, "/ is a directory"),
        (empty.url(), &["mail", "x"], 1, "run `rowmq migrate`"),
        (&nobody, &["mail", "x"], 1, "check the account and its password"),
        (&nowhere, &["mail", "x"], 1, "check that the server runs"),
    ];
    for (url, arguments, code, part) in cases {
        let ended = run(url, arguments, b"").await;
        assert_eq!(ended.code(), Some(code), "{arguments:?}");
        let sentences = ended.sentences();
        assert_eq!(sentences.len(), 1, "{arguments:?}: {sentences:?}");
        let all = String::from_utf8_lossy(&ended.0.stderr).into_owned();
        assert!(all.contains(part), "{arguments:?}: {all}");
        assert!(!all.contains("panicked") && !all.contains("wrong"), "{arguments:?}: {all}");
    }
    assert!(stored(&database, "mail").await.is_empty());
}

#[tokio::test]
async fn a_missing_topic_is_created_when_asked_for() {
    let database = TestDatabase::new().await;
    let ended = run(database.url(), &["new", "x", "--auto-create-topics"], b"").await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    assert_eq!(stored(&database, "new").await.len(), 1);
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_middle_costs_no_line_and_doubles_none() {
    let database = mail().await;
    let proxy = FaultProxy::start(database.url()).await;
    let lines = numbered_lines(1000);
    proxy.drop_reply_after(STORE_IN_LANE);
    let arguments = ["mail", "--lines", "-", "--batch", "100", "--json"];
    let ended = run(&proxy.url(database.url()), &arguments, lines.as_bytes()).await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    assert_eq!(ended.counts(), [1000, 0, 0, 0]);
    proxy.cut_before(STORE_IN_LANE);
    let ended = run(&proxy.url(database.url()), &arguments, lines.as_bytes()).await;
    assert_eq!(ended.code(), Some(0), "{:?}", ended.sentences());
    let [sent, resent, ..] = ended.counts();
    assert_eq!(sent, 1000);
    assert!((1..=100).contains(&resent), "one batch was sent again: {resent}");
    let twice = lines.lines().chain(lines.lines()).map(str::as_bytes).collect::<Vec<_>>();
    assert_eq!(bodies(&stored(&database, "mail").await), twice);
}

#[tokio::test]
async fn a_server_that_stays_away_is_given_up_with_a_sentence_and_a_summary() {
    let database = mail().await;
    let proxy = FaultProxy::start(database.url()).await;
    let arguments = ["mail", "--lines", "-", "--give-up-after", "300ms", "--json"];
    let mut running = Running::start(&proxy.url(database.url()), &arguments);
    until("it has connected", async || crate::setup::lane_count(&database).await == 1).await;
    // While the topic is read, the line is not in doubt.
    proxy.cut_before(READ_TOPIC);
    proxy.refuse_new();
    running.write(b"a line\n");
    proxy.sprung().await;
    let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.counts(), [0, 0, 1, 0]);
    let sentences = ended.sentences();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(sentences[0].contains("Gave up sending 1 message(s) to 'mail'"), "{sentences:?}");
}

#[tokio::test]
async fn a_signal_ends_the_reading_and_the_summary_counts_what_is_stored() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let database = mail().await;
        let arguments = ["mail", "--lines", "-", "--rate", "100/s", "--json"];
        let mut running = Running::start(database.url(), &arguments);
        running.write(numbered_lines(5000).as_bytes());
        until("some lines are sent", async || stored(&database, "mail").await.len() >= 20).await;
        running.signal(signal);
        let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
        assert_eq!(ended.code(), Some(code));
        let rows = stored(&database, "mail").await;
        let [sent, _, failed, unknown] = ended.counts();
        assert_eq!((sent, failed, unknown), (rows.len() as u64, 0, 0));
        assert!(sent < 5000, "input was left");
        let expected = numbered_lines(rows.len());
        assert_eq!(bodies(&rows), expected.lines().map(str::as_bytes).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_send_that_waits_for_its_server() {
    let database = mail().await;
    let proxy = FaultProxy::start(database.url()).await;
    let arguments = ["mail", "--lines", "-", "--json", "--metrics", "0"];
    let mut running = Running::start(&proxy.url(database.url()), &arguments);
    let metrics = running.metrics();
    running.write(b"first\n");
    // Storing it is not enough: a reply still in flight would leave it in doubt.
    until("the first line is acknowledged", async || metrics.count_as_enqueued(1)).await;
    proxy.refuse();
    running.write(b"second\n");
    running.signal(Signal::TERM);
    // One signal is not enough: the batch in flight is finished first.
    let pid = Pid::from_child(&running.child);
    let again = tokio::spawn(async move {
        while kill_process(pid, Signal::TERM).is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
    again.abort();
    assert_eq!(ended.code(), Some(143));
    let [sent, ..] = ended.counts();
    assert_eq!(sent, 1);
    assert_eq!(stored(&database, "mail").await.len(), 1);
}

#[tokio::test]
async fn what_was_sent_shows_in_the_metrics() {
    let database = mail().await;
    let mut running = Running::start(database.url(), &["mail", "--lines", "-", "--metrics", "0"]);
    let metrics = running.metrics();
    running.write(b"1\n2\n3\n");
    until("the lines are sent", async || stored(&database, "mail").await.len() == 3).await;
    until("they are counted", async || metrics.count_as_enqueued(3)).await;
    running.stdin = None;
    let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn what_a_pipe_trickles_in_is_sent_at_once_and_its_end_is_no_failure() {
    let database = mail().await;
    let mut running = Running::start(database.url(), &["mail", "--lines", "-"]);
    for n in 1..=3 {
        running.write(b"line\n");
        until("the line is sent", async || stored(&database, "mail").await.len() == n).await;
    }
    running.stdin = None;
    let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
    assert_eq!(ended.code(), Some(0));
    assert!(ended.out().starts_with("sent 3  "), "{}", ended.out());
}

/// The topic's limit applies to stored bytes.
#[tokio::test]
async fn bodies_are_compressed_on_demand_where_that_makes_them_smaller() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { body_limit: 1000, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await;
    let long = "again and again, ".repeat(1000);
    let ended = run(database.url(), &["mail", "--encode", "gzip", "short", &long], b"").await;
    assert_eq!(ended.code(), Some(0), "{}", ended.sentences().join("\n"));
    let stored = stored(&database, "mail").await;
    assert_eq!((stored[0].body.as_slice(), stored[0].headers.is_empty()), (&b"short"[..], true));
    assert_eq!(stored[1].headers.get("content-encoding"), Some("gzip"));
    let decoded = Codecs::default().decode(&stored[1].headers, &stored[1].body);
    assert_eq!(decoded.expect("decoded"), Some(long.clone().into_bytes()));
    let refused = run(database.url(), &["mail", &long], b"").await;
    assert_eq!(refused.code(), Some(1));
}
