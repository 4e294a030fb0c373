//! How pages show numbers, times and states.

mod plot;

pub(crate) use self::plot::{plot, spark};

use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use rowmq_core::model::found::State;
use rowmq_core::model::{Access, TopicKind};
use rowmq_core::store::inspect::DEPTH_CAP;
use rowmq_core::{Topic, TopicName};

use crate::login::Login;

/// A moment: in UTC as sent, in the reader's own time zone where scripts run, and exactly on hover.
pub(crate) fn time(at: DateTime<Utc>) -> Markup {
    html! {
        time datetime=(at.format("%FT%T%.6fZ")) title=(at.format("%F %T%.6f UTC")) {
            (at.format("%F %T")) " UTC"
        }
    }
}

pub(crate) fn maybe_time(at: Option<DateTime<Utc>>) -> Markup {
    html! { @match at { Some(at) => (time(at)), None => "–" } }
}

/// A duration, in two units.
pub(crate) fn age(ms: u64) -> String {
    if ms < 1000 {
        return format!("{ms} ms");
    }
    let whole = humantime::format_duration(Duration::from_secs(ms / 1000)).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

pub(crate) fn maybe_age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), age)
}

/// A number with a thin space at each thousand.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count that stops at the cap.
pub(crate) fn capped(n: u64) -> String {
    if n < DEPTH_CAP { number(n) } else { format!("{}+", number(DEPTH_CAP)) }
}

pub(crate) fn change(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(rate) if rate.abs() < 0.05 => "steady".to_owned(),
        Some(rate) => format!("{rate:+.1}/s"),
    }
}

pub(crate) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}/s"))
}

/// How long messages wait on average, in milliseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only shown")]
pub(crate) fn wait(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1} ms") } else { age(ms.round() as u64) }
}

pub(crate) fn maybe_wait(ms: Option<f64>) -> String {
    ms.map_or_else(|| "–".to_owned(), wait)
}

/// A size in its largest unit.
#[allow(clippy::cast_precision_loss, reason = "only shown, to one digit")]
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} bytes"),
        |(name, unit)| format!("{:.1} {name}", bytes as f64 / unit as f64),
    )
}

/// The beginning of a text that may be long.
pub(crate) fn beginning(text: &str, characters: usize) -> String {
    let mut shown: String = text.chars().take(characters).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

pub(crate) fn badge(kind: &str, word: &str) -> Markup {
    html! { span class={ "badge " (kind) } { (word) } }
}

/// The sentence shown where there is nothing to show.
pub(crate) fn nothing(sentence: &str) -> Markup {
    html! { p class="nothing" { (sentence) } }
}

/// A table that may be wider than the window: it then scrolls separately, by keys too.
pub(crate) fn wide(label: &str, table: &Markup) -> Markup {
    html! { div class="wide" role="region" aria-label=(label) tabindex="0" { (table) } }
}

pub(crate) fn kind(topic: &Topic) -> &'static str {
    match topic.kind {
        TopicKind::Queue => "queue",
        TopicKind::Stream { .. } => "stream",
        TopicKind::Group { ordered: false, .. } => "group",
        TopicKind::Group { ordered: true, .. } => "ordered group",
        TopicKind::Broadcast { .. } => "broadcast group",
    }
}

/// What may be done with a topic at the moment.
pub(crate) fn access(topic: &Topic) -> Markup {
    let word = topic.effective_access.word();
    let kind = match topic.effective_access {
        Access::ReadWrite => "good",
        Access::Denied => "bad",
        Access::WriteOnly | Access::ReadOnly => "warn",
    };
    let is_full = topic.backlog.is_some_and(|backlog| backlog.full);
    html! {
        (badge(kind, word))
        @if topic.access != topic.effective_access { " " small { "(itself " (topic.access) ")" } }
        @if is_full { " " (badge("bad", "full")) }
    }
}

/// The state of a message.
pub(crate) fn state(state: &State) -> Markup {
    let word = state.word().word();
    let kind = match state {
        State::Dead { .. } => "bad",
        State::Ready { suspect: true } | State::Discarded { .. } => "warn",
        State::Claimed { .. } => "busy",
        State::Done { .. } | State::Repeated { .. } | State::Logged { .. } => "good",
        State::Ready { .. } | State::Scheduled { .. } | State::Gone => "plain",
    };
    html! {
        (badge(kind, word)) " "
        @match state {
            State::Ready { suspect: true } => "suspect: claimed alone",
            State::Ready { .. } | State::Gone => "",
            State::Claimed { worker, client_id, conn_id } => {
                "by worker " (worker) " (" (client_id) "), connection " (conn_id)
            }
            State::Scheduled { due_at } => { "until " (time(*due_at)) }
            State::Dead { died_at, cause } => { "of " (cause) ", " (time(*died_at)) }
            State::Done { settled_at, .. }
            | State::Repeated { settled_at, .. }
            | State::Discarded { settled_at, .. } => (time(*settled_at)),
            State::Logged { position, sequenced_at } => {
                "at " (position.partition) ":" (position.offset) ", " (time(*sequenced_at))
            }
        }
    }
}

/// A link to a topic, or to a group.
pub(crate) fn topic(name: &TopicName) -> Markup {
    let place = if name.as_group().is_some() { "groups" } else { "topics" };
    html! { a href={ "/" (place) "/" (name) } { (name) } }
}

/// The token that proves that a form is ours.
pub(crate) fn csrf(login: &Login) -> Markup {
    html! { input type="hidden" name="csrf" value=(login.csrf); }
}

/// A form that is one button, with these fields.
pub(crate) fn button(
    login: &Login,
    action: &str,
    label: &str,
    kind: &str,
    fields: &[(&str, &str)],
) -> Markup {
    html! {
        form method="post" action=(action) class="inline" {
            (csrf(login))
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            @if kind == "danger" {
                label class="sure" { input type="checkbox" required; " sure" }
            }
            button type="submit" class=(kind) { (label) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ages_are_as_exact_as_people_read_them() {
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(number(7), "7");
        assert_eq!(capped(20_000), "10\u{202f}000+");
        assert_eq!([age(999), age(61_500), age(90_061_000)], ["999 ms", "1m 1s", "1day 1h"]);
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(change(Some(-2.0)), "-2.0/s");
        assert_eq!(beginning("äöü", 2), "äö…");
    }

    #[test]
    fn what_others_have_written_is_text_and_no_markup() {
        let shown = nothing("<script>alert(1)</script>").into_string();
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script"), "{shown}");
    }
}
