//! `producer relay`: takes messages by HTTP, for programs that have no connection of their own.

mod arguments;
mod request;
mod response;

use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use producer::{Producer, ProgressListener};
use queue_core::doctor;
use queue_service::endpoint::{self, Health};
use queue_service::logging;
use queue_service::signals::shutdown_on_signals;
use tokio::net::TcpListener;

pub(crate) use self::arguments::Arguments;

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
    let router = Router::new()
        .route("/topics/{topic}/messages", post(request::take))
        .layer(DefaultBodyLimit::max(arguments.body_limit))
        .with_state(producer.clone());
    let drained = shutdown.drain.clone().cancelled_owned();
    let serving = axum::serve(listener, router).with_graceful_shutdown(drained);
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
        () = pulse => {}
    }
    shutdown.quit.run_until_cancelled(producer.close()).await;
    Ok(ExitCode::SUCCESS)
}
