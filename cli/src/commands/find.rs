use std::time::Duration;

use anyhow::bail;
use chrono::{DateTime, Utc};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::value_parser;
use rowmq_core::connection::Session;
use rowmq_core::find::{self as found, Answer, PageToken, Query, Searched, between};
use rowmq_core::model::found::{Filter, Found, State, StateWord};
use rowmq_core::model::{Offset, PartitionNo, Position};
use rowmq_core::store::find::Bodies;
use rowmq_core::{MsgId, Topic, TopicName};
use serde::Serialize;

use super::topic::find;
use crate::body::Body;
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units::parse_time;

/// Find messages: where they are, and what happened to them.
///
/// A topic that is searchable (`rowmq topic set NAME --searchable on`) answers from a lookup,
/// however much it holds; any other topic by message id, or else from a bounded number of rows.
/// What was searched is said below what was found. The log of a stream is searched from the newest
/// message back, with a message id around the time in that id.
#[derive(Debug, clap::Args)]
pub(crate) struct Find {
    topic: TopicName,
    /// The message id.
    id: Option<MsgId>,
    /// Those with this business id.
    #[arg(long)]
    biz_id: Option<String>,
    /// Those with this ordering key.
    #[arg(long)]
    key: Option<String>,
    /// Those that are in this state.
    #[arg(long, value_parser = states())]
    state: Option<StateWord>,
    /// Those that were enqueued within this time: 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    within: Option<Duration>,
    /// Those that were enqueued longer ago than this: 30d.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    older_than: Option<Duration>,
    /// Those whose last error, or the reason they were discarded for, contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Those that have this header with this value.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Option<(String, String)>,
    /// The message at this place in the log of a stream.
    #[arg(long, value_name = "PARTITION:OFFSET", value_parser = position)]
    offset: Option<Position>,
    /// How many, 1 to 1000.
    #[arg(short = 'n', long, default_value_t = 20)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Continue where the previous answer ended.
    #[arg(long, value_name = "PLACE")]
    after: Option<PageToken>,
    /// Show the bodies too: their beginnings in the table, whole with --json.
    #[arg(long)]
    body: bool,
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or("a header is its name, = and its value: tenant=acme")
}

fn position(text: &str) -> Result<Position, &'static str> {
    let read = || {
        let (partition, offset) = text.split_once(':')?;
        let partition = PartitionNo(partition.parse().ok()?);
        Some(Position { partition, offset: Offset(offset.parse().ok()?) })
    };
    read().ok_or("a place in a log is a partition and an offset: 0:4711")
}

fn states() -> impl TypedValueParser<Value = StateWord> {
    PossibleValuesParser::new(StateWord::ALL.map(StateWord::word)).try_map(|word| {
        let state = StateWord::ALL.into_iter().find(|state| state.word() == word);
        state.ok_or("no such state")
    })
}

#[derive(Debug, Serialize)]
struct Message {
    #[serde(flatten)]
    found: Found,
    #[serde(flatten)]
    body: Option<Body>,
    /// It was dead-lettered to another topic.
    #[serde(skip)]
    elsewhere: bool,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    found: &'a [Message],
    searched: &'a [Searched],
    next: Option<&'a PageToken>,
}

/// The last column is for the body.
const HEADER: [&str; 10] = [
    "message id",
    "state",
    "since, or until (UTC)",
    "deliveries",
    "failures",
    "enqueued (UTC)",
    "key",
    "biz id",
    "error",
    "body",
];

/// How much of an error the table shows, in characters.
const SHOWN: usize = 100;

impl Find {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        if self.offset.is_some() && !topic.is_stream() {
            bail!(
                "'{}' is no stream, so that its messages have no offsets: leave out --offset.",
                topic.name
            );
        }
        let bodies = if self.body { Bodies::Read } else { Bodies::Leave };
        let query = Query {
            limit: self.limit as usize,
            after: self.after.clone(),
            bodies,
            filter: self.filter(&mut session).await?,
        };
        let answer = found::find(&mut session, &topic, &query).await?;
        show(invocation, &topic, answer)
    }

    async fn filter(self, session: &mut Session) -> anyhow::Result<Filter> {
        let (since, before) = between(session, self.within, self.older_than).await?;
        Ok(Filter {
            msg_id: self.id,
            biz_id: self.biz_id.map(String::into_bytes),
            key: self.key.map(String::into_bytes),
            since,
            before,
            state: self.state,
            error: self.error,
            header: self.header,
            position: self.offset,
        })
    }
}

