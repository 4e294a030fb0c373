use axum::extract::{Path, Query as Fields, State};
use axum::response::Redirect;
use maud::{Markup, html};
use rowmq_core::connection::{Link, Session};
use rowmq_core::dead::{self, Listed};
use rowmq_core::find::between;
use rowmq_core::model::{Action, Change, DeadCause};
use rowmq_core::store::dead::{self as stored, DeadError, DeadFilter, DeadLetter, ERRORS_OF};
use rowmq_core::{Topic, TopicName};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::messages::time;
use super::{At, Page, layout, searched, topic_name, topic_of};
use crate::asked::{Ask, Asked};
use crate::refusal::Refusal;
use crate::role::Role;
use crate::show;
use crate::state::Console;
use crate::visitor::SignedIn;

/// How many errors and dead letters a page shows.
const ERRORS: u32 = 20;
const LETTERS: usize = 50;

/// How many dead letters a page examines to find the matching ones, as a search of messages does.
const AMONG: usize = 10_000;

/// Which dead letters. Empty fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Which {
    /// Those whose last error contains this text.
    // A form sends it with other line endings than the error has.
    #[serde(deserialize_with = "lines")]
    #[schemars(with = "String")]
    error: String,
    /// Those that died of this cause.
    #[serde(deserialize_with = "trimmed")]
    #[schemars(with = "DeadCause")]
    cause: String,
    /// Those that died within this time: `2h`.
    #[serde(deserialize_with = "trimmed")]
    #[schemars(with = "String")]
    within: String,
    /// Those that died longer ago than this: `30d`.
    #[serde(deserialize_with = "trimmed")]
    #[schemars(with = "String")]
    older_than: String,
    /// Selects all dead letters; leaving every field empty does not.
    all: bool,
}

fn lines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(String::deserialize(deserializer)?.replace("\r\n", "\n"))
}

/// A blank field is ignored, and must not come to mean everything.
fn trimmed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(String::deserialize(deserializer)?.trim().to_owned())
}

impl Which {
    fn is_named(&self) -> bool {
        self.all
            || [&self.error, &self.cause, &self.within, &self.older_than]
                .iter()
                .any(|it| !it.is_empty())
    }

    fn words(&self) -> String {
        let fields = [
            ("error has", &self.error),
            ("cause", &self.cause),
            ("within", &self.within),
            ("older than", &self.older_than),
        ];
        let named = fields.iter().filter(|(_, value)| !value.is_empty());
        let words: Vec<_> = named.map(|(name, value)| format!("{name} {value}")).collect();
        if words.is_empty() { "all".to_owned() } else { words.join(", ") }
    }

    fn cause(&self) -> Result<Option<DeadCause>, Refusal> {
        if self.cause.is_empty() {
            return Ok(None);
        }
        let known = DeadCause::ALL.into_iter().find(|cause| cause.stored() == self.cause);
        let wrong = || {
            Refusal::Wrong(format!(
                "'{}' is no cause of death: choose one of the list.",
                self.cause
            ))
        };
        known.map(Some).ok_or_else(wrong)
    }
}

/// The topic and the filter for its dead letters, by the server's clock.
async fn filter(
    session: &mut Session,
    name: TopicName,
    which: &Which,
    cause: Option<DeadCause>,
    times: (Option<std::time::Duration>, Option<std::time::Duration>),
) -> rowmq_core::Result<(Topic, DeadFilter)> {
    let topic = topic_of(session, name).await?;
    let (since, before) = between(session, times.0, times.1).await?;
    let error = Some(which.error.clone()).filter(|error| !error.is_empty());
    Ok((topic, DeadFilter { since, before, cause, error, msg_id: None }))
}

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let mut topics: Vec<_> = live.topics.iter().filter(|one| one.depth.dead > 0).collect();
    topics.sort_by_key(|one| std::cmp::Reverse(one.depth.dead));
    let content = html! {
        div id="dead" data-live {
            @if topics.is_empty() {
                (show::nothing("No message is dead: what failed was tried again, or is still to be."))
            } @else {
                (show::wide("Topics", &html! {
                    table {
                        thead { tr { th { "Topic" } th class="n" { "Dead letters" } } }
                        tbody {
                            @for one in topics {
                                tr {
                                    td { a href={ "/dead/" (one.topic.name) } { (one.topic.name) } }
                                    td class="n" { (show::capped(one.depth.dead)) }
                                }
                            }
                        }
                    }
                }))
            }
        }
        (super::run::list(&console))
    };
    Ok(layout(&console, &by, "/dead", "Dead letters", &content))
}

