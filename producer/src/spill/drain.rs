//! Sends what is in the journal, in order, through a lane of its own.
//!
//! Before a batch is sent, the journal records its lane and where that lane stands. After a crash,
//! the next process asks that lane for the outcome. So each batch is stored once.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use rowmq_core::connection::ServerUrl;
use rowmq_core::store::lane::Fenced;
use rowmq_core::{Enqueued, Error, telemetry, wake};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Group, Intent, Spill, aside};
use crate::batch::Batch;
use crate::error::{SendError, is_about_message};
use crate::lane::{Attempt, Lane, Position, Turns, lane_gone};
use crate::options::{ProducerOptions, Progress};
use crate::resend::Tries;

/// After this many waits, about each minute, the log repeats what keeps the journal from being
/// sent.
const WAITS_A_LINE: u32 = 30;

/// See the module.
pub(crate) struct Drain {
    spill: Spill,
    lane: Lane,
    url: ServerUrl,
    options: Arc<ProducerOptions>,
    end: CancellationToken,
    /// Waits since the last batch was sent.
    waits: u32,
}

/// The outcome of a batch.
enum Done {
    /// Stored; as far as is known, this many of its messages were there already.
    Stored { duplicates: usize },
    /// It is in doubt, and its outcome can no longer be found out.
    Unknown,
    /// It would be refused again.
    Refused(Error),
}

impl Drain {
    pub(crate) fn new(
        spill: Spill,
        url: ServerUrl,
        options: Arc<ProducerOptions>,
        end: CancellationToken,
    ) -> Self {
        let lane = Lane::new(url.clone(), Arc::clone(&options), Turns::default());
        Self { spill, lane, url, options, end, waits: 0 }
    }