fn show(invocation: &Invocation, topic: &Topic, answer: Answer) -> anyhow::Result<()> {
    let output = invocation.output;
    let message = |mut found: Found| {
        let body = found.trace.as_mut().and_then(|trace| {
            let stored = trace.body.take()?;
            Some(Body::new(&trace.headers, stored))
        });
        let elsewhere = found.topic != topic.name.as_str();
        Message { found, body, elsewhere }
    };
    let messages: Vec<_> = answer.found.into_iter().map(message).collect();
    let next = answer.next.as_ref();
    let shown = Shown { found: &messages, searched: &answer.searched, next };
    if output.is_json() {
        return output.report(&shown, "");
    }
    let with_body = messages.iter().any(|message| message.body.is_some());
    let header = if with_body { &HEADER[..] } else { &HEADER[..HEADER.len() - 1] };
    output.rows(header, &messages, "No such message was found.")?;
    if let [message] = &messages[..]
        && let Some(trace) = &message.found.trace
    {
        output.more_rows(&super::dead::HISTORY, &trace.history)?;
    }
    for sentence in sentences(topic, &messages, &answer.searched, next) {
        output.report(&shown, &sentence)?;
    }
    Ok(())
}

/// What was searched, what was not, and what to do about it.
fn sentences(
    topic: &Topic,
    messages: &[Message],
    searched: &[Searched],
    next: Option<&PageToken>,
) -> Vec<String> {
    let name = &topic.name;
    let mut sentences: Vec<_> = searched.iter().map(sentence).collect();
    if messages.iter().any(|message| message.found.state == State::Gone) {
        sentences.push(format!(
            "A message that is gone was handled, cancelled, purged or has expired, and nothing of it is kept: `rowmq topic set {name} --keep-done 7d` keeps handled ones."
        ));
    }
    if let Some(next) = next {
        sentences.push(format!("There may be more: repeat the command with --after {next}"));
    }
    if topic.settings.searchable.is_none()
        && !topic.is_stream()
        && searched.iter().any(|one| matches!(one, Searched::Table { whole: false, .. }))
    {
        sentences.push(format!(
            "To find messages however many there are: `rowmq topic set {name} --searchable on`, for those that are enqueued from then on."
        ));
    }
    sentences
}

fn sentence(searched: &Searched) -> String {
    let all = |whole: bool| if whole { "all" } else { "the next" };
    match searched {
        Searched::Lookup { entries, whole: true } => {
            format!(
                "Searched by the lookup: {entries} entries, all there are; what was enqueued before the topic was searchable may have none."
            )
        }
        Searched::Lookup { entries, whole: false } => {
            format!("Searched by the lookup: {entries} entries, and there are more.")
        }
        Searched::MsgIds => {
            "Searched by message id: all scheduled, dead, kept and discarded messages.".to_owned()
        }
        Searched::Log { rows, whole: true } => {
            format!("Searched the log: {rows} messages, all there are that may be meant.")
        }
        Searched::Log { rows, whole: false } => {
            format!("Searched the log: {rows} messages, and there are more.")
        }
        Searched::DamagedPage { position } => {
            format!(
                "The page of the log at {}:{} is damaged: it cannot be searched, and may hold a match.",
                position.partition, position.offset
            )
        }
        Searched::Table { table, rows, whole } => {
            format!(
                "Searched {} {rows} rows of the table of {} messages.",
                all(*whole),
                table.word()
            )
        }
    }
}

impl Row for Message {
    fn cells(&self) -> Vec<String> {
        let found = &self.found;
        let trace = found.trace.as_ref();
        let time = |at: &DateTime<Utc>| at.format("%F %T%.3f").to_string();
        let (state, at) = match &found.state {
            State::Ready { suspect: true } => ("ready, suspect".to_owned(), None),
            State::Claimed { worker, client_id, conn_id } => {
                let progress = found.trace.as_ref().and_then(|trace| trace.progress);
                let progress =
                    progress.map_or(String::new(), |at| format!(", {} % done", at.get()));
                let by = format!("worker {worker} ({client_id}), connection {conn_id}");
                (format!("claimed by {by}{progress}"), None)
            }
            State::Scheduled { due_at } => ("scheduled".to_owned(), Some(due_at)),
            State::Dead { died_at, cause } => (format!("dead ({cause})"), Some(died_at)),
            State::Done { settled_at, .. }
            | State::Repeated { settled_at, .. }
            | State::Discarded { settled_at, .. } => {
                (found.state.word().word().to_owned(), Some(settled_at))
            }
            State::Logged { position, sequenced_at } => {
                let Position { partition, offset } = position;
                (format!("in the log at {partition}:{offset}"), Some(sequenced_at))
            }
            State::Ready { .. } | State::Gone => (found.state.word().word().to_owned(), None),
        };
        let place = if self.elsewhere { format!(", in '{}'", found.topic) } else { String::new() };
        let error = trace.and_then(|trace| trace.error.as_deref()).unwrap_or_default();
        let mut shown: String = error.chars().take(SHOWN).collect();
        if shown.len() < error.len() {
            shown.push('…');
        }
        let mut cells = vec![
            found.msg_id.to_string(),
            state + &place,
            at.map(time).unwrap_or_default(),
            trace.map(|trace| trace.delivery_no.to_string()).unwrap_or_default(),
            trace.map(|trace| trace.failures.to_string()).unwrap_or_default(),
            time(&found.enqueued_at),
            found.key.clone().unwrap_or_default(),
            found.biz_id.clone().unwrap_or_default(),
            shown,
        ];
        cells.extend(self.body.as_ref().map(Body::beginning));
        cells
    }
}
