use std::time::{Duration, Instant};

use anyhow::bail;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::connection::Session;
use rowmq_core::model::Action;
use rowmq_core::model::found::StateWord;
use rowmq_core::{MsgId, Topic, TopicName};
use serde::Serialize;

use super::topic::find;
use crate::author::change;
use crate::invocation::Invocation;
use crate::units;

/// How often the command asks for the outcome.
const LOOK: Duration = Duration::from_millis(100);

/// How long to wait for a lock after the grace.
const LOCKED: Duration = Duration::from_secs(5);

/// Cancel a message: one that waits, is ready, or is being handled.
///
/// A handler is asked to stop. If it finishes all the same, the message is handled. After --grace
/// its claim is taken away: it can neither ack the message nor commit a transaction that would, but
/// nothing undoes its other effects.
#[derive(Debug, clap::Args)]
pub(crate) struct Cancel {
    topic: TopicName,
    /// The message id.
    id: MsgId,
    /// How long its handler has to stop; 0s: its claim is taken away at once.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_wait)]
    grace: Duration,
}

#[derive(Debug, Serialize)]
struct Cancelled {
    msg_id: MsgId,
    was: &'static str,
}

impl Cancel {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let was = self.cancel(&mut session, &topic).await?;
        let (word, what) = match was {
            Was::Waiting => ("waiting", "had not come to its time"),
            Was::Ready => ("ready", "was ready; no handler had begun"),
            Was::Stopped => ("stopped", "was being handled; its handler has stopped"),
            Was::Fenced => ("fenced", "was claimed, and its claim is taken away"),
        };
        let cancelled = Cancelled { msg_id: self.id, was: word };
        let sentence = format!("The message {} is cancelled: it {what}.", self.id);
        invocation.output.report(&cancelled, &sentence)
    }

    async fn cancel(&self, session: &mut Session, topic: &Topic) -> anyhow::Result<Was> {
        let (name, id, began) = (&self.topic, self.id, Instant::now());
        let by = change(session, Action::Cancel, name, id.to_string()).await?;
        let mut cancellation = Cancellation::new(topic, id).by(&by);
        loop {
            let is_over = began.elapsed() >= self.grace;
            let claims = if is_over { Claims::TakeAway } else { Claims::Ask };
            match cancellation.attempt(session, claims).await? {
                Attempt::Cancelled(was) => return Ok(was),
                Attempt::Locked if is_over && began.elapsed() >= self.grace + LOCKED => {
                    cancellation.give_up(session).await?;
                    bail!(
                        "The message {id} of '{name}' is locked by a transaction, its handler's as a rule: try again when that has ended, or end it; `rowmq workers` shows the connections."
                    );
                }
                Attempt::Asked(_) | Attempt::Locked => tokio::time::sleep(LOOK).await,
                Attempt::Over(StateWord::Logged) => bail!(
                    "The message {id} is in the log of the stream '{name}', for every group: have a group pass over it with `rowmq group reset {name}@GROUP`."
                ),
                Attempt::Over(StateWord::Dead) => bail!(
                    "The message {id} is a dead letter of '{name}': no consumer handles it; `rowmq dead purge {name} {id}` deletes it."
                ),
                Attempt::Over(state) => bail!(
                    "The message {id} of '{name}' cannot be cancelled any more: it is {}.",
                    state.word()
                ),
                Attempt::Unknown => bail!(
                    "There is no message {id} in '{name}', or none any more: it may have been handled; `rowmq find {name} {id}` searches for it."
                ),
            }
        }
    }
}
