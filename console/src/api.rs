//! The JSON API: what the pages show and what they change, for scripts and for the pages' live
//! parts. The document at `/api/v1/openapi.json` describes it.

mod endpoint;
mod openapi;
mod schemas;

use std::sync::{Arc, LazyLock};

use axum::extract::{Path, Query as Fields};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures_util::{Stream, stream};
use rowmq_core::find::Answer;
use rowmq_core::inspect::{DutyReport, WorkerStatus};
use rowmq_core::model::{Access, Action, Entry};
use rowmq_core::store::find::Bodies;
use rowmq_core::trace::MessageHistory;
use rowmq_core::{MsgId, TopicName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::endpoint::Endpoint;
use self::openapi::Document;
use crate::asked::Asked;
use crate::page::audit::{From, entries};
use crate::page::dead::{Purge, Redrive, begin};
use crate::page::message::known;
use crate::page::messages::{Wanted, msg_id};
use crate::page::topic_name;
use crate::page::topics::{SetAccess, set};
use crate::refusal::{self, Refusal, RefusalText};
use crate::runs::{Run, Stage};
use crate::sampler::{GroupNow, Snapshot, TopicNow};
use crate::state::Console;

type Answered<T> = Result<T, Refusal>;

/// All addresses: both the router and the document are built from this list.
fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::read(
            "overview",
            "/overview",
            "Everything that was seen at the last look at the server",
            overview,
        ),
        Endpoint::read(
            "topics",
            "/topics",
            "The topics, how much they hold, and how that changes",
            topics,
        ),
        Endpoint::read("topic", "/topics/{topic}", "A topic with its settings", topic),
        Endpoint::change(
            "set_access",
            "/topics/{topic}/access",
            "Set what may be done with a topic",
            set_access,
        ),
        Endpoint::read("messages", "/messages", "Search the messages of a topic", messages),
        Endpoint::read(
            "message",
            "/messages/{topic}/{id}",
            "Everything that is known of a message, without its body",
            message,
        ),
        Endpoint::change(
            "redrive",
            "/dead/{topic}/redrive",
            "Begin to make dead letters ready again",
            redrive,
        ),
        Endpoint::change(
            "purge",
            "/dead/{topic}/purge",
            "Begin to delete dead letters for ever",
            purge,
        ),
        Endpoint::read("run", "/runs/{id}", "How far such a change has come", run),
        Endpoint::read(
            "groups",
            "/groups",
            "The groups of streams, and how far they have come",
            groups,
        ),
        Endpoint::read(
            "workers",
            "/workers",
            "The workers that are alive, and the signs of it",
            workers,
        ),
        Endpoint::read("duties", "/duties", "What each duty of the janitor did last", duties),
        Endpoint::read("audit", "/audit", "Who has changed what, the newest first", audit),
        Endpoint::events(
            "live",
            "/live",
            "An event `look` after each look at the server (server-sent events)",
            live,
        ),
        Endpoint::read("document", "/openapi.json", "This document", document),
    ]
}

pub(crate) fn routes() -> Router<Arc<Console>> {
    let mut router = Router::new();
    for endpoint in endpoints() {
        router = router.route(endpoint.path, endpoint.router);
    }
    router.fallback(refusal::no_such_page).layer(map_response(as_json))
}

/// Why a request is refused.
#[derive(Debug, Serialize, JsonSchema)]
struct Refused {
    /// What is wrong, where, and what to do next, in one sentence.
    error: String,
}

/// Answers a page's refusal with its sentence as JSON.
async fn as_json(response: Response) -> Response {
    let Some(RefusalText(error)) = response.extensions().get().cloned() else { return response };
    let status = response.status();
    // A page would redirect a user who is not signed in.
    let status = if status.is_redirection() { StatusCode::UNAUTHORIZED } else { status };
    (status, Json(Refused { error })).into_response()
}

async fn overview(console: Arc<Console>, (): ()) -> Answered<Snapshot> {
    Ok(Snapshot::clone(&console.live.now()))
}

