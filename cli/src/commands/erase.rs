use anyhow::bail;
use rowmq_core::erasure::{self, CopyLeft, Erasure, erase};
use rowmq_core::model::found::StateWord;
use rowmq_core::model::{Action, Position};
use rowmq_core::{MsgId, TopicName};
use serde::Serialize;

use super::topic::find;
use crate::author::change;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;
use crate::output::Row;

/// Erase a message from the log of a stream: its body and its headers, for ever.
///
/// It keeps its offset, its id, its ordering key and its business id, and groups that have not read
/// it pass over it. Copies that groups have made of it, for a retry or as a dead letter, stay: each
/// is named, with the command that removes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Erase {
    /// The stream.
    topic: TopicName,
    /// The message id.
    id: MsgId,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Erased {
    topic: TopicName,
    msg_id: MsgId,
    positions: Vec<Position>,
    erased: usize,
    damaged: Vec<Position>,
    copies: Vec<Left>,
}

/// A copy, and how to remove it.
#[derive(Debug, Serialize)]
struct Left {
    #[serde(flatten)]
    copy: CopyLeft,
    /// `None`: no command does, and the janitor does it in time.
    command: Option<String>,
}

const HEADER: [&str; 3] = ["copy in", "state", "removed by"];

impl Row for Left {
    fn cells(&self) -> Vec<String> {
        let until = self.copy.keep_until.map(|at| at.format("the janitor after %F %T").to_string());
        // What is cancelled is kept as discarded, as a handled message is.
        let then = match self.copy.state {
            StateWord::Ready | StateWord::Claimed => ", and in time the janitor",
            _ => "",
        };
        let by = self.command.as_ref().map(|command| format!("{command}{then}"));
        let topic = if self.copy.topic.is_empty() { "(deleted)" } else { &self.copy.topic };
        let state = self.copy.state.word().to_owned();
        vec![topic.to_owned(), state, by.or(until).unwrap_or_default()]
    }
}

impl Left {
    fn new(copy: CopyLeft, id: MsgId) -> Self {
        let verb = match copy.state {
            StateWord::Ready | StateWord::Claimed | StateWord::Scheduled => Some("cancel"),
            StateWord::Dead => Some("dead purge"),
            StateWord::Logged => Some("erase"),
            StateWord::Done | StateWord::Repeated | StateWord::Discarded | StateWord::Gone => None,
        };
        let verb = verb.filter(|_| !copy.topic.is_empty());
        let command = verb.map(|verb| format!("rowmq {verb} {} {id}", copy.topic));
        Self { copy, command }
    }
}

impl Erase {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let stream = find(&mut session, &self.topic).await?;
        erasure::check(&stream, self.id)?;
        if !self.yes {
            let what = format!("body and headers of the message {}", self.id);
            if !is_confirmed(&what, &format!("Erase the {what} of '{}' for ever?", self.topic))? {
                bail!("Nothing was erased.");
            }
        }
        let by = change(&mut session, Action::Erase, &self.topic, self.id.to_string()).await?;
        show(invocation, erase(&mut session, &stream, self.id, &by).await?)
    }
}

fn show(invocation: &Invocation, erasure: Erasure) -> anyhow::Result<()> {
    let Erasure { topic, msg_id, positions, erased, damaged, copies } = erasure;
    let copies = copies.into_iter().map(|copy| Left::new(copy, msg_id)).collect();
    let answer = Erased { topic, msg_id, positions, erased, damaged, copies };
    let output = invocation.output;
    output.report(&answer, &sentence(&answer))?;
    output.more_rows(&HEADER, &answer.copies)
}

fn sentence(answer: &Erased) -> String {
    let Erased { topic, msg_id, positions, erased, damaged, copies } = answer;
    let places = places(positions);
    let log = match (positions.len(), erased) {
        (0, _) => format!("The log of '{topic}' has no message {msg_id} any more"),
        (_, 0) => format!("The message {msg_id} of '{topic}' was erased before, at {places}"),
        _ => format!("The message {msg_id} of '{topic}' is erased, at {places}"),
    };
    let rest =
        if copies.is_empty() { "No copy of it was found." } else { "There are copies of it:" };
    let pages = match damaged.len() {
        0 => String::new(),
        _ => format!(
            " It may also be in damaged pages, in which nothing can be erased, at {}: let retention \
             remove them, and purge the dead letters that groups make of them.",
            self::places(damaged)
        ),
    };
    format!("{log}.{pages} {rest}")
}

fn places(positions: &[Position]) -> String {
    let place = |at: &Position| format!("{}:{}", at.partition, at.offset);
    positions.iter().map(place).collect::<Vec<_>>().join(", ")
}