pub(crate) async fn show(
    State(console): At,
    by: SignedIn,
    Path(name): Path<String>,
    Fields(which): Fields<Which>,
) -> Page {
    let name = topic_name(&name)?;
    let (cause, times) = (which.cause()?, (time(&which.within)?, time(&which.older_than)?));
    let (wanted, of) = (which.clone(), name.clone());
    let meant = console.database.read(move |session| {
        Box::pin(async move { filter(session, of, &wanted, cause, times).await })
    });
    let (topic, filter) = meant.await?;
    let read = console.database.search(move |session| {
        Box::pin(async move {
            let errors = async |conn: &mut Link| stored::errors(conn, topic.id, ERRORS).await;
            let errors = session.call("group the dead letters", errors).await?;
            Ok((errors, dead::list_among(session, topic.id, &filter, LETTERS, AMONG).await?))
        })
    });
    let (errors, Listed { letters, stopped_after }) = read.await?;
    let content = html! {
        p { "Of " (show::topic(&name)) }
        (by_error(&by, &name, &errors))
        (form(&which))
        @if which.is_named() || !letters.is_empty() { (bulk(&by, &name, &which)) }
        (table(&name, &letters))
        @if let Some(seen) = stopped_after {
            p class="hint" {
                "Looked for among the first " (show::number(seen as u64)) " of that time. "
                a href={ "/messages?" (everywhere(&name, &which)) } { "Search the others" }
                ", page by page, of whatever cause and whenever they died; what is redriven or deleted \
                 is looked for among all."
            }
        }
        (searched(&console))
    };
    Ok(layout(&console, &by, "/dead", "Dead letters", &content))
}

fn by_error(by: &SignedIn, name: &TopicName, errors: &[DeadError]) -> Markup {
    html! {
        h2 { "By error" }
        @if errors.is_empty() {
            (show::nothing("It has no dead letters."))
        } @else {
            (show::wide("Errors", &html! {
                table {
                    thead { tr { th class="n" { "Letters" } th { "Cause" } th { "Error" } th { "Last died" } th { "Put back" } } }
                    tbody {
                        @for error in errors {
                            tr {
                                td class="n" { (show::number(error.letters)) }
                                td { (error.cause) }
                                td class="error" { @if error.error.is_empty() { em { "none" } } @else { a href={ "?" (query(error)) } { (error.error) } } }
                                td { (show::time(error.last_at)) }
                                td {
                                    @if by.may(Redrive::NEEDS) && !error.error.is_empty() {
                                        @let fields = [("error", error.error.as_str()), ("cause", error.cause.as_str())];
                                        (show::button(&by.login, &format!("/dead/{name}/redrive"), "Redrive these", "", &fields))
                                    }
                                }
                            }
                        }
                    }
                }
            }))
            p class="hint" { "Of the newest " (ERRORS_OF) " dead letters. Those are redriven whose last error has the text in it." }
        }
    }
}

/// The search of messages that finds the matching ones. It does not know the cause or the time of
/// death, only when messages were enqueued.
fn everywhere(name: &TopicName, which: &Which) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("topic", name.as_str()).append_pair("state", "dead");
    if !which.error.is_empty() {
        query.append_pair("error", &which.error);
    }
    query.finish()
}

fn query(error: &DeadError) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("error", &error.error).append_pair("cause", &error.cause).finish()
}

