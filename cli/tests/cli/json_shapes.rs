//! The shapes of the JSON that scripts read: each command's fields and their types, as they are
//! stored in `json_shapes.json`. Another shape breaks scripts: if it is intended, copy the file
//! that the test writes, and say so in the changelog.

use std::collections::BTreeSet;
use std::path::Path;

use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::{DeadCause, OnDone, Settlement};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{Delivery, Topic, TopicName, enqueue, store};
use rowmq_test::TestQueue;
use serde_json::{Map, Value, json};

use crate::run::Rowmq;

/// Commands that print the same.
const TOPIC: &str = "topic create, set, show, access, pause, resume";
const GROUP: &str = "group create, set, pause, resume";
const DELETED: &str = "topic delete, group delete";
const SCHEDULE: &str = "cron pause, resume, delete";
const MESSAGES: &str = "purge, dead redrive, dead purge";

/// What the JSON of each command looks like.
struct Shapes {
    rowmq: Rowmq,
    seen: Map<String, Value>,
}

impl Shapes {
    /// Runs a command, whose first words name it, and adds the shape of its JSON.
    #[track_caller]
    fn look(&mut self, command: &str, arguments: &[&str]) -> Value {
        self.look_as(command, command, arguments)
    }

    /// Runs a command that prints the same as others, and adds the shape of its JSON to theirs.
    #[track_caller]
    fn look_as(&mut self, commands: &str, command: &str, arguments: &[&str]) -> Value {
        let words: Vec<_> = command.split(' ').chain(arguments.iter().copied()).collect();
        let value = self.rowmq.json(&words);
        self.add(commands, &value);
        value
    }

    fn add(&mut self, commands: &str, value: &Value) {
        let shape = match self.seen.remove(commands) {
            None => shape(value),
            Some(before) => merged(before, shape(value)),
        };
        self.seen.insert(commands.to_owned(), shape);
    }
}

/// The fields of a value and their types.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "true or false".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(values) => {
            values.iter().map(shape).reduce(merged).into_iter().collect::<Vec<_>>().into()
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect()
        }
    }
}

/// The shape of a value that may be like one or like the other: `null, number`. A field that only
/// one of them has may be absent.
fn merged(one: Value, other: Value) -> Value {
    let mut merged = alternatives(one);
    for other in alternatives(other) {
        let alike =
            |one: &&mut Value| std::mem::discriminant(*one) == std::mem::discriminant(&other);
        match merged.iter_mut().find(alike) {
            Some(one) => *one = merged_alike(one.take(), other),
            None => merged.push(other),
        }
    }
    match merged.len() {
        1 => merged.remove(0),
        _ => json!({ ONE_OF: merged }),
    }
}

/// The name of a list of alternatives.
const ONE_OF: &str = "one of";

fn alternatives(shape: Value) -> Vec<Value> {
    match shape {
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key(ONE_OF) => {
            fields[ONE_OF].as_array_mut().map(std::mem::take).unwrap_or_default()
        }
        alone => vec![alone],
    }
}

/// Merges two objects, two lists, or two types.
fn merged_alike(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(one), Value::Object(mut other)) => {
            let absent = || Value::from("absent");
            let both = one.into_iter().map(|(name, value)| {
                let value = merged(value, other.remove(&name).unwrap_or_else(absent));
                (name, value)
            });
            let mut both: Map<_, _> = both.collect();
            both.extend(other.into_iter().map(|(name, value)| (name, merged(value, absent()))));
            both.into()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.into_iter().chain(other).reduce(merged).into_iter().collect::<Vec<_>>().into()
        }
        (one, other) => {
            let types = |shape: &Value| shape.as_str().unwrap_or_default().to_owned();
            let (one, other) = (types(&one), types(&other));
            let words: BTreeSet<_> = one.split(", ").chain(other.split(", ")).collect();
            words.into_iter().collect::<Vec<_>>().join(", ").into()
        }
    }
}

/// Refuses everything.
struct Never;

