//! The spans of sending, as an OpenTelemetry collector gets them.

#![cfg(feature = "otlp")]
#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::sync::{Arc, Mutex};

use crate::setup::relay::{Relay, command};
use crate::setup::stored;
use axum::Router;
use axum::body::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message;
use rowmq_core::TraceParent;
use rowmq_test::TestDatabase;
use tokio::net::TcpListener;

/// Starts a collector; returns its URL, and the spans that it has accepted.
async fn collector() -> (String, Arc<Mutex<Vec<Span>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
    let spans = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&spans);
    let app = Router::new().fallback(move |body: Bytes| async move {
        let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
        let scopes = request.resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        taken.lock().expect("unpoisoned").extend(spans);
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, spans)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The message itself keeps the span that its sender gave.
#[tokio::test(flavor = "multi_thread")]
async fn sending_is_a_span_of_its_own_below_the_one_that_the_message_carries() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let (url, spans) = collector().await;
    let mut command = command(database.url(), &["--listen", "0"]);
    command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &url);
    let relay = Relay::spawned(command);
    let parent = TraceParent::start();
    let header = format!("Queue-Header-Traceparent: {parent}\r\n");
    assert_eq!(relay.post("/topics/mail/messages", &header, b"a").status, 201);
    assert_eq!(relay.post("/topics/mail/messages", "", b"of no trace").status, 201);
    relay.stop();
    let spans = std::mem::take(&mut *spans.lock().expect("unpoisoned"));
    let [span] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!(
        (hex(&span.trace_id), hex(&span.parent_span_id)),
        (parent.trace_id(), parent.span_id())
    );
    assert_ne!(hex(&span.span_id), parent.span_id());
    assert_eq!((span.name.as_str(), span.kind), ("send mail", SpanKind::Producer as i32));
    let stored = stored(&database, "mail").await;
    assert_eq!(stored[0].headers.get("traceparent"), Some(parent.to_string().as_str()));
}
