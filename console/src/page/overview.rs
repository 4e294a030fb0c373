use axum::extract::State;
use maud::{Markup, html};
use rowmq_core::TopicName;

use super::{At, Page, layout};
use crate::sampler::{Point, Rates, Snapshot, TopicNow};
use crate::show::{self, plot};
use crate::visitor::SignedIn;

/// How many topics the ranking shows.
const MOST: usize = 8;

pub(crate) async fn show(State(console): At, by: SignedIn) -> Page {
    let live = console.live.now();
    let content = html! {
        div id="overview" data-live {
            (summary(&live))
            (plots(&live))
            div class="columns" {
                (ranking(&live))
                (failing(&live))
            }
        }
    };
    Ok(layout(&console, &by, "/", "Overview", &content))
}

fn sum(live: &Snapshot, of: impl Fn(&TopicNow) -> u64) -> u64 {
    live.topics.iter().map(of).sum()
}

/// A rate summed over all topics; `None` before there is one.
fn rate(live: &Snapshot, of: impl Fn(&Rates) -> Option<f64>) -> Option<f64> {
    let rates: Vec<f64> = live.topics.iter().filter_map(|one| of(&one.rates)).collect();
    (!rates.is_empty()).then(|| rates.iter().sum())
}

fn summary(live: &Snapshot) -> Markup {
    let figure = |name: &str, value: String, href: &str| {
        html! { a class="figure" href=(href) { strong { (value) } span { (name) } } }
    };
    let oldest = live.topics.iter().filter_map(|one| one.depth.oldest_age_ms).max();
    html! {
        div class="figures" {
            (figure("not done", show::number(sum(live, |one| one.depth.unsettled)), "/topics"))
            (figure("claimed", show::number(sum(live, |one| one.depth.claimed)), "/workers"))
            (figure("scheduled", show::number(sum(live, |one| one.depth.scheduled)), "/scheduled"))
            (figure("dead letters", show::number(sum(live, |one| one.depth.dead)), "/dead"))
            (figure("oldest", show::maybe_age(oldest), "/topics"))
            (figure("done", show::rate(rate(live, |rates| rates.done_per_second)), "/topics"))
            (figure("failed", show::rate(rate(live, |rates| rates.failed_per_second)), "/topics"))
            (figure("workers", show::number(live.workers.len() as u64), "/workers"))
        }
        @if live.topics.is_empty() {
            (show::nothing("There are no topics: create one with `rowmq topic create NAME`."))
        } @else if live.workers.is_empty() && sum(live, |one| one.depth.unsettled) > 0 {
            p class="failure" role="alert" { "No worker is running: messages wait, and no consumer is registered. Start one." }
        }
    }
}

/// The samples of `of` at each look, over all topics.
fn together(
    live: &Snapshot,
    of: impl Fn(&Point) -> f64,
    most: bool,
) -> Vec<(chrono::DateTime<chrono::Utc>, f64)> {
    let mut sums = std::collections::BTreeMap::new();
    for point in live.topics.iter().flat_map(|topic| topic.history.iter()) {
        let sum: &mut f64 = sums.entry(point.at).or_default();
        *sum = if most { sum.max(of(point)) } else { *sum + of(point) };
    }
    sums.into_iter().collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "was a whole number")]
#[allow(clippy::cast_precision_loss, reason = "only drawn")]
fn plots(live: &Snapshot) -> Markup {
    let done = together(live, |point| point.rates.done_per_second.unwrap_or(0.0), false);
    let waited = together(live, |point| point.rates.waited_ms.unwrap_or(0.0), true);
    let backlog = together(live, |point| point.waiting as f64, false);
    let oldest = together(live, |point| point.oldest_ms.unwrap_or(0) as f64, true);
    html! {
        div class="columns" {
            (plot("Done", &done, |rate| show::rate(Some(rate))))
            (plot("Wait for a consumer, of the slowest topic", &waited, show::wait))
            (plot("Not done", &backlog, |n| show::number(n as u64)))
            (plot("Oldest message", &oldest, |ms| show::age(ms as u64)))
        }
    }
}

/// The topics that hold the most.
fn ranking(live: &Snapshot) -> Markup {
    let mut topics: Vec<_> = live.topics.iter().filter(|one| one.depth.unsettled > 0).collect();
    topics.sort_by_key(|one| std::cmp::Reverse(one.depth.unsettled));
    html! {
        section {
            h2 { "Most messages" }
            @if topics.is_empty() {
                (show::nothing("Nothing waits: all that was enqueued is done."))
            } @else {
                (show::wide("Most messages", &html! {
                    table {
                        thead { tr { th { "Topic" } th class="n" { "Not done" } th class="n" { "Oldest" } th class="n" { "Change" } } }
                        tbody {
                            @for one in topics.iter().take(MOST) {
                                tr {
                                    td { (show::topic(&one.topic.name)) }
                                    td class="n" { (show::capped(one.depth.unsettled)) }
                                    td class="n" { (show::maybe_age(one.depth.oldest_age_ms)) }
                                    td class="n" { (show::change(one.rates.change_per_second)) }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

/// What needs attention: dead letters, groups that lose messages, topics that are closed.
fn failing(live: &Snapshot) -> Markup {
    let mut troubles: Vec<(&TopicName, String, String)> = Vec::new();
    for TopicNow { topic, depth, .. } in &live.topics {
        if depth.dead > 0 {
            let text = format!("{} dead letters", show::capped(depth.dead));
            troubles.push((&topic.name, text, format!("/dead/{}", topic.name)));
        }
        if !topic.effective_access.may_claim() && depth.unsettled > 0 {
            let text = "paused, and messages wait".to_owned();
            troubles.push((&topic.name, text, format!("/topics/{}", topic.name)));
        }
        if topic.backlog.is_some_and(|backlog| backlog.full) {
            troubles.push((&topic.name, "full".to_owned(), format!("/topics/{}", topic.name)));
        }
    }
    for group in live.groups.iter().filter(|group| group.status.lost > 0) {
        let name = &group.status.topic.name;
        let text = format!("{} messages lost to retention", show::number(group.status.lost));
        troubles.push((name, text, format!("/groups/{name}")));
    }
    html! {
        section {
            h2 { "Failing now" }
            @if troubles.is_empty() {
                (show::nothing("Nothing needs you."))
            } @else {
                ul class="troubles" {
                    @for (name, text, href) in troubles.iter().take(MOST * 2) {
                        li { a href=(href) { (name) } ": " (text) }
                    }
                }
            }
        }
    }
}
