//! `rowmq-producer relay`: takes messages by HTTP, for programs without a connection of their own.

mod arguments;
mod request;
mod response;
mod stdin;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::middleware::from_fn;
use axum::routing::post;
use futures_util::future::join;
use rowmq_core::Error;
use rowmq_core::connection::ServerUrl;
use rowmq_producer::{Producer, Progress, ProgressListener};
use rowmq_service::config;
use rowmq_service::config::Settings;
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::http::{self, Limits};
use rowmq_service::signals::shutdown_on_signals;
use rowmq_service::start::when_there;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub(crate) use self::arguments::Arguments;

/// The most requests whose bodies are in memory at once.
const AT_ONCE: usize = 64;

/// The most bytes of request bodies in memory at once; a single body may be larger.
const MEMORY: usize = 64 << 20;

/// HTTP clients keep idle connections for up to 90 s (Go, reqwest). Closing them earlier would fail
/// requests that are just being sent.
const LIMITS: Limits =
    Limits { connections: 512, head: Duration::from_secs(120), connection: None };

/// How long requests that are under way have to come to their end after a signal.
const DRAIN: Duration = Duration::from_secs(25);

/// What every request handler shares.
#[derive(Debug, Clone)]
struct Relay {
    producer: Producer,
    /// A request holds a permit from before its body is read until it is answered.
    places: Arc<Semaphore>,
    /// A request also holds one of these permits for each KiB of its body.
    memory: Arc<Semaphore>,
    body_limit: usize,
    /// How long each step of a request may take.
    patience: Duration,
}

fn kibibytes(bytes: usize) -> usize {
    bytes.div_ceil(1024).clamp(1, Semaphore::MAX_PERMITS)
}

/// Serves until a signal, and returns the exit code. On HUP, `on_hangup` has the configuration read
/// again.
///
/// # Errors
/// What keeps it from starting.
pub(crate) async fn run(
    arguments: Arguments,
    settings: Settings,
    on_hangup: impl FnOnce(ServerUrl) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    arguments.service.start_logs();
    let located = match arguments.prepare(&settings) {
        Ok(located) => located,
        Err(error) => return Ok(config::refuse(&error)),
    };
    if arguments.service.check {
        return settings.show(&[located.shown()]);
    }
    let shutdown = shutdown_on_signals()?;
    let url = located.url;
    on_hangup(url.clone())?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.quit.clone()).await?;
    let check = || arguments.spill.require(&url);
    if when_there(&health, &shutdown.drain, Error::is_transient, check).await?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut options = arguments.producer_options();
    let ticked = health.clone();
    let set_aside = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&set_aside);
    options.on_progress = Some(ProgressListener::new(move |progress| {
        ticked.alive();
        if let Progress::SetAside { messages, .. } = progress {
            counted.fetch_add(messages, Ordering::Relaxed);
        }
    }));
    let connect = || Producer::connect(url.clone(), options.clone());
    let connected = when_there(&health, &shutdown.drain, Error::is_transient, connect).await?;
    let Some(producer) = connected else { return Ok(ExitCode::SUCCESS) };
    let address = arguments.listen;
    let cannot = || format!("Cannot listen on {address}: choose another address with --listen");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    tracing::info!(address = %bound, "Messages are taken.");
    health.ready(Ok(()));
    let relay = Relay {
        producer: producer.clone(),
        places: Arc::new(Semaphore::new(AT_ONCE)),
        memory: Arc::new(Semaphore::new(kibibytes(MEMORY.max(arguments.body_limit)))),
        body_limit: arguments.body_limit,
        patience: arguments.give_up_after,
    };
    let router = Router::new()
        .route("/topics/{topic}/messages", post(request::take))
        .layer(from_fn(request::refuse_browsers))
        .with_state(relay);
    let stop = shutdown.drain.child_token();
    let serving = http::serve(listener, None, router, LIMITS, stop.clone());
    let stdin = async {
        let Some(topic) = arguments.stdin else { return Ok(ExitCode::SUCCESS) };
        let sent =
            stdin::send(producer.clone(), topic, shutdown.clone(), &health, &set_aside).await;
        stop.cancel();
        sent
    };
    // A client that never ends its request must not hold the process.
    let drained_long_enough = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    let mut code = ExitCode::SUCCESS;
    let pulse = async {
        loop {
            health.alive();
            tokio::time::sleep(arguments::PULSE).await;
        }
    };
    // None of these futures holds a connection: the lanes run on a thread of their own.
    tokio::select! {
        ((), sent) = join(serving, stdin) => code = sent?,
        () = shutdown.quit.cancelled() => {}
        () = drained_long_enough => {}
        () = pulse => {}
    }
    let left = producer.in_journal();
    if left > 0 {
        tracing::warn!(
            spill.messages = left,
            "Messages stay in the spill journal; the next start with its directory sends them."
        );
    }
    shutdown.quit.run_until_cancelled(producer.close()).await;
    Ok(code)
}
