use std::time::Duration;

use chrono::{DateTime, Utc};
use rowmq_core::model::found::{Found, State};
use rowmq_core::model::trace::{Event, Record};
use rowmq_core::model::{FailedRun, GroupPart, Position, Sampling};
use rowmq_core::trace::{MessageHistory, Part, tell};
use rowmq_core::{MsgId, TopicName};
use serde::Serialize;

use super::topic::find;
use crate::invocation::Invocation;
use crate::output::Row;

/// Show what happened to one message: who enqueued it, and each delivery of it.
///
/// `rowmq topic set TOPIC --trace 1%` sets which messages of a topic are traced; a trace is kept
/// for 7 days. For any other message, this shows where it is, and its failed runs.
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct Trace {
    /// Its topic, or its stream. Without it, only a message that leaves a trace, or that is
    /// scheduled, dead or kept, is found.
    topic: Option<TopicName>,
    /// The message id.
    id: MsgId,
}

/// A line of the table: an event, or a state of the message.
#[derive(Debug, Serialize)]
struct Line {
    at: DateTime<Utc>,
    what: String,
    place: String,
    delivery: String,
    who: String,
    took: String,
    outcome: String,
    error: String,
}

const HEADER: [&str; 8] =
    ["time (UTC)", "event", "where", "delivery", "who", "took", "outcome", "error"];

const PLACES: [&str; 4] = ["where it is", "state", "deliveries", "failures"];

const PARTS: [&str; 2] = ["group", "its part"];

impl Row for Line {
    fn cells(&self) -> Vec<String> {
        vec![
            self.at.format("%F %T%.6f").to_string(),
            self.what.clone(),
            self.place.clone(),
            self.delivery.clone(),
            self.who.clone(),
            self.took.clone(),
            self.outcome.clone(),
            self.error.clone(),
        ]
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct FoundRow<'s>(&'s Found);

impl Row for FoundRow<'_> {
    fn cells(&self) -> Vec<String> {
        let Self(found) = self;
        let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
        let row = found.trace.as_ref().filter(|_| !matches!(found.state, State::Logged { .. }));
        vec![
            found.topic.clone(),
            state(&found.state),
            number(row.map(|row| row.delivery_no)),
            number(row.map(|row| row.failures)),
        ]
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct OfGroup<'s>(&'s Part);

impl Row for OfGroup<'_> {
    fn cells(&self) -> Vec<String> {
        let Self(Part { group, part }) = self;
        let part = match part {
            GroupPart::Ahead => "has not come so far".to_owned(),
            GroupPart::Claimed { worker, client_id, conn_id } => {
                format!("worker {worker} ({client_id}), connection {conn_id}, has it")
            }
            GroupPart::Waiting => "waits to be claimed again".to_owned(),
            GroupPart::Passed => "is through with it".to_owned(),
        };
        vec![group.to_string(), part]
    }
}

fn state(state: &State) -> String {
    let time = |at: &DateTime<Utc>| at.format("%F %T%.3f").to_string();
    match state {
        State::Claimed { worker, client_id, conn_id } => {
            format!("claimed by worker {worker} ({client_id}), connection {conn_id}")
        }
        State::Scheduled { due_at } => format!("scheduled for {}", time(due_at)),
        State::Dead { died_at, cause } => format!("dead ({cause}) since {}", time(died_at)),
        State::Logged { position, .. } => format!("in the log at {}", shown(*position)),
        other => other.word().word().to_owned(),
    }
}

/// `PARTITION:OFFSET`, as `rowmq find --offset` reads it.
fn shown(at: Position) -> String {
    format!("{}:{}", at.partition, at.offset)
}

impl Trace {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = match &self.topic {
            Some(name) => Some(find(&mut session, name).await?),
            None => None,
        };
        let message = tell(&mut session, topic, self.id).await?;
        let output = invocation.output;
        if output.is_json() {
            return output.report(&message, "");
        }
        let lines = lines(&message);
        output.rows(
            &HEADER,
            &lines,
            &format!("Nothing is recorded of the message {}.", self.id),
        )?;
        let places: Vec<_> = message.found.iter().map(FoundRow).collect();
        output.more_rows(&PLACES, &places)?;
        let parts: Vec<_> = message.groups.iter().map(OfGroup).collect();
        output.more_rows(&PARTS, &parts)?;
        output.more_rows(&super::dead::HISTORY, &history(&message))?;
        for sentence in sentences(&message, self.id) {
            output.report(&message, &sentence)?;
        }
        Ok(())
    }
}

