//! Sends an input to the producer, in order and batch by batch, and reports the items that fail.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use rowmq_core::{NewMessage, TopicName};
use rowmq_producer::{Producer, SendError, Sent};
use rowmq_service::health::Health;
use rowmq_service::process::sentence;
use rowmq_service::signals::Shutdown;

use super::bar::Bar;
use super::intake::{Intake, Item};
use super::pace::Pace;
use super::summary::Summary;
use crate::spill_args::SpillArgs;

/// How often the loop turns while there is no input.
const TURN: Duration = Duration::from_secs(5);

/// The sending of one input.
pub(crate) struct Sending {
    pub(crate) producer: Producer,
    pub(crate) topic: TopicName,
    pub(crate) skip_bad: bool,
    pub(crate) bar: Bar,
    pub(crate) place: Box<dyn Fn(u64) -> String + Send + Sync>,
    pub(crate) shutdown: Shutdown,
    pub(crate) summary: Summary,
}

/// A message and where it comes from.
struct Sourced {
    number: u64,
    end: u64,
    message: NewMessage,
}

impl Sending {
    /// Sends what `intake` yields until its end, a failure or a signal.
    pub(crate) async fn all(
        &mut self,
        intake: &Intake,
        mut pace: Pace,
        batch: u32,
        health: &Health,
    ) -> anyhow::Result<()> {
        let limit = pace.batch(batch as usize);
        // Until the end is reached, input is left.
        self.summary.left = true;
        loop {
            health.alive();
            let items = tokio::select! {
                biased;
                () = self.shutdown.drain.cancelled() => break,
                items = intake.take(limit) => items?,
                () = tokio::time::sleep(TURN) => continue,
            };
            if items.is_empty() {
                self.summary.left = false;
                break;
            }
            let booked = tokio::time::sleep_until(pace.book(items.len()));
            if self.shutdown.drain.run_until_cancelled(booked).await.is_none() {
                intake.stop();
                return Ok(());
            }
            if self.items(items).await.is_break() {
                break;
            }
        }
        // After a signal, all of the input may have been read all the same.
        self.summary.left = self.summary.left && intake.stop();
        Ok(())
    }

    /// Sends a batch as it was read, and reports the items in between that are no message.
    async fn items(&mut self, items: Vec<Item>) -> ControlFlow<()> {
        let mut batch = Vec::with_capacity(items.len());
        for Item { number, end, message } in items {
            match message {
                Ok(message) => batch.push(Sourced { number, end, message }),
                Err(why) => {
                    self.batch(std::mem::take(&mut batch)).await?;
                    let place = (self.place)(number);
                    self.bad(&format!("{place} is no message: {why}"))?;
                }
            }
        }
        self.batch(batch).await
    }

    /// Sends a batch. If the server refuses a message for its content, the batch is halved until
    /// that message is alone, so that the others are still stored.
    async fn batch(&mut self, batch: Vec<Sourced>) -> ControlFlow<()> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let n = part.len() as u64;
            let Some(last) = part.last() else { continue };
            let (number, end) = (last.number, last.end);
            let messages = part.iter().map(|sourced| sourced.message.clone()).collect();
            match self.send(messages).await {
                Ok(sent) => {
                    self.summary.sent += n;
                    let is_there = |one: &&Sent| one.enqueued().is_some_and(|it| !it.is_stored());
                    self.summary.duplicates += sent.iter().filter(is_there).count() as u64;
                    self.bar.sent(self.summary.sent, end);
                }
                Err(error) if error.is_about_message() && n > 1 => {
                    let tail = part.split_off(part.len() / 2);
                    parts.extend([tail, part]);
                }
                Err(error) if error.is_about_message() => {
                    let place = (self.place)(number);
                    self.bad(&format!("{place} was not sent: {}", sentence(&error.into())))?;
                }
                Err(error) => {
                    self.summary.failed += n;
                    if matches!(error, SendError::Unknown { .. }) {
                        self.summary.unknown += n;
                    }
                    self.bar.say(&reason(error));
                    return Break(());
                }
            }
        }
        Continue(())
    }

    /// Sends messages, and waits for the answer unless a second signal comes.
    async fn send(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>, SendError> {
        let unknown = SendError::Unknown {
            topic: self.topic.clone(),
            messages: messages.len(),
            reason: "stopped at once by a signal".to_owned(),
        };
        let sent = self.producer.send_all(&self.topic, messages);
        self.shutdown.quit.run_until_cancelled(sent).await.unwrap_or(Err(unknown))
    }

    /// Counts and reports something that cannot be sent.
    fn bad(&mut self, sentence: &str) -> ControlFlow<()> {
        self.summary.failed += 1;
        if self.skip_bad {
            self.bar.say(sentence);
            return Continue(());
        }
        let sentence = sentence.trim_end_matches('.');
        self.bar.say(&format!("{sentence}; correct it, or go on past it with --skip-bad"));
        Break(())
    }

    /// Waits until every spilled message is stored, or until a signal.
    pub(crate) async fn drained(&self, health: &Health) {
        let show = async {
            loop {
                health.alive();
                self.bar.draining(self.producer.in_journal());
                tokio::time::sleep(TURN).await;
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.drain.cancelled() => {}
            // If the producer is closed, what is left stays in the journal, and is counted.
            _ = self.producer.drained() => {}
            () = show => {}
        }
    }

    /// Closes the producer, and waits for it unless a second signal says not to.
    pub(crate) async fn end(mut self, spill: &SpillArgs) -> Summary {
        self.summary.in_journal = self.producer.in_journal();
        if let (1.., Some(dir)) = (self.summary.in_journal, &spill.spill_dir) {
            self.bar.say(&format!(
                "{} message(s) are in {} and not stored yet: `rowmq-producer send` and `rowmq-producer relay` send them when they are given it as --spill-dir again",
                self.summary.in_journal,
                dir.display()
            ));
        }
        self.bar.finish();
        let closed = self.producer.close();
        // If the wait is cut short, the lane's row stays, and the janitor prunes it.
        let _cut_short = self.shutdown.quit.run_until_cancelled(closed).await;
        self.summary
    }
}

/// The error as one sentence, with the fix where one is known.
fn reason(error: SendError) -> String {
    match error {
        SendError::Refused(error) => sentence(&error.into()),
        error => sentence(&error.into()),
    }
}
