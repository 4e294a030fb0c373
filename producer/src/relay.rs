//! `producer relay`: takes messages by HTTP, for programs that have no connection of their own.

mod arguments;
mod request;
mod response;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::routing::post;
use producer::{Producer, ProgressListener};
use queue_core::doctor;
use queue_service::endpoint::{self, Health};
use queue_service::logging;
use queue_service::signals::shutdown_on_signals;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub(crate) use self::arguments::Arguments;

/// The most requests whose bodies are in memory at once.
const AT_ONCE: usize = 64;

/// How long requests that are under way have to come to their end after a signal.
const DRAIN: Duration = Duration::from_secs(25);

/// What every request is served with.
#[derive(Debug, Clone)]
struct Relay {
    producer: Producer,
    /// A request holds one from before its body is read until it is answered.
    places: Arc<Semaphore>,
    body_limit: usize,
    /// How long each step of a request may take.
    patience: Duration,
}

/// Serves until a signal; the exit code.
///
/// # Errors
/// What keeps it from beginning.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::init(&arguments.service);
    let shutdown = shutdown_on_signals()?;
    let url = arguments.server.url()?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.quit.clone()).await?;
    doctor::require(&url).await?;
    let mut options = arguments.producer_options();
    let ticked = health.clone();
    options.on_progress = Some(ProgressListener::new(move |_| ticked.alive()));
    let producer = Producer::connect(url, options).await?;
    let address = arguments.listen;
    let cannot = || format!("Cannot listen on {address}: choose another address with --listen");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    tracing::info!(address = %bound, "Messages are taken.");
    health.ready(Ok(()));
    let relay = Relay {
        producer: producer.clone(),
        places: Arc::new(Semaphore::new(AT_ONCE)),
        body_limit: arguments.body_limit,
        patience: arguments.give_up_after,
    };
    let router =
        Router::new().route("/topics/{topic}/messages", post(request::take)).with_state(relay);
    let drained = shutdown.drain.clone().cancelled_owned();
    let serving = axum::serve(listener, router).with_graceful_shutdown(drained);
    // A client that never ends its request must not hold the process.
    let drain = shutdown.drain.clone();
    let drained_long_enough = async {
        drain.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    let pulse = async {
        loop {
            health.alive();
            tokio::time::sleep(arguments::PULSE).await;
        }
    };
    // No future that holds a connection is among these: the lanes run on a thread of their own.
    tokio::select! {
        served = async { serving.await } => served.context("Cannot go on serving")?,
        () = shutdown.quit.cancelled() => {}
        () = drained_long_enough => {}
        () = pulse => {}
    }
    shutdown.quit.run_until_cancelled(producer.close()).await;
    Ok(ExitCode::SUCCESS)
}