/// The failed runs in the message's rows that its trace does not have.
fn history(message: &MessageHistory) -> Vec<FailedRun> {
    let runs = message.found.iter().filter_map(|found| found.trace.as_ref());
    let runs = runs.flat_map(|trace| trace.history.clone());
    let is_in_trace = |run: &FailedRun| {
        let is_it = |event: &Record| {
            event.event == Event::Settled && event.delivery_no.0 == run.delivery_no
        };
        message.events.iter().any(is_it)
    };
    runs.filter(|run| !is_in_trace(run)).collect()
}

fn lines(message: &MessageHistory) -> Vec<Line> {
    let mut lines: Vec<_> =
        message.events.iter().map(|event| line(event, &message.events)).collect();
    if message.events.is_empty() {
        return lines;
    }
    for found in &message.found {
        if let State::Logged { position, sequenced_at } = found.state {
            lines.push(Line {
                at: sequenced_at,
                what: "sequenced".to_owned(),
                place: format!("{} {}", found.topic, shown(position)),
                delivery: String::new(),
                who: String::new(),
                took: String::new(),
                outcome: String::new(),
                error: String::new(),
            });
        }
    }
    lines.sort_by_key(|line| line.at);
    lines
}

fn line(event: &Record, all: &[Record]) -> Line {
    let claim = all.iter().rev().find(|claim| {
        claim.event == Event::Claimed
            && (claim.topic_id, claim.delivery_no, claim.worker)
                == (event.topic_id, event.delivery_no, event.worker)
            && claim.at <= event.at
    });
    let took = claim.filter(|_| event.event != Event::Claimed);
    let took = took.and_then(|claim| (event.at - claim.at).to_std().ok());
    let client = event.client.as_deref().or(claim.and_then(|claim| claim.client.as_deref()));
    let name = if event.topic.is_empty() {
        format!("topic {} (deleted)", event.topic_id.0)
    } else {
        event.topic.clone()
    };
    Line {
        at: event.at,
        what: event.event.word().to_owned(),
        place: event.position.map_or_else(|| name.clone(), |at| format!("{name} {}", shown(at))),
        delivery: if event.delivery_no.0 > 0 {
            event.delivery_no.to_string()
        } else {
            String::new()
        },
        who: who(event, client),
        took: took.map(milliseconds).unwrap_or_default(),
        outcome: event.outcome.clone().unwrap_or_default(),
        error: event.error.clone().unwrap_or_default(),
    }
}

fn who(event: &Record, client: Option<&str>) -> String {
    let client = client.unwrap_or_default();
    match event.worker {
        Some(worker) if client.is_empty() => format!("worker {worker}"),
        Some(worker) => format!("worker {worker} ({client})"),
        None => format!("{client}, connection {}", event.conn),
    }
}

fn milliseconds(took: Duration) -> String {
    format!("{:.1} ms", took.as_secs_f64() * 1000.0)
}

/// What is not recorded, and what to do about it.
fn sentences(message: &MessageHistory, id: MsgId) -> Vec<String> {
    let mut sentences = Vec::new();
    match &message.topic {
        None => sentences.push(format!(
            "Its topic is not known: `rowmq trace TOPIC {id}` also looks among the ready messages of a topic, and in the log of a stream."
        )),
        Some(topic) if message.sampling == Sampling::OFF => sentences.push(format!(
            "Who enqueued it and its deliveries are not recorded: '{topic}' leaves no traces. `rowmq topic set {topic} --trace all` (or 1%) records those of messages from then on."
        )),
        Some(topic) if !message.sampled => sentences.push(format!(
            "Who enqueued it and its deliveries are not recorded: '{topic}' traces {} of its messages, and this is none of them. `rowmq topic set {topic} --trace all` records those of all messages from then on.",
            message.sampling
        )),
        Some(_) => {}
    }
    if message.sampled && !message.events.iter().any(|event| event.event == Event::Enqueued) {
        sentences.push(
            "It was enqueued before its topic left traces, or more than 7 days ago.".to_owned(),
        );
    }
    if message.found.is_empty() && message.topic.is_some() {
        sentences.push(
            "It is nowhere any more, or not among the messages that were searched.".to_owned(),
        );
    }
    sentences
}
