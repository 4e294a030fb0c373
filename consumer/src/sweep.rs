//! Consumers watch each other: one of them sweeps when no janitor does.

use std::time::Duration;

use rowmq_core::actor;
use rowmq_core::connection::ServerUrl;
use rowmq_core::worker::{Life, Worker};
use rowmq_janitor::{Driver, DriverOptions, Role};
use rowmq_service::identity;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::options::ConsumerOptions;

/// The pause after a sweep ended or another process had the lock.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts a sweeper on a thread and runtime of its own, which a blocking handler cannot stop. It
/// stands by until the worker's pulse reports that no process sweeps, and ends with `stop`.
pub(crate) fn start(
    url: &ServerUrl,
    consumer: &ConsumerOptions,
    worker: &Worker,
    stop: CancellationToken,
) {
    if !consumer.sweep {
        return;
    }
    let holder = format!("{} worker {}", identity::client_id(), worker.id());
    let mut options = DriverOptions::new(url.clone(), holder);
    options.role = Role::StandIn;
    options.lease = consumer.lease;
    let life = worker.life();
    if let Err(error) = actor::spawn("rowmq-sweep", move || stand_by(options, life, stop)) {
        tracing::warn!(%error, "This consumer cannot sweep; a janitor or another one must.");
    }
}

async fn stand_by(
    options: DriverOptions,
    mut life: watch::Receiver<Life>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let unswept = life.wait_for(|life| life.pulse.unswept);
        match stop.run_until_cancelled(unswept).await {
            Some(Ok(_)) => {}
            // The worker is gone, or the consumer stops.
            Some(Err(_)) | None => return,
        }
        Driver::new(options.clone()).run(stop.clone(), |_| {}).await;
        tokio::time::sleep(PAUSE).await;
    }
}
