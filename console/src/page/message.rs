mod body;

use axum::extract::{Path, Query as Fields, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rowmq_core::connection::{Link, Session};
use rowmq_core::find::{Query, Searched, find};
use rowmq_core::model::found::{Filter, Found, State as MessageState};
use rowmq_core::model::trace::Record;
use rowmq_core::model::{Action, Change};
use rowmq_core::store::find::Bodies;
use rowmq_core::trace::{MessageHistory, tell};
use rowmq_core::{Moment, MsgId, TopicName, cancel as take_back, dead, reschedule};
use serde::Deserialize;

use self::body::{Shape, shown};
use super::messages::{msg_id, sentence};
use super::{At, Page, layout, topic_name, topic_of};
use crate::asked::{Ask, Asked};
use crate::refusal::Refusal;
use crate::role::Role;
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

/// The most places shown: a message may be in a stream's log and in its groups' own topics.
const PLACES: usize = 20;

/// How the body is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct As {
    #[serde(rename = "as")]
    shape: Shape,
}

/// All that is known of a message, and its body if the user may see it.
pub(crate) struct Known {
    pub(crate) message: MessageHistory,
    pub(crate) body: Option<Vec<u8>>,
}

pub(crate) async fn known(
    console: &Console,
    name: TopicName,
    id: MsgId,
    bodies: Bodies,
) -> Result<Known, Refusal> {
    let read = console.database.read(move |session| Box::pin(read(session, name, id, bodies)));
    let known = read.await?;
    if known.message.found.is_empty() && known.message.events.is_empty() {
        return Err(Refusal::NotFound(format!(
            "There is no message {id} there any more, and it has left no trace: it was handled and not kept, or never enqueued."
        )));
    }
    Ok(known)
}

async fn read(
    session: &mut Session,
    name: TopicName,
    id: MsgId,
    bodies: Bodies,
) -> rowmq_core::Result<Known> {
    let topic = topic_of(session, name).await?;
    let message = tell(session, Some(topic.clone()), id).await?;
    let filter = Filter { msg_id: Some(id), ..Filter::default() };
    let query = Query { filter, after: None, limit: PLACES, bodies };
    let body = match bodies {
        Bodies::Leave => None,
        Bodies::Read => {
            let found = find(session, &topic, &query).await?.found;
            found.into_iter().find_map(|found| found.trace?.body)
        }
    };
    Ok(Known { message, body })
}

fn bodies_for(console: &Console, by: &SignedIn) -> Bodies {
    if console.rules.sees_bodies(by.login.role) { Bodies::Read } else { Bodies::Leave }
}

fn not_found(message: &MessageHistory) -> Markup {
    if message.searched.iter().all(Searched::is_whole) {
        return show::nothing(
            "It is nowhere any more: it was handled, cancelled or purged, and is not kept.",
        );
    }
    html! {
        (show::nothing("It was not found, and not everything was searched. Of a topic that is searchable (rowmq topic set NAME --searchable) it would be."))
        ul class="hint" { @for searched in &message.searched { li { (sentence(searched)) } } }
    }
}

pub(crate) async fn show(
    State(console): At,
    by: SignedIn,
    Path((name, id)): Path<(String, String)>,
    Fields(As { shape }): Fields<As>,
) -> Page {
    let (name, id) = (topic_name(&name)?, msg_id(&id)?);
    let bodies = bodies_for(&console, &by);
    let Known { message, body } = known(&console, name.clone(), id, bodies).await?;
    let content = html! {
        p { "In " (show::topic(&name)) ", " code { (id) } }
        @if message.found.is_empty() { (not_found(&message)) }
        @for found in &message.found { (place(&by, found)) }
        @if !message.groups.is_empty() {
            h2 { "Groups" }
            ul { @for part in &message.groups { li { (show::topic(&part.group)) ": " (group_part(&part.part)) } } }
        }
        h2 { "Body" }
        @match (&body, bodies) {
            (Some(body), _) => (shown(&name, id, body, shape)),
            (None, Bodies::Leave) => (show::nothing("Bodies are not shown to viewers here: it takes the role operator.")),
            (None, Bodies::Read) => (show::nothing("Nothing of it is kept.")),
        }
        (history(&message.found))
        (events(&message))
    };
    Ok(layout(&console, &by, "/messages", "Message", &content))
}

