//! The hello world, as a process.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use rowmq::test::{Program, until};
use rowmq::{AsyncMysqlConnection, NewMessage, TopicName, enqueue};
use rustix::process::{Pid, Signal, kill_process};

use crate::{count, database};

/// Returns the example, with an empty environment.
fn hello() -> Command {
    let mut command = Program::built("examples/hello");
    command.env_clear();
    command
}

/// Sends the example a message that is part of a trace, as a program without kinds does.
async fn mail(conn: &mut AsyncMysqlConnection) {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = NewMessage::new(r#"{"to":"Ada"}"#).with_header("traceparent", trace);
    enqueue(conn, &TopicName::new("mail").expect("a name"), &message).await.expect("enqueued");
}

fn said(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn the_hello_world_takes_all_from_its_environment() {
    let database = database().await;
    let mut conn = database.connect().await;
    mail(&mut conn).await;
    let mut command = hello();
    command.env("ROWMQ_URL", database.url().expose()).env("ROWMQ_CONSUMER_DRAIN", "1s");
    command.env("ROWMQ_METRICS", "0").env("ROWMQ_LOG_FORMAT", "json");
    let mut program = Program::start(&mut command);
    until("handled", async || count(&mut conn, "queue_message").await == 0).await;
    assert_eq!(count(&mut conn, "queue_dead").await, 0);
    program.said(r#""message":"Metrics are served.""#).await;
    program.kill();
}

#[tokio::test]
async fn the_hello_world_says_in_a_sentence_why_it_does_not_start() {
    let nowhere = said(&hello().output().expect("built"));
    assert!(nowhere.starts_with("Error: No server is named: set ROWMQ_URL="), "{nowhere}");
    let url = "mysql://app:geheim@127.0.0.1:1/shop";
    for (variable, value, sentence) in [
        ("ROWMQ_CONSUMER_DRAIN", "soon", "ROWMQ_CONSUMER_DRAIN cannot be used: invalid value"),
        ("ROWMQ_CONSUMER_LEESE", "geheim", "ROWMQ_CONSUMER_LEESE cannot be used: unknown field"),
        ("ROWMQ_LOG_FORMAT", "xml", "ROWMQ_LOG_FORMAT is 'xml': use text or json"),
        ("ROWMQ_METRICS", "here", "ROWMQ_METRICS is 'here'"),
    ] {
        let output = hello().env("ROWMQ_URL", url).env(variable, value).output().expect("built");
        let said = said(&output);
        assert!(said.contains(sentence) && !said.contains("geheim"), "{said}");
    }
}

#[tokio::test]
async fn the_hello_world_waits_for_a_server_that_is_away() {
    let mut command = hello();
    let mut program =
        Program::start(command.env("ROWMQ_URL", "mysql://app:geheim@127.0.0.1:1/shop"));
    let said = program.said("Cannot start yet; trying again.").await;
    assert!(said.contains("127.0.0.1:1") && !said.contains("geheim"), "{said}");
    program.kill();
}

/// Takes one request; returns its first line. An empty one if the connection ends.
fn take(collector: &TcpListener) -> std::io::Result<String> {
    let (mut request, _) = collector.accept()?;
    let mut line = String::new();
    BufReader::new(&request).read_line(&mut line)?;
    request.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    Ok(line)
}

/// The batch of spans is sent a minute later, or at the end of the process.
#[tokio::test]
async fn the_last_spans_are_sent_before_the_program_ends() {
    let database = database().await;
    let mut conn = database.connect().await;
    mail(&mut conn).await;
    let collector = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = collector.local_addr().expect("an address");
    let taken = tokio::task::spawn_blocking(move || take(&collector));
    let mut command = hello();
    command.env("ROWMQ_URL", database.url().expose());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    command.env("OTEL_BSP_SCHEDULE_DELAY", "60000");
    let child = command.stdout(Stdio::piped()).spawn().expect("built");
    until("handled", async || count(&mut conn, "queue_message").await == 0).await;
    let id = Pid::from_raw(i32::try_from(child.id()).expect("an id")).expect("an id");
    kill_process(id, Signal::TERM).expect("it runs");
    let ended = tokio::task::spawn_blocking(|| child.wait_with_output()).await.expect("no panic");
    let ended = ended.expect("waited");
    // All spans have been sent by now: the next connection is this one.
    drop(TcpStream::connect(address));
    let line = taken.await.expect("no panic").expect("taken");
    assert_eq!(line.trim_end(), "POST /v1/traces HTTP/1.1");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "To Ada, delivery 1\n");
    assert!(ended.status.success());
}
