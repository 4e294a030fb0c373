//! What the pages show, as JSON, and what they change: for scripts, and for the pages' live parts.
//! The document at `/api/v1/openapi.json` describes it.

mod openapi;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Path, Query as Fields, State};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use queue_core::audit::{Action, Entry};
use queue_core::find::Answer;
use queue_core::inspect::{DutyStanding, WorkerStanding};
use queue_core::store::find::Bodies;
use queue_core::topic::Access;
use queue_core::trace::Story;
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::openapi::Endpoint;
use crate::asked::Asked;
use crate::page::audit::{From, entries};
use crate::page::dead::{Purge, Redrive, begin};
use crate::page::message::known;
use crate::page::messages::{Wanted, msg_id};
use crate::page::topics::{SetAccess, set};
use crate::page::{self, At, topic_name};
use crate::refusal::{Refusal, Said};
use crate::role::Role;
use crate::runs::{Run, Stage};
use crate::sampler::{GroupNow, Snapshot, TopicNow};
use crate::server::Console;
use crate::visitor::SignedIn;

type Answered<T> = Result<Json<T>, Refusal>;

/// Every address, what it is for, and what answers there: the router and the document are both made
/// of this.
fn endpoints() -> Vec<(Endpoint, MethodRouter<Arc<Console>>)> {
    let read = |path, summary| Endpoint::read(path, summary);
    vec![
        (
            read("/overview", "Everything that was seen at the last look at the server"),
            get(overview),
        ),
        (read("/topics", "The topics, how much they hold, and how that changes"), get(topics)),
        (read("/topics/{topic}", "A topic with its settings"), get(topic)),
        (
            Endpoint::change(
                "/topics/{topic}/access",
                "Set what may be done with a topic",
                Role::Operator,
            )
            .with_fields(&["access"]),
            post(set_access),
        ),
        (
            read("/messages", "Search the messages of a topic").with_fields(&[
                "topic",
                "id",
                "biz_id",
                "key",
                "state",
                "within",
                "older_than",
                "error",
                "header",
                "offset",
                "after",
            ]),
            get(messages),
        ),
        (
            read(
                "/messages/{topic}/{id}",
                "Everything that is known of a message, without its body",
            ),
            get(message),
        ),
        (
            Endpoint::change(
                "/dead/{topic}/redrive",
                "Begin to make dead letters ready again",
                Role::Operator,
            )
            .with_fields(&["error", "cause", "within", "older_than", "all"]),
            post(redrive),
        ),
        (
            Endpoint::change(
                "/dead/{topic}/purge",
                "Begin to delete dead letters for ever",
                Role::Admin,
            )
            .with_fields(&["error", "cause", "within", "older_than", "all"]),
            post(purge),
        ),
        (read("/runs/{id}", "How far such a change has come"), get(run)),
        (read("/groups", "The groups of streams, and how far they have come"), get(groups)),
        (read("/workers", "The workers that are alive, and what tells so"), get(workers)),
        (read("/duties", "What each duty of the janitor did last"), get(duties)),
        (
            read("/audit", "Who has changed what, the newest first").with_fields(&["before"]),
            get(audit),
        ),
        (
            read("/live", "An event `look` after each look at the server (server-sent events)"),
            get(live),
        ),
        (read("/openapi.json", "This document"), get(document)),
    ]
}

pub(crate) fn routes() -> Router<Arc<Console>> {
    let mut router = Router::new();
    for (endpoint, answer) in endpoints() {
        router = router.route(endpoint.path, answer);
    }
    router.fallback(page::not_found).layer(map_response(as_json))
}

/// A refusal of a page is a sentence of the API.
async fn as_json(response: Response) -> Response {
    let Some(Said(sentence)) = response.extensions().get().cloned() else { return response };
    let status = response.status();
    // Who is not signed in is led to a page otherwise.
    let status = if status.is_redirection() { StatusCode::UNAUTHORIZED } else { status };
    (status, Json(json!({ "error": sentence }))).into_response()
}

async fn overview(State(console): At, _: SignedIn) -> Json<Snapshot> {
    Json(Snapshot::clone(&console.live.now()))
}