    /// Sends until it is asked to end.
    pub(crate) async fn run(mut self) {
        let end = self.end.clone();
        loop {
            if self.spill.state().is_empty() {
                // Nothing is in doubt, and the cursor says so.
                self.lane.close().await;
            }
            // Only a channel is awaited here.
            match end.run_until_cancelled(self.spill.filled()).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => break,
            }
            if self.batch().await.is_break() {
                break;
            }
        }
        // A lane that stands has nothing in doubt. Its row may be removed once the journal does not
        // name it.
        if self.lane.stands() && self.spill.intend(None).await.is_err() {
            self.lane.leave();
        }
        self.lane.close().await;
        self.spill.close().await;
    }

    /// Sends the next batch, or finds the outcome of one that is in doubt.
    async fn batch(&mut self) -> ControlFlow<()> {
        let mut group = match self.spill.peek().await {
            Ok(group) => group,
            Err(error) => return self.wait(None, &error).await,
        };
        let Some(first) = group.records.first() else { return Continue(()) };
        let asked = [group.intent.map(|intent| intent.position), first.doubt];
        for position in asked.into_iter().flatten() {
            match self.ask(&group, position).await? {
                Fenced::Stored => {
                    return self.settle(group, Done::Stored { duplicates: 0 }).await;
                }
                Fenced::Gone => return self.settle(group, Done::Unknown).await,
                Fenced::NotStored => {}
            }
        }
        loop {
            match self.send(&group).await? {
                Done::Refused(error) if is_about_message(&error) && group.records.len() > 1 => {
                    // Halve the batch until that message is alone, so that the others are still
                    // stored.
                    group.truncate(group.records.len() / 2);
                }
                done => return self.settle(group, done).await,
            }
        }
    }

    /// Asks a lane for the outcome of a batch until it answers.
    async fn ask(&mut self, group: &Group, position: Position) -> ControlFlow<(), Fenced> {
        loop {
            match self.lane.fence(position).await {
                Ok(fenced) => return Continue(fenced),
                Err(error) => self.wait(Some(group), &error).await?,
            }
        }
    }

    /// Sends a batch until it is stored, or cannot be.
    async fn send(&mut self, group: &Group) -> ControlFlow<(), Done> {
        let Some(first) = group.records.first() else { return Continue(stored(&[])) };
        let messages = group.records.iter().flat_map(|record| record.messages.iter().cloned());
        let batch = Batch {
            topic: first.topic.clone(),
            messages: messages.collect(),
            since: Instant::now(),
        };
        let options = Arc::clone(&self.options);
        let mut tries = Tries::new(&batch, &options);
        let (mut intended, mut created, mut reopened) = (None, false, false);
        loop {
            let error = match self.attempt(group, &batch, &mut tries, &mut intended).await {
                Attempt::Stored(enqueued) => return Continue(stored(&enqueued)),
                Attempt::LaneGone if !reopened => {
                    reopened = true;
                    continue;
                }
                Attempt::LaneGone => lane_gone(),
                Attempt::InDoubt(before, enqueued, error) => {
                    self.lane.leave();
                    match self.ask(group, before).await? {
                        Fenced::Stored => return Continue(stored(&enqueued)),
                        Fenced::Gone => return Continue(Done::Unknown),
                        Fenced::NotStored => error,
                    }
                }
                Attempt::Failed(error @ Error::UnknownTopic { .. })
                    if self.options.auto_create_topics =>
                {
                    match self.lane.create_topic(&batch.topic).await {
                        Ok(()) if !created => {
                            created = true;
                            continue;
                        }
                        // Another session deletes the topic whenever this one creates it.
                        Ok(()) => {
                            self.wait(Some(group), &error).await?;
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Attempt::Failed(error) => error,
            };
            if is_about_message(&error) || matches!(error, Error::UnknownTopic { .. }) {
                return Continue(Done::Refused(error));
            }
            self.wait(Some(group), &error).await?;
        }
    }

    /// Sends a batch once, through a lane that the journal names. `intended` is the position that
    /// the journal already holds.
    async fn attempt(
        &mut self,
        group: &Group,
        batch: &Batch,
        tries: &mut Tries<'_>,
        intended: &mut Option<Position>,
    ) -> Attempt {
        let position = match self.lane.open().await {
            Ok(position) => position,
            Err(error) => return Attempt::Failed(error),
        };
        if *intended != Some(position) {
            let intent = Intent { records: group.records.len() as u64, position };
            if let Err(error) = self.spill.intend(Some(intent)).await {
                return Attempt::Failed(error);
            }
            *intended = Some(position);
        }
        self.lane.transact(batch, tries).await
    }

    /// Records the outcome of the group, which is then never sent again.
    async fn settle(&mut self, group: Group, done: Done) -> ControlFlow<()> {
        let Some(topic) = group.records.first().map(|record| record.topic.clone()) else {
            return Continue(());
        };
        let (messages, group) = (group.messages(), Arc::new(group));
        let duplicates = if let Done::Stored { duplicates } = done { duplicates } else { 0 };
        let unsent = match done {
            Done::Stored { .. } => None,
            Done::Refused(error) => Some(SendError::Refused(error)),
            Done::Unknown => {
                let reason = "its lane is gone, with a restored backup, a failover, or time";
                Some(SendError::Unknown {
                    topic: topic.clone(),
                    messages,
                    reason: reason.to_owned(),
                })
            }
        };
        // Reported before the journal is seen to be empty: a caller that waits for that also counts
        // this event.
        self.tell(match &unsent {
            None => Progress::Drained { topic: &topic, messages },
            Some(_) => Progress::SetAside { topic: &topic, messages },
        });
        while let Err(error) = self.spill.settle(Arc::clone(&group), unsent.clone()).await {
            if let Break(()) = self.wait(Some(&group), &error).await {
                // The lane, or the file that holds the group, records the outcome for the next
                // process.
                self.lane.leave();
                return Break(());
            }
        }
        self.waits = 0;
        match unsent {
            None => {
                telemetry::enqueued(topic.as_str(), messages.saturating_sub(duplicates));
                telemetry::duplicates(topic.as_str(), duplicates);
                telemetry::drained(topic.as_str(), messages);
                wake::wake(&self.url, &topic);
            }
            Some(why) => {
                telemetry::set_aside(topic.as_str(), aside::reason(&why), messages);
            }
        }
        Continue(())
    }

    /// Waits before the next try; breaks when it is time to end.
    async fn wait(&mut self, group: Option<&Group>, error: &Error) -> ControlFlow<()> {
        self.waits = self.waits.saturating_add(1);
        let wait = self.options.resend.backoff.delay(self.waits);
        if self.waits % WAITS_A_LINE == 1 {
            tracing::warn!(
                spill.messages = self.spill.state().messages, %error,
                "The spill journal cannot be sent yet and will be tried again."
            );
        }
        if let Some(record) = group.and_then(|group| group.records.first()) {
            let (topic, messages) = (&record.topic, group.map_or(0, Group::messages));
            self.tell(Progress::Waiting { topic, messages, wait, error });
        }
        match self.end.run_until_cancelled(tokio::time::sleep(wait)).await {
            Some(()) => Continue(()),
            None => Break(()),
        }
    }

    fn tell(&self, progress: Progress<'_>) {
        if let Some(listener) = &self.options.on_progress {
            listener.tell(progress);
        }
    }
}

fn stored(enqueued: &[Enqueued]) -> Done {
    Done::Stored { duplicates: enqueued.iter().filter(|one| !one.is_stored()).count() }
}
