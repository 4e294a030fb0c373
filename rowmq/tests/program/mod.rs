//! The hello world, as a process.

use std::process::{Command, Output};

use rowmq::Job;
use rowmq::test::{Program, until};

use crate::{ada, count, database};

/// Returns the example, with an empty environment.
fn hello() -> Command {
    let mut command = Program::built("examples/hello");
    command.env_clear();
    command
}

fn said(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn the_hello_world_takes_all_from_its_environment() {
    let database = database().await;
    let mut conn = database.connect().await;
    ada().enqueue(&mut conn).await.expect("enqueued");
    let mut command = hello();
    command.env("ROWMQ_URL", database.url().expose()).env("ROWMQ_CONSUMER_DRAIN", "1s");
    command.env("ROWMQ_METRICS", "0").env("ROWMQ_LOG_FORMAT", "json");
    let mut program = Program::start(&mut command);
    until("handled", async || count(&mut conn, "queue_message").await == 0).await;
    program.said(r#""message":"Metrics are served.""#).await;
    program.kill();
}

#[tokio::test]
async fn the_hello_world_says_in_a_sentence_why_it_does_not_start() {
    let nowhere = said(&hello().output().expect("built"));
    assert!(nowhere.starts_with("Error: No server is named: set ROWMQ_URL="), "{nowhere}");
    let url = "mysql://app:geheim@127.0.0.1:1/shop";
    for (variable, value, sentence) in [
        ("ROWMQ_CONSUMER_DRAIN", "soon", "ROWMQ_CONSUMER_DRAIN is 'soon': invalid value"),
        ("ROWMQ_CONSUMER_LEESE", "1s", "ROWMQ_CONSUMER_LEESE is '1s': unknown field `leese`"),
        ("ROWMQ_LOG_FORMAT", "xml", "ROWMQ_LOG_FORMAT is 'xml': use text or json"),
        ("ROWMQ_METRICS", "here", "ROWMQ_METRICS is 'here'"),
        ("RUST_LOG", "info", "127.0.0.1:1"),
    ] {
        let output = hello().env("ROWMQ_URL", url).env(variable, value).output().expect("built");
        let said = said(&output);
        assert!(said.contains(sentence) && !said.contains("geheim"), "{said}");
    }
}