async fn topics(State(console): At, _: SignedIn) -> Json<Vec<TopicNow>> {
    Json(console.live.now().topics.clone())
}

async fn topic(State(console): At, _: SignedIn, Path(name): Path<String>) -> Answered<TopicNow> {
    let name = topic_name(&name)?;
    Ok(Json(console.live.topic(&name).await?))
}

#[derive(Debug, Serialize)]
struct Set {
    access: Access,
}

async fn set_access(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<SetAccess>,
) -> Answered<Set> {
    let access = asked.what.access;
    set(&console, &asked.by, topic_name(&name)?, access).await?;
    Ok(Json(Set { access }))
}

async fn messages(
    State(console): At,
    _: SignedIn,
    Fields(wanted): Fields<Wanted>,
) -> Answered<Answer> {
    let search = wanted.understood()?;
    let found = console.database.search(|session| Box::pin(search.run(session))).await?;
    Ok(Json(found.1))
}

async fn message(
    State(console): At,
    _: SignedIn,
    Path((name, id)): Path<(String, String)>,
) -> Answered<Story> {
    let (name, id) = (topic_name(&name)?, msg_id(&id)?);
    Ok(Json(known(&console, name, id, Bodies::Leave).await?.story))
}

#[derive(Debug, Serialize)]
struct RunNow {
    id: uuid::Uuid,
    action: Action,
    topic: queue_core::TopicName,
    by: String,
    about: u64,
    #[serde(flatten)]
    stage: Stage,
}

impl RunNow {
    fn of(run: &Run) -> Json<Self> {
        let (topic, by) = (run.topic.clone(), run.by.clone());
        Json(Self {
            id: run.id,
            action: run.action,
            topic,
            by,
            about: run.about,
            stage: run.stage(),
        })
    }
}

async fn redrive(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Redrive>,
) -> Answered<RunNow> {
    let run = begin(&console, &asked.by, &name, asked.what.0, Action::Redrive).await?;
    Ok(RunNow::of(&run))
}

async fn purge(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Purge>,
) -> Answered<RunNow> {
    let run = begin(&console, &asked.by, &name, asked.what.0, Action::PurgeDead).await?;
    Ok(RunNow::of(&run))
}

#[derive(Debug, Deserialize)]
struct RunId {
    id: uuid::Uuid,
}

async fn run(State(console): At, _: SignedIn, Path(RunId { id }): Path<RunId>) -> Answered<RunNow> {
    let run = console.runs.find(id);
    let run = run.ok_or_else(|| Refusal::NotFound(format!("There is no run {id}.")))?;
    Ok(RunNow::of(&run))
}

async fn groups(State(console): At, _: SignedIn) -> Json<Vec<GroupNow>> {
    Json(console.live.now().groups.clone())
}

async fn workers(State(console): At, _: SignedIn) -> Json<Vec<WorkerStanding>> {
    Json(console.live.now().workers.clone())
}

async fn duties(State(console): At, _: SignedIn) -> Json<Vec<DutyStanding>> {
    Json(console.live.now().duties.clone())
}

async fn audit(
    State(console): At,
    _: SignedIn,
    Fields(from): Fields<From>,
) -> Answered<Vec<Entry>> {
    Ok(Json(entries(&console, &from).await?))
}

/// One event a look, until the console ends: what the look has seen is asked for by whoever wants
/// it, and costs the server nothing.
async fn live(
    State(console): At,
    _: SignedIn,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let looks = stream::unfold(console.live.follow(), async |mut looks| {
        looks.changed().await.ok()?;
        let no = looks.borrow_and_update().no;
        Some((Ok(Event::default().event("look").data(no.to_string())), looks))
    });
    let ending = console.ending.clone();
    Sse::new(looks.take_until(async move { ending.cancelled().await }))
        .keep_alive(KeepAlive::default())
}

async fn document(_: SignedIn) -> Json<serde_json::Value> {
    Json(openapi::document(endpoints().iter().map(|(endpoint, _)| endpoint)))
}
