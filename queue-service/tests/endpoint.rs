//! The endpoint over a real socket.

#![allow(clippy::expect_used, reason = "a test that gets no answer has failed")]

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rowmq_core::telemetry;
use rowmq_service::endpoint::serve;
use rowmq_service::health::Health;
use rowmq_service::http::{self, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Returns the whole answer: the server closes after one request.
async fn answer_to(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer
}

#[tokio::test]
async fn metrics_and_probes_are_served_until_shutdown_and_nothing_else() {
    let (health, shutdown) = (Health::new(), CancellationToken::new());
    let off = serve(None, health.clone(), shutdown.clone()).await.expect("nothing to do");
    assert_eq!(off, None);

    let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = serve(free, health.clone(), shutdown.clone()).await.expect("bound");
    let address = bound.expect("an address");
    telemetry::enqueued("mail", 3);
    telemetry::TopicMeter::new("mail").ran("ok", Duration::from_millis(20));
    let metrics = answer_to(address, "/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("queue_enqueued_total{topic=\"mail\"} 3"), "{metrics}");
    assert!(metrics.contains("# HELP queue_enqueued_total"), "{metrics}");
    let bucket = "queue_run_seconds_bucket{topic=\"mail\",outcome=\"ok\",le=\"0.025\"} 1";
    assert!(metrics.contains(bucket), "{metrics}");

    assert!(answer_to(address, "/livez").await.starts_with("HTTP/1.1 200"));
    let starting = answer_to(address, "/readyz").await;
    assert!(starting.starts_with("HTTP/1.1 503"), "{starting}");
    assert!(starting.contains("starting"), "{starting}");
    health.ready(Ok(()));
    assert!(answer_to(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    for path in ["/", "/metrics/x", "/debug"] {
        assert!(answer_to(address, path).await.starts_with("HTTP/1.1 404"), "{path}");
    }

    // Silent clients occupy places; when they leave, the next client is served.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.expect("queued"));
    }
    let waiting = tokio::spawn(async move { answer_to(address, "/livez").await });
    drop(silent);
    assert!(waiting.await.expect("served").starts_with("HTTP/1.1 200"));

    let taken = serve(Some(address), Health::new(), shutdown.clone()).await;
    assert!(format!("{:#}", taken.expect_err("in use")).contains("choose another --metrics"));
    shutdown.cancel();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_that_sends_no_head_is_closed_and_its_place_given_to_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (head, connection) = (Duration::from_millis(200), Some(Duration::from_secs(600)));
    let limits = Limits { connections: 2, head, connection };
    let (router, stop) =
        (Router::new().route("/", get(|| async { "here" })), CancellationToken::new());
    let serving = tokio::spawn(http::serve(listener, None, router, limits, stop.clone()));
    let mut slow = Vec::new();
    for head in ["", "GET / HTTP/1.1\r\nHost"] {
        let mut stream = TcpStream::connect(address).await.expect("queued");
        stream.write_all(head.as_bytes()).await.expect("sent");
        slow.push(stream);
    }
    let answer = tokio::time::timeout(Duration::from_secs(60), answer_to(address, "/")).await;
    let answer = answer.expect("it gets a place");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
    for mut stream in slow {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("closed");
    }
    stop.cancel();
    serving.await.expect("it ends");
}
