//! The tries of one batch: how many, how long, and their announcement.

use std::time::Duration;

use rowmq_core::{Error, telemetry};
use tokio::time::Instant;

use crate::batch::Batch;
use crate::error::SendError;
use crate::options::{ProducerOptions, Progress};

/// Whether the batch has been handed to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Never,
    /// In the current transaction.
    Now,
    /// In an earlier transaction.
    Before,
}

/// The tries of one batch so far.
pub(crate) struct Tries<'a> {
    batch: &'a Batch,
    options: &'a ProducerOptions,
    since: Instant,
    /// For how long it is tried.
    patience: Duration,
    waits: u32,
    pauses: u32,
    sent: Sent,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(batch: &'a Batch, options: &'a ProducerOptions) -> Self {
        let give_up_after = options.resend.give_up_after;
        // What is not stored by then goes into the journal.
        let spill = options.spill.as_ref().map(|spill| spill.after.min(give_up_after));
        let patience = spill.unwrap_or(give_up_after);
        Self {
            batch,
            options,
            since: batch.since,
            patience,
            waits: 0,
            pauses: 0,
            sent: Sent::Never,
        }
    }

    /// The tries of a batch whose topic is full, after this many waits and with nothing sent. It
    /// gets the whole time: in a journal, the other topics' messages would queue behind it.
    pub(crate) fn for_room(waits: u32, batch: &'a Batch, options: &'a ProducerOptions) -> Self {
        let patience = options.resend.give_up_after;
        Self { waits, pauses: waits, patience, ..Self::new(batch, options) }
    }

    /// A transaction begins.
    pub(crate) fn begin(&mut self) {
        if self.sent == Sent::Now {
            self.sent = Sent::Before;
        }
    }

    /// The batch is handed to the server within the transaction. Rounds of one transaction after a
    /// conflict count once.
    pub(crate) fn hand_over(&mut self) {
        if std::mem::replace(&mut self.sent, Sent::Now) == Sent::Before {
            let Batch { topic, messages, .. } = self.batch;
            telemetry::resent(topic.as_str());
            self.tell(Progress::Resending { topic, messages: messages.len() });
        }
    }

    /// Waits before the batch is tried again, or hands the error back if it must not be.
    pub(crate) async fn pause(&mut self, error: Error) -> Result<(), Error> {
        if self.options.resend.max_resends.is_some_and(|most| self.pauses >= most) {
            return Err(error);
        }
        self.wait(error).await?;
        self.pauses += 1;
        Ok(())
    }

    /// Waits before the lane is asked again for the batch's outcome, or hands the error back if the
    /// time is up. Asking does not count as a resend.
    pub(crate) async fn wait(&mut self, error: Error) -> Result<(), Error> {
        let left = self.patience.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            return Err(error);
        }
        self.waits += 1;
        // The last try comes when the time is up, so that the whole time is used.
        let wait = self.options.resend.backoff.delay(self.waits).min(left);
        self.announce(wait, &error);
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// The error of a batch that is given up and is certainly not stored.
    pub(crate) fn gave_up(&self, source: Error) -> SendError {
        SendError::GaveUp {
            topic: self.batch.topic.clone(),
            messages: self.batch.messages.len(),
            tries: self.pauses + 1,
            elapsed: self.since.elapsed(),
            source,
        }
    }

    /// The error of a batch that may or may not be stored.
    pub(crate) fn unknown(&self, reason: String) -> SendError {
        let Batch { topic, messages, .. } = self.batch;
        SendError::Unknown { topic: topic.clone(), messages: messages.len(), reason }
    }

    fn announce(&self, wait: Duration, error: &Error) {
        let Batch { topic, messages, .. } = self.batch;
        tracing::warn!(
            topic.name = %topic,
            batch.messages = messages.len(),
            resend.wait_ms = wait.as_millis(),
            resend.elapsed_ms = self.since.elapsed().as_millis(),
            %error,
            "A batch is not acknowledged yet and will be tried again."
        );
        self.tell(Progress::Waiting { topic, messages: messages.len(), wait, error });
    }

    fn tell(&self, progress: Progress<'_>) {
        if let Some(listener) = &self.options.on_progress {
            listener.tell(progress);
        }
    }
}
