//! The endpoint of a long-running process: `/metrics` for Prometheus, `/livez` and `/readyz`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use rowmq_core::telemetry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::http::{self, Limits};

/// One request for each connection, so that idle connections hold no place. There are more places
/// than scrapers need, so that probes get through beside them.
const LIMITS: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(5),
    connection: Some(Duration::from_secs(10)),
};

/// How often the recorder folds its samples together, so that it needs no memory while unscraped.
const UPKEEP: Duration = Duration::from_secs(5);

/// In seconds: from a handler of a millisecond to one of ten minutes.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
    600.0,
];

/// Serves `/metrics`, `/livez` and `/readyz` on `address` until `shutdown`; returns the address it
/// is bound to. With `None` it serves nothing, and metrics go nowhere. Call it once in each
/// process, before anything is counted.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(
    address: Option<SocketAddr>,
    health: Health,
    shutdown: CancellationToken,
) -> anyhow::Result<Option<SocketAddr>> {
    let Some(address) = address else { return Ok(None) };
    let cannot = || format!("Cannot serve metrics on {address}; choose another --metrics address");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let bound = listener.local_addr().with_context(cannot)?;
    let recorder = install_recorder()?;
    let router = router(recorder.clone(), health);
    tokio::spawn(keep_up(recorder, shutdown.clone()));
    tokio::spawn(http::serve(listener, None, router, LIMITS, shutdown));
    tracing::info!(address = %bound, "Metrics are served.");
    Ok(Some(bound))
}

/// Every histogram counts seconds. The names are matched in full: a matcher sees the name before
/// any suffix is added, and a matcher that matches nothing silently makes a summary.
fn install_recorder() -> anyhow::Result<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for (name, kind, _) in telemetry::METRICS {
        if *kind == "histogram" {
            let name = Matcher::Full((*name).to_owned());
            builder = builder.set_buckets_for_metric(name, &BUCKETS).context("Wrong buckets")?;
        }
    }
    let recorder = builder.install_recorder().context("Cannot record metrics")?;
    telemetry::describe();
    Ok(recorder)
}

async fn keep_up(recorder: PrometheusHandle, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(UPKEEP)).await.is_some() {
        recorder.run_upkeep();
    }
}

fn router(recorder: PrometheusHandle, health: Health) -> Router {
    const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
    let live = health.clone();
    Router::new()
        .route(
            "/metrics",
            get(move || async move {
                ([(CONTENT_TYPE, METRICS_TYPE)], what_is_known(&recorder.render()))
            }),
        )
        .route("/livez", get(move || async move { probe(live.liveness()) }))
        .route("/readyz", get(move || async move { probe(health.readiness()) }))
}

/// Leaves out the gauges whose values are no longer known.
fn what_is_known(rendered: &str) -> String {
    rendered.split_inclusive('\n').filter(|line| telemetry::is_known(line.trim_end())).collect()
}

fn probe(state: Result<(), String>) -> impl IntoResponse {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Parses an address. A bare port means that port on loopback: nothing is served to the network
/// unless the user asks for that.
///
/// # Errors
/// A sentence that shows what an address looks like.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| "it looks like 127.0.0.1:9464, [::1]:9464 or 9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_port_is_one_of_loopback() {
        assert_eq!(address("9464"), Ok(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(address("0.0.0.0:1"), Ok(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert!(address("metrics").is_err());
    }
}
