use std::time::Duration;

use axum::extract::{Query as Fields, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rowmq_core::find::{Answer, Query, Searched, between, find};
use rowmq_core::model::found::{Filter, Found, State as MessageState, StateWord};
use rowmq_core::model::{Offset, PartitionNo, Position};
use rowmq_core::store::find::Bodies;
use rowmq_core::{MsgId, Topic, TopicName, trace};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{At, layout, searched, topic_name, topic_of};
use crate::database::Database;
use crate::refusal::Refusal;
use crate::sampler::Snapshot;
use crate::show;
use crate::visitor::SignedIn;

/// How many messages a page shows.
const SHOWN: usize = 50;

/// What is searched for. Empty fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
// A page without a topic is a form to fill in; the API has none.
#[schemars(extend("required" = ["topic"]))]
pub(crate) struct Wanted {
    /// The topic.
    #[schemars(with = "TopicName")]
    pub(crate) topic: String,
    /// The message id.
    #[schemars(with = "MsgId")]
    pub(crate) id: String,
    /// The business id.
    pub(crate) biz_id: String,
    /// The ordering key.
    pub(crate) key: String,
    /// Messages in this state.
    #[schemars(with = "StateWord")]
    pub(crate) state: String,
    /// Enqueued within this time: `2h`.
    pub(crate) within: String,
    /// Enqueued longer ago than this: `30d`.
    pub(crate) older_than: String,
    /// The last error contains this text.
    pub(crate) error: String,
    /// Has this header with this value: `tenant=acme`.
    pub(crate) header: String,
    /// Its place in the stream's log, a partition and an offset: `0:4711`.
    pub(crate) offset: String,
    /// Continues where an answer ended: its `next`.
    pub(crate) after: String,
}

/// The search, parsed.
#[derive(Debug, Clone)]
pub(crate) struct Search {
    topic: TopicName,
    filter: Filter,
    within: Option<Duration>,
    older_than: Option<Duration>,
    after: Option<rowmq_core::find::PageToken>,
}

/// The text, unless it is empty.
fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// A time of a form, unless the field is empty.
pub(crate) fn time(text: &str) -> Result<Option<Duration>, Refusal> {
    let wrong = || {
        Refusal::Wrong(format!(
            "'{text}' is no time: write a number with a unit, such as 90s or 2h."
        ))
    };
    some(text).map(|text| humantime::parse_duration(text).map_err(|_| wrong())).transpose()
}

/// A message id of a form.
pub(crate) fn msg_id(text: &str) -> Result<MsgId, Refusal> {
    let wrong = |_| {
        Refusal::Wrong(format!(
            "'{text}' is no message id: it looks like 0198c0de-0000-7000-8000-000000000000."
        ))
    };
    text.trim().parse().map_err(wrong)
}

impl Wanted {
    pub(crate) fn understood(&self) -> Result<Search, Refusal> {
        let state = some(&self.state).map(|word| {
            let state = StateWord::ALL.into_iter().find(|state| state.word() == word);
            state.ok_or_else(|| {
                Refusal::Wrong(format!(
                    "'{word}' is no state of a message: choose one of the list."
                ))
            })
        });
        let header = some(&self.header).map(|text| {
            let pair =
                text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            pair.ok_or_else(|| {
                Refusal::Wrong("A header is its name, = and its value: tenant=acme.".to_owned())
            })
        });
        let bytes = |text: &str| some(text).map(|text| text.as_bytes().to_vec());
        Ok(Search {
            topic: topic_name(self.topic.trim())?,
            filter: Filter {
                msg_id: some(&self.id).map(msg_id).transpose()?,
                biz_id: bytes(&self.biz_id),
                key: bytes(&self.key),
                since: None,
                before: None,
                state: state.transpose()?,
                error: some(&self.error).map(str::to_owned),
                header: header.transpose()?,
                position: some(&self.offset).map(position).transpose()?,
            },
            within: time(&self.within)?,
            older_than: time(&self.older_than)?,
            after: some(&self.after).map(str::parse).transpose().map_err(Refusal::Wrong)?,
        })
    }

    /// The address of the same search, continued after the results so far.
    fn going_on(&self, after: &str) -> String {
        let fields = [
            ("topic", &self.topic),
            ("id", &self.id),
            ("biz_id", &self.biz_id),
            ("key", &self.key),
            ("state", &self.state),
            ("within", &self.within),
            ("older_than", &self.older_than),
            ("error", &self.error),
            ("header", &self.header),
            ("offset", &self.offset),
        ];
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(fields.into_iter().filter(|(_, value)| !value.is_empty()));
        query.append_pair("after", after);
        format!("/messages?{}", query.finish())
    }
}

fn position(text: &str) -> Result<Position, Refusal> {
    let read = || {
        let (partition, offset) = text.split_once(':')?;
        let partition = PartitionNo(partition.parse().ok()?);
        Some(Position { partition, offset: Offset(offset.parse().ok()?) })
    };
    read().ok_or_else(|| {
        Refusal::Wrong("A place in a log is a partition and an offset: 0:4711.".to_owned())
    })
}

impl Search {
    /// Runs the search; times are by the server's clock, not by a replica's.
    pub(crate) async fn run(self, database: &Database) -> rowmq_core::Result<(Topic, Answer)> {
        let Self { topic, mut filter, within, older_than, after } = self;
        let meant = database.read(move |session| {
            Box::pin(async move {
                let topic = topic_of(session, topic).await?;
                Ok((topic, between(session, within, older_than).await?))
            })
        });
        let (topic, times) = meant.await?;
        (filter.since, filter.before) = times;
        let query = Query { filter, after, limit: SHOWN, bodies: Bodies::Leave };
        let search = database.search(move |session| {
            Box::pin(async move {
                let answer = find(session, &topic, &query).await?;
                Ok((topic, answer))
            })
        });
        search.await
    }
}

pub(crate) async fn search(
    State(console): At,
    by: SignedIn,
    Fields(wanted): Fields<Wanted>,
) -> Result<Response, Refusal> {
    let live = console.live.now();
    if wanted.topic.trim().is_empty() && !wanted.id.trim().is_empty() {
        return by_id(&console, &wanted).await;
    }
    let found = if wanted.topic.trim().is_empty() {
        None
    } else {
        let search = wanted.understood()?;
        Some(search.run(&console.database).await?)
    };
    let content = html! {
        (form(&live, &wanted))
        @match &found {
            None => (show::nothing("Choose a topic and say what you look for, or give a message id alone.")),
            Some((topic, answer)) => {
                (answered(&wanted, topic, answer))
                (searched(&console))
            }
        }
    };
    Ok(layout(&console, &by, "/messages", "Messages", &content).into_response())
}

/// Finds the topic by the message id alone, where the id is enough.
async fn by_id(console: &crate::state::Console, wanted: &Wanted) -> Result<Response, Refusal> {
    let id = msg_id(&wanted.id)?;
    let message =
        console.database.read(move |session| Box::pin(trace::tell(session, None, id))).await?;
    match message.topic {
        Some(topic) => Ok(Redirect::to(&format!("/messages/{topic}/{id}")).into_response()),
        None => Err(Refusal::NotFound(format!(
            "The message {id} is in no table that ids alone are found in: choose its topic, too."
        ))),
    }
}

fn form(live: &Snapshot, wanted: &Wanted) -> Markup {
    let field = |name: &str, label: &str, value: &str, hint: &str| {
        html! { label { (label) input name=(name) value=(value) placeholder=(hint); } }
    };
    html! {
        form method="get" action="/messages" class="search" role="search" {
            label {
                "Topic"
                select name="topic" {
                    option value="" { "" }
                    @for one in &live.topics {
                        @let name = one.topic.name.as_str();
                        option value=(name) selected[wanted.topic == name] { (name) }
                    }
                }
            }
            (field("id", "Message id", &wanted.id, "0198c0de-…"))
            (field("biz_id", "Business id", &wanted.biz_id, ""))
            (field("key", "Key", &wanted.key, ""))
            label {
                "State"
                select name="state" {
                    option value="" { "any" }
                    @for state in StateWord::ALL {
                        option selected[wanted.state == state.word()] { (state.word()) }
                    }
                }
            }
            (field("within", "Enqueued within", &wanted.within, "2h"))
            (field("older_than", "Older than", &wanted.older_than, "30d"))
            (field("error", "Error has", &wanted.error, ""))
            (field("header", "Header", &wanted.header, "tenant=acme"))
            (field("offset", "Offset in a stream", &wanted.offset, "0:4711"))
            button type="submit" { "Search" }
        }
    }
}

fn answered(wanted: &Wanted, topic: &Topic, answer: &Answer) -> Markup {
    html! {
        @if answer.found.is_empty() {
            (show::nothing("No such message was found in what was searched."))
        } @else {
            (show::wide("Messages", &html! {
                table {
                    thead {
                        tr {
                            th { "Message" } th { "State" } th class="n" { "Deliveries" } th class="n" { "Failures" }
                            th { "Enqueued" } th { "Key" } th { "Business id" } th { "Error" }
                        }
                    }
                    tbody { @for found in &answer.found { (row(found)) } }
                }
            }))
        }
        @if let Some(next) = &answer.next {
            p { a class="next" rel="next" href=(wanted.going_on(&next.to_string())) { "Go on searching" } }
        }
        ul class="hint" {
            @for searched in &answer.searched { li { (sentence(searched)) } }
            @if answer.found.iter().any(|found| found.state == MessageState::Gone) {
                li { "A message that is gone was handled, cancelled, purged or has expired, and nothing of it is kept." }
            }
            @if topic.settings.searchable.is_none() && !topic.is_stream() && answer.next.is_some() {
                li { "`rowmq topic set " (topic.name) " --searchable on` finds messages that are enqueued from then on, however many there are." }
            }
        }
    }
}

fn row(found: &Found) -> Markup {
    let trace = found.trace.as_ref();
    html! {
        tr {
            td { a href={ "/messages/" (found.topic) "/" (found.msg_id) } { code { (found.msg_id) } } }
            td { (show::state(&found.state)) }
            td class="n" { @if let Some(trace) = trace { (trace.delivery_no) } }
            td class="n" { @if let Some(trace) = trace { (trace.failures) } }
            td { (show::time(found.enqueued_at)) }
            td { (found.key.as_deref().unwrap_or_default()) }
            td { (found.biz_id.as_deref().unwrap_or_default()) }
            td class="error" { @if let Some(error) = trace.and_then(|trace| trace.error.as_deref()) { (show::beginning(error, 120)) } }
        }
    }
}

pub(super) fn sentence(searched: &Searched) -> String {
    let all = |whole: bool| if whole { "all there are" } else { "and there are more" };
    match searched {
        Searched::Lookup { entries, whole } => {
            format!("Searched by the lookup: {entries} entries, {}.", all(*whole))
        }
        Searched::MsgIds => {
            "Searched by message id: all scheduled, dead, kept and discarded messages.".to_owned()
        }
        Searched::Log { rows, whole } => {
            format!("Searched the log: {rows} messages, {}.", all(*whole))
        }
        Searched::DamagedPage { position } => {
            format!(
                "The page of the log at {}:{} is damaged: it cannot be searched, and may hold a match.",
                position.partition, position.offset
            )
        }
        Searched::Table { table, rows, whole } => {
            format!(
                "Searched {rows} rows of the table of {} messages, {}.",
                table.word(),
                all(*whole)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_searched_for_goes_on_where_the_answer_ended() {
        let wanted =
            Wanted { topic: "mail".to_owned(), error: "a & b".to_owned(), ..Wanted::default() };
        assert_eq!(
            wanted.going_on("dead.1.2"),
            "/messages?topic=mail&error=a+%26+b&after=dead.1.2"
        );
    }

    #[test]
    fn a_wrong_field_is_reported_with_what_would_be_right() {
        let topic = || Wanted { topic: "mail".to_owned(), ..Wanted::default() };
        assert!(topic().understood().is_ok());
        for wrong in [
            Wanted { id: "7".to_owned(), ..topic() },
            Wanted { state: "lost".to_owned(), ..topic() },
            Wanted { within: "soon".to_owned(), ..topic() },
            Wanted { header: "tenant".to_owned(), ..topic() },
            Wanted { offset: "7".to_owned(), ..topic() },
            Wanted { after: "here".to_owned(), ..topic() },
            Wanted { topic: "a b".to_owned(), ..topic() },
        ] {
            assert!(wrong.understood().is_err(), "{wrong:?}");
        }
    }
}
