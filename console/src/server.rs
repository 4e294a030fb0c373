use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rowmq_core::connection::ServerUrl;
use rowmq_service::health::Health;
use rowmq_service::http::{self, Limits};
use rowmq_service::signals::Shutdown;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::database::Database;
use crate::link::Link;
use crate::login::Logins;
use crate::per_look::PerLook;
use crate::runs::Runs;
use crate::sampler;
use crate::settings::Rules;
use crate::state::Console;
use crate::throttle::Throttle;
use crate::visitor::admit;
use crate::{api, page, refusal};

/// Each open page keeps a connection. A process may open 1024 files by default, and the sessions of
/// the database need some of them.
const LIMITS: Limits = Limits { connections: 512, head: Duration::from_secs(10), connection: None };

/// The largest form: fields of a search, and nothing else.
const FORM: usize = 64 * 1024;

/// How long the body of a request may take to arrive.
const FORM_TIME: Duration = Duration::from_secs(10);

/// How long open pages and active runs have to end.
const DRAIN: Duration = Duration::from_secs(25);

/// Serves the pages until the process has to end.
pub(crate) async fn serve(
    url: ServerUrl,
    rules: Rules,
    health: Health,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let cannot = format!("Cannot serve pages on {}; choose another --listen address", rules.listen);
    let listener = TcpListener::bind(rules.listen).await.context(cannot)?;
    let address = listener.local_addr().context("Cannot read the console's own address")?;
    let database = Database::start(&url, rules.replica.as_ref())?;
    let console = Arc::new(Console {
        logins: Logins::new(rules.login_time),
        throttle: Throttle::default(),
        link: rules.by_link().then(|| Link::new(address)),
        live: sampler::start(database.clone(), health, shutdown.drain.clone()),
        place: format!("{} on {}", url.database(), url.server()),
        parts: PerLook::default(),
        runs: Runs::default(),
        ending: shutdown.drain.clone(),
        database,
        rules,
    });
    tracing::info!(%address, "The console is served.");
    let (app, tls) = (router(Arc::clone(&console)), console.rules.tls.clone());
    let serving = http::serve(listener, tls, app, LIMITS, shutdown.drain.clone());
    let quit = async {
        shutdown.drain.cancelled().await;
        drop(timeout(DRAIN, shutdown.quit.cancelled()).await);
    };
    tokio::select! {
        () = serving => {}
        () = quit => {}
    }
    // No transaction is cut off: a run ends with its current one.
    shutdown.quit.run_until_cancelled(timeout(DRAIN, console.runs.ended())).await;
    Ok(())
}

fn router(console: Arc<Console>) -> Router {
    Router::new()
        .merge(page::routes())
        .nest("/api/v1", api::routes())
        .fallback(refusal::no_such_page)
        .layer(from_fn(whole))
        .layer(from_fn_with_state(Arc::clone(&console), admit))
        .with_state(console)
}

/// Reads the whole body before the request is handled.
async fn whole(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match timeout(FORM_TIME, to_bytes(body, FORM)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Ok(Err(_)) => StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}
