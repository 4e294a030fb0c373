//! The spans of runs: what is logged within carries the ids of the distributed trace.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rowmq_core::handler::HandlerError;
use rowmq_core::{NewMessage, TraceParent};
use rowmq_test::TestDatabase;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use crate::handling::running::{Running, With, drained, one_at_a_time, quick, send};

/// What was logged, a line of JSON each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    /// The spans of the lines with this message, innermost first.
    fn spans(&self, message: &str) -> Vec<Value> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON"));
        let of_message = lines.filter(|line| line["fields"]["message"] == message);
        of_message.map(|line| line["span"].clone()).collect()
    }
}

#[tokio::test]
async fn what_a_handler_logs_and_what_is_logged_of_its_failure_carries_the_trace() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(log.clone()).finish();
    let _subscribed = tracing::subscriber::set_default(subscriber);
    let database = TestDatabase::new().await;
    let topic = database.topic_with("t", &quick()).await;
    let parent = TraceParent::start();
    let plain = NewMessage::new("plain");
    send(&database, &topic, &[NewMessage::new("m").with_traceparent(parent), plain]).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let handler = With(move |context: rowmq_core::handler::Context| {
        let tell = Arc::clone(&tell);
        async move {
            tracing::info!("Handled.");
            assert_eq!(context.traceparent(), context.traceparent());
            tell.lock().expect("a lock").push(context.traceparent());
            Err(HandlerError::dead("no"))
        }
    });
    let running = Running::start(&database, |builder| {
        builder.raw_handler(topic.name.clone(), one_at_a_time(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let told = told.lock().expect("a lock").clone();
    let [Some(here), None] = told[..] else { panic!("{told:?}") };
    assert_eq!(here.trace_id(), parent.trace_id());
    assert_ne!(here.span_id(), parent.span_id());
    for message in ["Handled.", "Message is dead-lettered."] {
        let spans = log.spans(message);
        assert_eq!(spans.len(), 2, "{message}");
        assert_eq!(spans[0]["name"], "run");
        for (field, id) in [
            ("trace_id", parent.trace_id()),
            ("span_id", here.span_id()),
            ("parent_id", parent.span_id()),
        ] {
            assert_eq!(spans[0][field], id, "{message} {field}");
        }
        assert_eq!(spans[1], Value::Null, "a message of no trace has no span");
    }
}