fn place(by: &SignedIn, found: &Found) -> Markup {
    html! {
        section class="place" {
            p { (show::state(&found.state)) " in " a href={ "/topics/" (found.topic) } { (found.topic) } }
            table class="settings" {
                tbody {
                    tr { th scope="row" { "enqueued" } td { (show::time(found.enqueued_at)) } }
                    @if let Some(key) = &found.key { tr { th scope="row" { "key" } td { (key) } } }
                    @if let Some(biz_id) = &found.biz_id { tr { th scope="row" { "business id" } td { (biz_id) } } }
                    @if let Some(trace) = &found.trace {
                        tr { th scope="row" { "priority" } td { (trace.priority) } }
                        tr { th scope="row" { "deliveries" } td { (trace.delivery_no) } }
                        tr { th scope="row" { "failures" } td { (trace.failures) } }
                        tr { th scope="row" { "crashes" } td { (trace.crashes) } }
                        @if let Some(error) = &trace.error { tr { th scope="row" { "last error" } td { pre { (error) } } } }
                        @for (name, value) in &trace.headers.0 { tr { th scope="row" { "header " (name) } td { (value) } } }
                        tr { th scope="row" { "body" } td { (show::size(trace.body_bytes)) } }
                    }
                }
            }
            (actions(by, found))
        }
    }
}

fn actions(by: &SignedIn, found: &Found) -> Markup {
    let action = |verb: &str| format!("/messages/{}/{}/{verb}", found.topic, found.msg_id);
    html! {
        div class="acts" {
            @match found.state {
                MessageState::Dead { .. } => {
                    @if by.may(Redrive::NEEDS) { (show::button(&by.login, &action("redrive"), "Redrive", "", &[])) }
                    @if by.may(Purge::NEEDS) { " " (show::button(&by.login, &action("purge"), "Delete for ever", "danger", &[])) }
                }
                MessageState::Scheduled { .. } => {
                    @if by.may(Deliver::NEEDS) { (show::button(&by.login, &action("deliver"), "Deliver now", "", &[])) }
                    @if by.may(Cancel::NEEDS) { " " (show::button(&by.login, &action("cancel"), "Cancel", "danger", &[])) }
                }
                _ => {}
            }
        }
    }
}

fn group_part(part: &rowmq_core::model::GroupPart) -> String {
    use rowmq_core::model::GroupPart;
    match part {
        GroupPart::Ahead => "has not come so far".to_owned(),
        GroupPart::Claimed { worker, client_id, .. } => {
            format!("worker {worker} ({client_id}) has it")
        }
        GroupPart::Waiting => "is to claim it again".to_owned(),
        GroupPart::Passed => "is through with it".to_owned(),
    }
}

fn history(found: &[Found]) -> Markup {
    let runs: Vec<_> =
        found.iter().filter_map(|it| it.trace.as_ref()).flat_map(|it| &it.history).collect();
    html! {
        @if !runs.is_empty() {
            h2 { "Failed runs" }
            (show::wide("Failed runs", &html! {
                table {
                    thead { tr { th class="n" { "Delivery" } th class="n" { "Worker" } th { "Failed" } th { "Error" } } }
                    tbody {
                        @for run in runs {
                            tr { td class="n" { (run.delivery_no) } td class="n" { (run.worker) } td { (show::time(run.at)) } td class="error" { (run.error) } }
                        }
                    }
                }
            }))
        }
    }
}

fn events(message: &MessageHistory) -> Markup {
    html! {
        h2 { "Trace" }
        @if message.events.is_empty() {
            (show::nothing("It has left no trace: `rowmq topic set NAME --trace all` records messages from then on."))
        } @else {
            ol class="timeline" { @for event in &message.events { (line(event)) } }
        }
    }
}

