//! The pages. Each is readable without scripts; every change is made by a form.

pub(crate) mod audit;
pub(crate) mod dead;
pub(crate) mod groups;
mod janitor;
pub(crate) mod message;
pub(crate) mod messages;
mod overview;
mod recurring;
mod run;
mod scheduled;
mod sign_in;
pub(crate) mod topics;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::{DOCTYPE, Markup, html};
use rowmq_core::connection::{Link, Session};
use rowmq_core::{Topic, TopicName, store};

use crate::assets;
use crate::frame::head;
use crate::refusal::{Refusal, no_such_page};
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

pub(crate) type Page = Result<Markup, Refusal>;
pub(crate) type At = State<Arc<Console>>;

/// The pages in the navigation: their address, their name, and the key that leads there after `g`.
const PLACES: [(&str, &str, &str); 10] = [
    ("/", "Overview", "o"),
    ("/topics", "Topics", "t"),
    ("/messages", "Messages", "m"),
    ("/dead", "Dead letters", "d"),
    ("/scheduled", "Scheduled", "s"),
    ("/recurring", "Recurring", "r"),
    ("/groups", "Groups", "p"),
    ("/workers", "Workers", "w"),
    ("/janitor", "Janitor", "j"),
    ("/audit", "Audit", "a"),
];

pub(crate) fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/topics", get(topics::list))
        .route("/topics/{topic}", get(topics::show))
        .route("/topics/{topic}/access", post(topics::set_access))
        .route("/messages", get(messages::search))
        .route("/messages/{topic}/{id}", get(message::show))
        .route("/messages/{topic}/{id}/body", get(message::body))
        .route("/messages/{topic}/{id}/redrive", post(message::redrive))
        .route("/messages/{topic}/{id}/purge", post(message::purge))
        .route("/messages/{topic}/{id}/cancel", post(message::cancel))
        .route("/messages/{topic}/{id}/deliver", post(message::deliver))
        .route("/dead", get(dead::list))
        .route("/dead/{topic}", get(dead::show))
        .route("/dead/{topic}/redrive", post(dead::redrive))
        .route("/dead/{topic}/purge", post(dead::purge))
        .route("/runs/{id}", get(run::show))
        .route("/scheduled", get(scheduled::list))
        .route("/scheduled/{topic}", get(scheduled::show))
        .route("/recurring", get(recurring::list))
        .route("/recurring/{name}/pause", post(recurring::pause))
        .route("/recurring/{name}/resume", post(recurring::resume))
        .route("/groups", get(groups::list))
        .route("/groups/{group}", get(groups::show))
        .route("/groups/{group}/reset", post(groups::reset))
        .route("/groups/{group}/replay", post(groups::replay))
        .route("/workers", get(workers::list))
        .route("/janitor", get(janitor::list))
        .route("/audit", get(audit::list))
        .route("/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/assets/{name}", get(asset))
}

async fn asset(Path(name): Path<String>) -> Result<Response, Refusal> {
    let Some((kind, text)) = assets::find(&name) else { return Err(no_such_page().await) };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "private, max-age=3600")];
    Ok((headers, text).into_response())
}

/// The topic that a page's address names.
pub(crate) async fn topic_of(session: &mut Session, name: TopicName) -> rowmq_core::Result<Topic> {
    let read = async |conn: &mut Link| store::topic::existing(conn, &name).await;
    session.call("read the topic", read).await
}

pub(crate) fn topic_name(text: &str) -> Result<TopicName, Refusal> {
    Ok(TopicName::new(text)?)
}

/// Names the server of a search, if it is a replica.
fn searched(console: &Console) -> Markup {
    html! {
        @if let Some(replica) = &console.rules.replica {
            p class="hint" {
                "Searched in the replica " (replica.server())
                ": what was changed a moment ago may not be there yet."
            }
        }
    }
}

/// The layout of a page for a signed-in user. `place` is the one of [`PLACES`] that it belongs to.
fn layout(console: &Console, by: &SignedIn, place: &str, title: &str, content: &Markup) -> Markup {
    let live = console.live.now();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (head(title))
                script src=(assets::href("console.js")) defer {}
            }
            body data-csrf=(by.login.csrf) {
                a class="skip" href="#content" { "To the content" }
                header {
                    nav aria-label="Pages" {
                        @for (href, name, key) in PLACES {
                            a href=(href) data-key=(key) aria-current=[(href == place).then_some("page")] {
                                (name)
                            }
                        }
                    }
                    div class="who" {
                        span title="The database" { (console.place) }
                        span { (by.login.name) " (" (by.login.role) ")" }
                        @if !by.login.by_proxy { (show::button(&by.login, "/sign-out", "Sign out", "quiet", &[])) }
                    }
                }
                div id="failure" data-live {
                    @if let Some(failure) = &live.failure {
                        p class="failure" role="alert" {
                            "The server does not answer; what is shown is of " (show::maybe_time(live.at)) ". " (failure)
                        }
                    }
                }
                main id="content" {
                    h1 { (title) }
                    (content)
                }
                footer {
                    span id="seen" data-live { "Seen " (show::maybe_time(live.at)) " in " (live.took_ms) " ms" }
                    span { kbd { "/" } " search  " kbd { "g" } " and a letter: a page  " kbd { "?" } " keys" }
                }
            }
        }
    }
}
