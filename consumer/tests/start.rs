//! A consumer that starts while its server is away.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use rowmq_core::connection::ServerUrl;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase};
use rustix::process::{Pid, Signal, kill_process};

/// Starts a consumer of `mail` that finds no server, and returns it once it says so.
async fn start(url: &ServerUrl) -> Program {
    let mut command = Program::built("rowmq-consumer");
    command.args(["exec", "mail", "--", "true"]).env("ROWMQ_URL", url.expose());
    let consumer = Program::start(command.env_remove("RUST_LOG"));
    consumer.said("Cannot start yet; trying again.").await;
    consumer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_waits_at_its_start_for_a_server_that_is_away() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    proxy.refuse();
    let consumer = start(&proxy.url(database.url())).await;
    proxy.pass();
    consumer.said("Consuming.").await;
}

#[tokio::test]
async fn a_consumer_that_waits_for_its_server_ends_when_it_is_asked_to() {
    let nowhere = ServerUrl::new("mysql://u:p@127.0.0.1:1/q").expect("a URL");
    let mut consumer = start(&nowhere).await;
    let id = i32::try_from(consumer.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::TERM).expect("it runs");
    assert!(consumer.ended().success());
}