impl RawHandler for Never {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Err(HandlerError::dead("no way"))
    }
}

async fn topic(queue: &TestQueue, name: &str) -> Topic {
    let name = TopicName::new(name).expect("a name");
    store::topic::existing(&mut queue.connect().await, &name).await.expect("it is there")
}

#[tokio::test]
async fn scripts_read_what_they_always_read() {
    let queue = TestQueue::new().await;
    let mut shapes = Shapes { rowmq: Rowmq::on(queue.database()), seen: Map::new() };
    topics_and_their_messages(&queue, &mut shapes).await;
    streams_and_their_groups(&queue, &mut shapes).await;
    what_goes_on(&mut shapes);

    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/json_shapes.json");
    let actual = Path::new(env!("CARGO_TARGET_TMPDIR")).join("json_shapes.json");
    let seen = Value::from(shapes.seen);
    let text = serde_json::to_string_pretty(&seen).expect("JSON") + "\n";
    std::fs::write(&actual, text).expect("it can be written");
    let expected = std::fs::read_to_string(&stored).expect("it is there");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    for (commands, shape) in expected.as_object().expect("commands") {
        assert_eq!(shape, &seen[commands], "`{commands}` prints other JSON than before");
    }
    let is_complete = seen.as_object().map(Map::len) == expected.as_object().map(Map::len);
    assert!(is_complete, "copy {} to {}", actual.display(), stored.display());
}

async fn topics_and_their_messages(queue: &TestQueue, shapes: &mut Shapes) {
    shapes.look("migrate", &[]);
    shapes.look_as(TOPIC, "topic create", &["mail", "--trace", "all", "--searchable", "on"]);
    let settings =
        ["--keep-done", "1d", "--max-run-time", "1h", "--max-depth", "9", "--rate", "9/1s"];
    shapes
        .look("topic create", &[&["other", "--dead-letter-topic", "mail"], &settings[..]].concat());
    shapes.look("topic list", &[]);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("applied.toml");
    std::fs::write(&file, "[topics.declared]").expect("written");
    shapes.look("apply", &[file.to_str().expect("text"), "--dry-run"]);
    shapes.look_as(TOPIC, "topic show", &["mail"]);
    shapes.look_as(TOPIC, "topic show", &["other"]);
    shapes.look_as(TOPIC, "topic set", &["mail", "--max-attempts", "2"]);
    shapes.look_as(TOPIC, "topic pause", &["mail"]);
    shapes.look_as(TOPIC, "topic resume", &["mail"]);
    shapes.look_as(TOPIC, "topic access", &["mail", "read-write"]);
    shapes.look("access", &[]);
    shapes.look("access", &["read-write"]);
    shapes.look("cron set", &["nightly", "mail", "--cron", "@daily"]);
    for command in ["cron pause", "cron resume"] {
        shapes.look_as(SCHEDULE, command, &["nightly"]);
    }
    shapes.look("cron list", &[]);
    shapes.look("cron next", &["@daily"]);
    shapes.look_as(SCHEDULE, "cron delete", &["nightly"]);

    let message = ["mail", "x", "--key", "k", "--biz-id", "b", "--header", "h=1"];
    let dead = enqueued(shapes, &message);
    enqueued(shapes, &["mail", "y"]);
    assert_eq!(queue.drain_raw("mail", &Never).await.dead, 2);
    for filter in [&["mail"][..], &["mail", &dead]] {
        shapes.look("dead list", filter);
        shapes.look("find", filter);
    }
    shapes.look("dead show", &["mail", &dead]);
    shapes.look("trace", &["mail", &dead]);
    shapes.look_as(MESSAGES, "dead redrive", &["mail", &dead]);
    shapes.look_as(MESSAGES, "dead purge", &["mail", "--all", "--yes"]);
    let later = enqueued(shapes, &["mail", "z", "--deliver", "1h"]);
    shapes.look("scheduled list", &["mail"]);
    shapes.look("scheduled reschedule", &["mail", &later, "--deliver", "2h"]);
    shapes.look("find", &["mail"]);
    shapes.look("peek", &["mail"]);
    shapes.look("peek", &["mail", "--body"]);
    shapes.look("cancel", &["mail", &later]);
    shapes.look("move", &["mail", "other", "--yes"]);
    shapes.look("drain", &["mail"]);
    shapes.look_as(MESSAGES, "purge", &["other", "--yes"]);
    shapes.look_as(DELETED, "topic delete", &["other", "--purge", "--yes"]);
}

