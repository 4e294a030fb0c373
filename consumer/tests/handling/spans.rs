//! The spans of runs: log lines within a run carry the ids of the distributed trace.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::{MsgId, NewMessage, TraceParent};
use rowmq_test::TestDatabase;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use crate::handling::running::{Running, With, drained, one_at_a_time, quick, send};

/// The log, one line of JSON per record.
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

/// The log of this process. A subscriber of one thread would miss lines: a log statement that
/// another thread reaches first is switched off for all, as that thread has no subscriber
/// (tracing-core 0.1.36, `Rebuilder::JustOne`).
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().json().with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    log
});

impl Log {
    /// Returns the span of the line that says `line` about the message with this id.
    fn span(&self, line: &str, of: MsgId) -> Value {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON"));
        let found: Vec<Value> = lines
            .filter(|found| {
                let fields = &found["fields"];
                fields["message"] == line && fields["message.id"] == of.to_string()
            })
            .collect();
        assert_eq!(found.len(), 1, "{line} {of}");
        found[0]["span"].clone()
    }
}

#[tokio::test]
async fn what_a_handler_logs_and_what_is_logged_of_its_failure_carries_the_trace() {
    let log = &*LOG;
    let database = TestDatabase::new().await;
    let topic = database.topic_with("t", &quick()).await;
    let parent = TraceParent::start();
    let traced = NewMessage::new("traced").with_traceparent(parent);
    let plain = NewMessage::new("plain");
    let ids = (traced.msg_id, plain.msg_id);
    send(&database, &topic, &[traced, plain]).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let handler = With(move |context: Context| {
        let tell = Arc::clone(&tell);
        async move {
            tracing::info!(message.id = %context.delivery.msg_id, "Handled.");
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
        let span = log.span(message, ids.0);
        assert_eq!(span["name"], "run");
        for (field, id) in [
            ("trace_id", parent.trace_id()),
            ("span_id", here.span_id()),
            ("parent_id", parent.span_id()),
        ] {
            assert_eq!(span[field], id, "{message} {field}");
        }
        let span = log.span(message, ids.1);
        assert_eq!(span, Value::Null, "a message of no trace has no span");
    }
}
