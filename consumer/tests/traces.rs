//! Spans of messages, as an OpenTelemetry collector gets them.

#![cfg(feature = "otlp")]
#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message;
use rowmq_core::model::TopicSettings;
use rowmq_core::{NewMessage, TraceParent, enqueue_to, store};
use rowmq_test::{TestDatabase, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpListener;

/// The requests that have come.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let this = Self::default();
        let taken = Arc::clone(&this.0);
        let app =
            Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| async move {
                assert_eq!(uri.path(), "/v1/traces");
                assert_eq!(headers["content-type"], "application/x-protobuf");
                let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
                taken.lock().expect("unpoisoned").push(request);
            });
        tokio::spawn(async move { axum::serve(listener, app).await });
        (this, url)
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().expect("unpoisoned");
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Returns the names of the services that have sent.
    fn services(&self) -> Vec<String> {
        let requests = self.0.lock().expect("unpoisoned");
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let resources = resources.filter_map(|spans| spans.resource.as_ref());
        resources.map(|resource| text(&resource.attributes, "service.name")).collect()
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|it| it.value.as_ref()).and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the command, ready to run on this server.
fn consumer(database: &TestDatabase, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"));
    command.args(arguments).env("ROWMQ_URL", database.url().expose()).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

async fn handled(database: &TestDatabase, topic: &rowmq_core::Topic) {
    let mut conn = database.connect().await;
    until("handled", async || {
        let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
        depth.unsettled + depth.claimed == 0
    })
    .await;
}

/// Stops it; it has sent everything by its end.
fn stop(mut child: Child) {
    let id = i32::try_from(child.id()).expect("an id");
    kill_process(Pid::from_raw(id).expect("an id"), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_a_span_below_the_one_that_its_message_carries() {
    let database = TestDatabase::new().await;
    let one = TopicSettings { max_attempts: 1, ..TopicSettings::default() };
    let topic = database.topic_with("mail", &one).await;
    let (parent, failing) = (TraceParent::start(), TraceParent::start());
    let unsampled: TraceParent =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00".parse().expect("a header");
    let messages = [
        NewMessage::new("0").with_traceparent(parent),
        NewMessage::new("75").with_traceparent(failing),
        NewMessage::new("0").with_traceparent(unsampled),
        NewMessage::new("0"),
    ];
    enqueue_to(&mut database.connect().await, &topic, &messages).await.expect("enqueued");
    let (collector, url) = Collector::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen");
    // Logged in any case, and passed on to the program under the id that is sent.
    let script = format!("echo $TRACEPARENT >> {}; exit $(cat)", seen.display());
    let mut command = consumer(
        &database,
        &["exec", "mail", "--log", "error", "--concurrency", "1", "--", "sh", "-c", &script],
    );
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_SERVICE_NAME", "mailer");
    let child = command.spawn().expect("it starts");
    handled(&database, &topic).await;
    stop(child);

    assert!(collector.services().iter().all(|name| name == "mailer"));
    let spans = collector.spans();
    assert_eq!(spans.len(), 2, "of those whose traces are recorded: {spans:?}");
    let passed_on = std::fs::read_to_string(&seen).expect("read");
    for (parent, message) in [(parent, &messages[0]), (failing, &messages[1])] {
        let span = spans.iter().find(|span| hex(&span.trace_id) == parent.trace_id());
        let span = span.expect("a span of the trace");
        assert_eq!(hex(&span.parent_span_id), parent.span_id());
        let here = format!("00-{}-{}-01", parent.trace_id(), hex(&span.span_id));
        assert!(passed_on.lines().any(|line| line == here), "{here} in {passed_on}");
        assert_eq!((span.name.as_str(), span.kind), ("process mail", SpanKind::Consumer as i32));
        assert_eq!(hex(&span.links[0].span_id), parent.span_id());
        assert!(span.end_time_unix_nano > span.start_time_unix_nano);
        let id = message.msg_id.to_string();
        for (key, value) in [
            ("messaging.destination.name", "mail"),
            ("messaging.operation.type", "process"),
            ("messaging.message.id", id.as_str()),
            ("queue.delivery_no", "1"),
        ] {
            assert_eq!(text(&span.attributes, key), value, "{key}");
        }
        let status = span.status.as_ref().map(|status| status.code).unwrap_or_default();
        let (settlement, code) = match message.body.as_slice() {
            b"0" => ("ack", StatusCode::Unset),
            _ => ("dead_letter", StatusCode::Error),
        };
        assert_eq!(text(&span.attributes, "queue.settlement"), settlement);
        assert_eq!(status, code as i32, "{settlement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_where_nobody_asks_for_it_and_a_collector_that_is_away_is_not_waited_for() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let message = || NewMessage::new("x").with_traceparent(TraceParent::start());
    let (collector, url) = Collector::start().await;
    for (variable, value) in
        [("OTEL_SDK_DISABLED", "true"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")]
    {
        enqueue_to(&mut database.connect().await, &topic, &[message()]).await.expect("enqueued");
        let mut command = consumer(&database, &["exec", "mail", "--", "true"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env(variable, value);
        let child = command.spawn().expect("it starts");
        handled(&database, &topic).await;
        stop(child);
    }
    assert!(collector.spans().is_empty());
}
