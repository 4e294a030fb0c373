use axum::extract::{Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::model::{Access, Action, Change};
use rowmq_core::store;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{At, Page, layout, topic_name};
use crate::asked::{Ask, Asked};
use crate::refusal::Refusal;
use crate::role::Role;
use crate::sampler::{Rates, Snapshot, TopicNow};
use crate::show::{self, plot, spark};
use crate::state::Console;
use crate::visitor::SignedIn;

pub(crate) async fn list(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let topics: Vec<_> = live.topics.iter().filter(|one| one.topic.of_stream().is_none()).collect();
    let content = html! {
        div id="topics" data-live {
            @if topics.is_empty() {
                (show::nothing("There are no topics: create one with `rowmq topic create NAME`."))
            } @else {
                (show::wide("Topics", &html! {
                    table {
                        thead {
                            tr {
                                th { "Topic" } th { "Kind" } th { "Access" } th class="n" { "Not done" }
                                th class="n" { "Claimed" } th class="n" { "Scheduled" } th class="n" { "Dead" }
                                th class="n" { "Oldest" } th class="n" { "Change" } th class="n" { "Done" } th { "Of late" }
                            }
                        }
                        tbody { @for one in topics { (row(one)) } }
                    }
                }))
            }
        }
    };
    Ok(layout(&console, &by, "/topics", "Topics", &content))
}

fn row(one: &TopicNow) -> Markup {
    let (topic, depth) = (&one.topic, &one.depth);
    html! {
        tr {
            td { (show::topic(&topic.name)) }
            td { (show::kind(topic)) }
            td { (show::access(topic)) }
            td class="n" { (show::capped(depth.unsettled)) }
            td class="n" { (show::number(depth.claimed)) }
            td class="n" { a href={ "/scheduled/" (topic.name) } { (show::capped(depth.scheduled)) } }
            td class="n" { a href={ "/dead/" (topic.name) } { (show::capped(depth.dead)) } }
            td class="n" { (show::maybe_age(depth.oldest_age_ms)) }
            td class="n" { (show::change(one.rates.change_per_second)) }
            td class="n" { (show::rate(one.rates.done_per_second)) }
            td { (spark("Not done of late", &waiting(one))) }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "only drawn")]
fn waiting(one: &TopicNow) -> Vec<(chrono::DateTime<chrono::Utc>, f64)> {
    one.history.iter().map(|point| (point.at, point.waiting as f64)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "only drawn")]
fn oldest(one: &TopicNow) -> Vec<(chrono::DateTime<chrono::Utc>, f64)> {
    one.history.iter().map(|point| (point.at, point.oldest_ms.unwrap_or(0) as f64)).collect()
}

fn done(one: &TopicNow) -> Vec<(chrono::DateTime<chrono::Utc>, f64)> {
    let rate = |rates: &Rates| rates.done_per_second.unwrap_or(0.0);
    one.history.iter().map(|point| (point.at, rate(&point.rates))).collect()
}

fn waited(one: &TopicNow) -> Vec<(chrono::DateTime<chrono::Utc>, f64)> {
    let wait = |rates: &Rates| rates.waited_ms.unwrap_or(0.0);
    one.history.iter().map(|point| (point.at, wait(&point.rates))).collect()
}

pub(crate) async fn show(State(console): At, by: SignedIn, Path(name): Path<String>) -> Page {
    let name = topic_name(&name)?;
    let one = &console.live.topic(&name).await?;
    let live = console.live.now();
    let content = html! {
        div id="topic" data-live {
            (depths(one))
            (groups(&live, one))
            (plots(one))
        }
        @if by.may(SetAccess::NEEDS) { (switches(&by, one)) }
        (settings(one))
    };
    let title = format!("{} ({})", name, show::kind(&one.topic));
    Ok(layout(&console, &by, "/topics", &title, &content))
}

fn depths(one: &TopicNow) -> Markup {
    let TopicNow { topic, depth, rates, logged, .. } = one;
    let ready = depth.unsettled.saturating_sub(depth.claimed);
    html! {
        p {
            (show::access(topic)) " "
            a href={ "/messages?topic=" (topic.name) } { "Search its messages" }
        }
        div class="figures" {
            div class="figure" { strong { (show::capped(ready)) } span { "ready" } }
            div class="figure" { strong { (show::number(depth.claimed)) } span { "claimed" } }
            a class="figure" href={ "/scheduled/" (topic.name) } { strong { (show::capped(depth.scheduled)) } span { "scheduled" } }
            a class="figure" href={ "/dead/" (topic.name) } { strong { (show::capped(depth.dead)) } span { "dead letters" } }
            div class="figure" { strong { (show::maybe_age(depth.oldest_age_ms)) } span { "oldest" } }
            div class="figure" { strong { (show::change(rates.change_per_second)) } span { "change" } }
            div class="figure" { strong { (show::rate(rates.done_per_second)) } span { "done" } }
            div class="figure" { strong { (show::rate(rates.failed_per_second)) } span { "failed" } }
            div class="figure" { strong { (show::maybe_wait(rates.waited_ms)) } span { "wait for a consumer" } }
            @if let Some(logged) = logged {
                div class="figure" { strong { (show::number(*logged)) } span { "in the log" } }
                div class="figure" { strong { (show::rate(rates.passed_per_second)) } span { "appended" } }
            }
        }
    }
}

fn groups(live: &Snapshot, one: &TopicNow) -> Markup {
    let stream = one.topic.id;
    let of_it = |topic: &rowmq_core::Topic| topic.of_stream() == Some(stream);
    let groups: Vec<_> = live.groups.iter().filter(|it| of_it(&it.status.topic)).collect();
    html! {
        @if one.topic.is_stream() {
            h2 { "Groups" }
            @if groups.is_empty() {
                (show::nothing("No group reads this stream: create one with `rowmq group create STREAM@GROUP`."))
            } @else {
                (super::groups::table(&groups))
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "was a whole number")]
fn plots(one: &TopicNow) -> Markup {
    html! {
        div class="columns" {
            (plot("Done", &done(one), |rate| show::rate(Some(rate))))
            (plot("Wait for a consumer", &waited(one), show::wait))
            (plot("Not done", &waiting(one), |n| show::capped(n as u64)))
            (plot("Oldest message", &oldest(one), |ms| show::age(ms as u64)))
        }
    }
}

fn switches(by: &SignedIn, one: &TopicNow) -> Markup {
    let access = one.topic.access;
    let action = format!("/topics/{}/access", one.topic.name);
    let button = |label: &str, to: Access| {
        show::button(&by.login, &action, label, "", &[("access", to.word())])
    };
    html! {
        h2 { "Access" }
        // Live: another user may change the access while this page is open.
        div id="access" class="acts" data-live {
            @if access.may_claim() {
                (button("Pause consumers", Access::new(access.may_enqueue(), false)))
            } @else {
                (button("Resume consumers", Access::new(access.may_enqueue(), true)))
            }
            " "
            @if access.may_enqueue() {
                (button("Refuse producers", Access::new(false, access.may_claim())))
            } @else {
                (button("Take messages again", Access::new(true, access.may_claim())))
            }
        }
    }
}

/// The settings, as `rowmq topic show --json` has them.
fn settings(one: &TopicNow) -> Markup {
    let value = serde_json::to_value(&one.topic.settings).unwrap_or_default();
    let empty = serde_json::Map::new();
    let settings = value.as_object().unwrap_or(&empty);
    html! {
        h2 { "Settings" }
        table class="settings" {
            tbody {
                @for (name, value) in settings {
                    tr {
                        th scope="row" { (name.replace('_', " ")) }
                        td {
                            @match value {
                                serde_json::Value::Null => "–",
                                serde_json::Value::String(text) => (text),
                                other => (other.to_string()),
                            }
                        }
                    }
                }
            }
        }
        p class="hint" { "They are changed by `rowmq topic set " (one.topic.name) " …`." }
    }
}

/// Sets what may be done with a topic.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct SetAccess {
    /// What may be done.
    pub(crate) access: Access,
}

impl Ask for SetAccess {
    const NEEDS: Role = Role::Operator;
}

pub(crate) async fn set_access(
    State(console): At,
    Path(name): Path<String>,
    asked: Asked<SetAccess>,
) -> Result<Redirect, Refusal> {
    let name = topic_name(&name)?;
    let place = if name.as_group().is_some() { "groups" } else { "topics" };
    let back = Redirect::to(&format!("/{place}/{name}"));
    set(&console, &asked.by, name, asked.what.access).await?;
    Ok(back)
}

/// Sets the access and writes the audit, in one transaction.
pub(crate) async fn set(
    console: &Console,
    by: &SignedIn,
    name: TopicName,
    access: Access,
) -> Result<(), Refusal> {
    let change = Change {
        actor: by.actor(),
        action: Action::SetAccess,
        target: name.to_string(),
        detail: Some(access.word().to_owned()),
    };
    let set = console.database.write(move |session| {
        Box::pin(async move {
            let set = async |conn: &mut Link| store::topic::set_access(conn, &name, access).await;
            change.make(session, "set the topic's access", set).await
        })
    });
    set.await?;
    console.live.look_again().await;
    Ok(())
}