async fn topics(console: Arc<Console>, (): ()) -> Answered<Vec<TopicNow>> {
    Ok(console.live.now().topics.clone())
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OfTopic {
    /// The topic's name.
    #[schemars(with = "TopicName")]
    topic: String,
}

async fn topic(console: Arc<Console>, Path(of): Path<OfTopic>) -> Answered<TopicNow> {
    let name = topic_name(&of.topic)?;
    Ok(console.live.topic(&name).await?)
}

/// What was set.
#[derive(Debug, Serialize, JsonSchema)]
struct Set {
    /// What may be done with the topic from now on.
    access: Access,
}

async fn set_access(
    console: Arc<Console>,
    Path(of): Path<OfTopic>,
    asked: Asked<SetAccess>,
) -> Answered<Set> {
    let access = asked.what.access;
    set(&console, &asked.by, topic_name(&of.topic)?, access).await?;
    Ok(Set { access })
}

async fn messages(console: Arc<Console>, Fields(wanted): Fields<Wanted>) -> Answered<Answer> {
    let search = wanted.understood()?;
    Ok(search.run(&console.database).await?.1)
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OfMessage {
    /// The topic's name.
    #[schemars(with = "TopicName")]
    topic: String,
    /// The message id.
    #[schemars(with = "MsgId")]
    id: String,
}

async fn message(console: Arc<Console>, Path(of): Path<OfMessage>) -> Answered<MessageHistory> {
    let (name, id) = (topic_name(&of.topic)?, msg_id(&of.id)?);
    Ok(known(&console, name, id, Bodies::Leave).await?.message)
}

/// A change of many messages, which goes on whether a client watches or not.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Run")]
struct RunNow {
    /// Its id in `/runs/{id}`, until the console ends.
    id: Uuid,
    /// What it does.
    action: Action,
    /// The topic of the messages.
    topic: TopicName,
    /// The user who started it.
    by: String,
    /// How many messages it may concern, as counted when it started.
    about: u64,
    #[serde(flatten)]
    stage: Stage,
}

impl RunNow {
    fn of(run: &Run) -> Self {
        let (topic, by) = (run.topic.clone(), run.by.clone());
        Self { id: run.id, action: run.action, topic, by, about: run.about, stage: run.stage() }
    }
}

async fn redrive(
    console: Arc<Console>,
    Path(of): Path<OfTopic>,
    asked: Asked<Redrive>,
) -> Answered<RunNow> {
    let run = begin(&console, &asked.by, &of.topic, asked.what.0, Action::Redrive).await?;
    Ok(RunNow::of(&run))
}

async fn purge(
    console: Arc<Console>,
    Path(of): Path<OfTopic>,
    asked: Asked<Purge>,
) -> Answered<RunNow> {
    let run = begin(&console, &asked.by, &of.topic, asked.what.0, Action::PurgeDead).await?;
    Ok(RunNow::of(&run))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OfRun {
    /// The `id` from the answer that started it.
    id: Uuid,
}

async fn run(console: Arc<Console>, Path(of): Path<OfRun>) -> Answered<RunNow> {
    let run = console.runs.find(of.id);
    let run = run.ok_or_else(|| Refusal::NotFound(format!("There is no run {}.", of.id)))?;
    Ok(RunNow::of(&run))
}

async fn groups(console: Arc<Console>, (): ()) -> Answered<Vec<GroupNow>> {
    Ok(console.live.now().groups.clone())
}

async fn workers(console: Arc<Console>, (): ()) -> Answered<Vec<WorkerStatus>> {
    Ok(console.live.now().workers.clone())
}

async fn duties(console: Arc<Console>, (): ()) -> Answered<Vec<DutyReport>> {
    Ok(console.live.now().duties.clone())
}

async fn audit(console: Arc<Console>, Fields(from): Fields<From>) -> Answered<Vec<Entry>> {
    entries(&console, &from).await
}

/// Sends one event for each look. A client that wants the look's data requests it, which costs the
/// server nothing.
fn live(console: &Console) -> impl Stream<Item = Event> + use<> {
    stream::unfold(console.live.follow(), async |mut looks| {
        looks.changed().await.ok()?;
        let no = looks.borrow_and_update().no;
        Some((Event::default().event("look").data(no.to_string()), looks))
    })
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| Document::of(&endpoints()));

async fn document(_: Arc<Console>, (): ()) -> Answered<Document> {
    Ok(DOCUMENT.clone())
}