fn form(which: &Which) -> Markup {
    html! {
        h2 { "Letters" }
        form method="get" class="search" {
            label { "Error has" input name="error" value=(which.error); }
            label {
                "Cause"
                select name="cause" {
                    option value="" { "any" }
                    @for cause in DeadCause::ALL {
                        option selected[which.cause == cause.stored()] { (cause.stored()) }
                    }
                }
            }
            label { "Died within" input name="within" value=(which.within) placeholder="2h"; }
            label { "Died longer ago than" input name="older_than" value=(which.older_than) placeholder="30d"; }
            button type="submit" { "Show" }
        }
    }
}

/// The actions on all dead letters that the form selects.
fn bulk(by: &SignedIn, name: &TopicName, which: &Which) -> Markup {
    let all = if which.is_named() { "" } else { "true" };
    let mut fields = vec![
        ("error", which.error.as_str()),
        ("cause", which.cause.as_str()),
        ("within", which.within.as_str()),
        ("older_than", which.older_than.as_str()),
    ];
    if !all.is_empty() {
        fields.push(("all", all));
    }
    let what = if which.is_named() { "these" } else { "all" };
    html! {
        div class="acts" {
            @if by.may(Redrive::NEEDS) { (show::button(&by.login, &format!("/dead/{name}/redrive"), &format!("Redrive {what}"), "", &fields)) }
            @if by.may(Purge::NEEDS) { " " (show::button(&by.login, &format!("/dead/{name}/purge"), &format!("Delete {what} for ever"), "danger", &fields)) }
        }
    }
}

fn table(name: &TopicName, letters: &[DeadLetter]) -> Markup {
    html! {
        @if letters.is_empty() {
            (show::nothing("No such dead letter."))
        } @else {
            (show::wide("Letters", &html! {
                table {
                    thead { tr { th { "Message" } th { "Died" } th { "Cause" } th class="n" { "Failures" } th { "Key" } th { "Last error" } } }
                    tbody {
                        @for letter in letters {
                            tr {
                                td { a href={ "/messages/" (name) "/" (letter.msg_id) } { code { (letter.msg_id) } } }
                                td { (show::time(letter.died_at)) }
                                td { (letter.cause) }
                                td class="n" { (letter.failures) }
                                td { (letter.key.as_deref().unwrap_or_default()) }
                                td class="error" { (show::beginning(&letter.last_error, 120)) }
                            }
                        }
                    }
                }
            }))
            p class="hint" { "The first " (LETTERS) " in the order of their death." }
        }
    }
}

/// Makes dead letters ready again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Redrive(pub(crate) Which);

impl Ask for Redrive {
    const NEEDS: Role = Role::Operator;
}

/// Deletes dead letters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Purge(pub(crate) Which);

impl Ask for Purge {
    const NEEDS: Role = Role::Admin;
}

/// Starts a run on the selected dead letters.
pub(crate) async fn begin(
    console: &Console,
    by: &SignedIn,
    name: &str,
    which: Which,
    action: Action,
) -> Result<std::sync::Arc<crate::runs::Run>, Refusal> {
    let name = topic_name(name)?;
    if !which.is_named() {
        return Err(Refusal::Wrong("Say which dead letters, or that all are meant.".to_owned()));
    }
    let (cause, times) = (which.cause()?, (time(&which.within)?, time(&which.older_than)?));
    let about = console.live.now().topic(&name).map_or(0, |one| one.depth.dead);
    let change =
        Change { actor: by.actor(), action, target: name.to_string(), detail: Some(which.words()) };
    let read = console.database.read(move |session| {
        Box::pin(async move { filter(session, name, &which, cause, times).await })
    });
    let (topic, filter) = read.await?;
    console.runs.begin(&console.database, topic, filter, change, about)
}

pub(crate) async fn redrive(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Redrive>,
) -> Result<Redirect, Refusal> {
    let run = begin(&console, &asked.by, &name, asked.what.0, Action::Redrive).await?;
    Ok(Redirect::to(&format!("/runs/{}", run.id)))
}

pub(crate) async fn purge(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<Purge>,
) -> Result<Redirect, Refusal> {
    let run = begin(&console, &asked.by, &name, asked.what.0, Action::PurgeDead).await?;
    Ok(Redirect::to(&format!("/runs/{}", run.id)))
}