fn line(event: &Record) -> Markup {
    html! {
        li {
            (show::time(event.at)) " " strong { (event.event.word()) }
            @if let Some(outcome) = &event.outcome { ": " (outcome) }
            @if event.delivery_no.0 > 0 { ", delivery " (event.delivery_no) }
            @if let Some(worker) = event.worker { ", worker " (worker) }
            @if let Some(client) = &event.client { " (" (client) ")" }
            ", connection " (event.conn)
            @if !event.topic.is_empty() { ", " (event.topic) }
            @if let Some(error) = &event.error { pre { (error) } }
        }
    }
}

/// The body as it is, as a download: the browser itself never shows it.
pub(crate) async fn body(
    State(console): At,
    by: SignedIn,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let (name, id) = (topic_name(&name)?, msg_id(&id)?);
    if bodies_for(&console, &by) == Bodies::Leave {
        return Err(Refusal::Forbidden { needs: Role::Operator });
    }
    let known = known(&console, name, id, Bodies::Read).await?;
    let gone = || Refusal::NotFound(format!("Nothing of the body of {id} is kept."));
    let headers: [(HeaderName, String); 2] = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{id}.body\"")),
    ];
    Ok((StatusCode::OK, headers, known.body.ok_or_else(gone)?).into_response())
}

macro_rules! asks {
    ($($(#[$doc:meta])* $name:ident by $role:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        pub(crate) struct $name {}

        impl Ask for $name {
            const NEEDS: Role = $role;
        }
    )* };
}

asks! {
    /// Makes a dead letter ready again.
    Redrive by Role::Operator;
    /// Deletes a dead letter.
    Purge by Role::Admin;
    /// Has a scheduled message delivered at once.
    Deliver by Role::Operator;
    /// Takes a scheduled message back.
    Cancel by Role::Admin;
}

/// Changes one message and writes the audit, in one transaction, then redirects to its page.
async fn change(
    console: &Console,
    by: &SignedIn,
    (name, id): (String, String),
    action: Action,
) -> Result<Redirect, Refusal> {
    let (name, id) = (topic_name(&name)?, msg_id(&id)?);
    let change = Change {
        actor: by.actor(),
        action,
        target: name.to_string(),
        detail: Some(id.to_string()),
    };
    let topic = name.clone();
    let done = console.database.write(move |session| {
        Box::pin(async move {
            let topic = topic_of(session, topic).await?;
            let now = Moment::After(std::time::Duration::ZERO);
            let work = async |conn: &mut Link| match change.action {
                Action::Redrive => dead::redrive_message(conn, &topic, id).await,
                Action::PurgeDead => dead::purge_message(conn, topic.id, id).await,
                Action::Cancel => take_back(conn, &topic.name, id).await.map(usize::from),
                _ => reschedule(conn, &topic.name, id, now).await.map(usize::from),
            };
            change.make_counted(session, "change the message", work).await
        })
    });
    if done.await? == 0 {
        return Err(Refusal::Wrong(format!(
            "The message {id} is not there any more, in the state that the page showed: look for it again."
        )));
    }
    console.live.look_again().await;
    Ok(Redirect::to(&format!("/messages/{name}/{id}")))
}

pub(crate) async fn redrive(
    State(console): At,
    Path(at): Path<(String, String)>,
    asked: Asked<Redrive>,
) -> Result<Redirect, Refusal> {
    change(&console, &asked.by, at, Action::Redrive).await
}

/// Deletes a dead letter; it has no page any more.
pub(crate) async fn purge(
    State(console): At,
    Path(at): Path<(String, String)>,
    asked: Asked<Purge>,
) -> Result<Redirect, Refusal> {
    let dead = format!("/dead/{}", at.0);
    change(&console, &asked.by, at, Action::PurgeDead).await.map(|_| Redirect::to(&dead))
}

pub(crate) async fn deliver(
    State(console): At,
    Path(at): Path<(String, String)>,
    asked: Asked<Deliver>,
) -> Result<Redirect, Refusal> {
    change(&console, &asked.by, at, Action::Reschedule).await
}

pub(crate) async fn cancel(
    State(console): At,
    Path(at): Path<(String, String)>,
    asked: Asked<Cancel>,
) -> Result<Redirect, Refusal> {
    let scheduled = format!("/scheduled/{}", at.0);
    change(&console, &asked.by, at, Action::Cancel).await.map(|_| Redirect::to(&scheduled))
}