#[track_caller]
fn enqueued(shapes: &mut Shapes, arguments: &[&str]) -> String {
    let message = shapes.look("enqueue", arguments);
    message["msg_id"].as_str().expect("an id").to_owned()
}

async fn streams_and_their_groups(queue: &TestQueue, shapes: &mut Shapes) {
    shapes.look_as(TOPIC, "topic create", &["orders", "--kind", "stream", "--retention", "1d"]);
    shapes.look_as(GROUP, "group create", &["orders@mail", "--filter", "type=created"]);
    shapes.look_as(GROUP, "group create", &["orders@bill", "--ordered"]);
    shapes.look_as(GROUP, "group create", &["orders@prices", "--broadcast"]);
    shapes.look_as(GROUP, "group set", &["orders@mail", "--filter", "none"]);
    let stream = topic(queue, "orders").await;
    let message = rowmq_core::NewMessage::new("m").with_key("k");
    let mut conn = queue.connect().await;
    enqueue(&mut conn, &stream.name, &message).await.expect("enqueued");
    sequence(&mut conn, stream.id, 10, Contention::Wait).await.expect("sequenced");
    let options = WorkerOptions::new(queue.database().url().clone(), "test");
    let worker = Worker::start(options).await.expect("started");
    let group = topic(queue, "orders@mail").await.group().expect("a group");
    let claimed = worker.claim_range(group, 30).await.expect("claimed").deliveries;
    assert_eq!(claimed.len(), 1);
    for command in ["stats", "group list", "workers", "topic list"] {
        shapes.look(command, &[]);
    }
    for command in ["group show", "group members"] {
        shapes.look(command, &["orders@mail"]);
    }
    shapes.look("group blocked", &["orders@bill"]);
    let id = message.msg_id.to_string();
    shapes.look("find", &["orders", &id]);
    shapes.look("trace", &["orders", &id]);
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    settle(&worker, &claimed, dead).await;
    let group = topic(queue, "orders@bill").await.group().expect("a group");
    let claimed = worker.claim_range(group, 30).await.expect("claimed").deliveries;
    settle(&worker, &claimed, Settlement::Discard { reason: "old".to_owned() }).await;
    shapes.look("erase", &["orders", &id, "--yes"]);
    shapes.look("group reset", &["orders@mail", "--to", "latest", "--yes"]);
    shapes.look("group replay", &["orders@mail", "--from", "earliest"]);
    shapes.look_as(GROUP, "group pause", &["orders@mail"]);
    shapes.look_as(GROUP, "group resume", &["orders@mail"]);
    shapes.look("top", &["--once", "--interval", "100ms"]);
    worker.stop().await.expect("stopped");
    shapes.look_as(DELETED, "group delete", &["orders@mail", "--purge", "--yes"]);
}

async fn settle(worker: &Worker, claimed: &[Delivery], end: Settlement) {
    let settled = Settled::new(&claimed[0], end, OnDone::Delete);
    worker.settle(vec![settled]).await.expect("settled");
}

fn what_goes_on(shapes: &mut Shapes) {
    for command in ["stats", "workers", "janitor", "audit"] {
        shapes.look(command, &[]);
    }
    // It exits with 1 if a check fails, but prints the same.
    let ended = shapes.rowmq.run(&["doctor", "--json"]);
    shapes.add("doctor", &serde_json::from_str(&ended.out).expect("JSON"));
}
