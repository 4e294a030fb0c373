//! Where a producer's batches leave: to the server, or into the spill journal while that is not
//! empty or the server accepts nothing.

use std::sync::Arc;

use rowmq_core::{Enqueued, Error, MsgId, NewMessage};
use tokio::sync::RwLock;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::batch::Batch;
use crate::error::SendError;
use crate::lane::{Position, Unsent};
use crate::lanes::{self, Lanes};
use crate::options::{ProducerOptions, Progress};
use crate::receipt::{Destination, Sent};
use crate::spill::{NotAppended, Record, Spill, Spilled};

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    lanes: Lanes,
    journal: Option<Arc<Journal>>,
}

/// The journal of a producer that has one.
#[derive(Debug)]
pub(crate) struct Journal {
    spill: Spill,
    options: Arc<ProducerOptions>,
    /// Shared by the sends in flight: a batch in doubt must find the journal open.
    under_way: RwLock<()>,
    /// Ends the draining of the journal when all senders are gone.
    _end: DropGuard,
}

/// How the messages of a batch belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// All of them are stored or none.
    Whole,
    /// They only go to the same place.
    Apart,
}

/// The outcome of a batch.
pub(crate) struct BatchResult {
    pub(crate) outcome: Result<Destinations, SendError>,
    /// The batch's messages; none when the producer is closed.
    pub(crate) messages: Vec<NewMessage>,
}

/// Where the messages of a batch are.
pub(crate) enum Destinations {
    /// On the server, with the outcome of each.
    Enqueued(Vec<Enqueued>),
    /// In the journal, in one record or in one each.
    Spilled(Spilled, Unit),
}

impl Destinations {
    /// Where the `n`th message is; `id` is its id.
    pub(crate) fn of(&self, n: usize, id: MsgId) -> Sent {
        let spilled = match self {
            Self::Enqueued(enqueued) => {
                return enqueued.get(n).map_or_else(|| Sent::stored(id), |one| Sent::from(*one));
            }
            Self::Spilled(spilled, Unit::Whole) => spilled.clone(),
            Self::Spilled(spilled, Unit::Apart) => spilled.nth(n),
        };
        Sent { msg_id: id, destination: Destination::Spilled(spilled) }
    }
}

impl Outlet {
    pub(crate) fn new(lanes: Lanes, journal: Option<Arc<Journal>>) -> Self {
        Self { lanes, journal }
    }

    /// Sends a batch.
    pub(crate) async fn send(&self, batch: Batch, unit: Unit) -> BatchResult {
        match &self.journal {
            Some(journal) => journal.send(&self.lanes, batch, unit).await,
            None => {
                let sent = self.lanes.send(self.lanes.seat().await, batch).await;
                let outcome = sent.outcome.map(Destinations::Enqueued);
                let outcome = outcome.map_err(|unsent| unsent.error);
                BatchResult { outcome, messages: sent.messages }
            }
        }
    }

    /// Waits until no send is in flight, but no longer than a send can take: those left then are
    /// futures that are never polled.
    pub(crate) async fn rest(&self) {
        if let Some(Journal { options, under_way, .. }) = self.journal.as_deref() {
            let most = options.resend.give_up_after.saturating_add(options.lease * 2);
            drop(tokio::time::timeout(most, under_way.write()).await);
        }
    }

    /// The journal, if there is one.
    pub(crate) fn spill(&self) -> Option<&Spill> {
        self.journal.as_ref().map(|journal| &journal.spill)
    }
}

impl Journal {
    /// `end` is cancelled when the journal is dropped.
    pub(crate) fn new(
        spill: Spill,
        options: Arc<ProducerOptions>,
        end: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self { spill, options, under_way: RwLock::new(()), _end: end.drop_guard() })
    }

    async fn send(&self, lanes: &Lanes, mut batch: Batch, unit: Unit) -> BatchResult {
        // A message that no server accepts must be found before its sender stops waiting for it.
        if let Err(error) = batch.messages.iter().try_for_each(NewMessage::check) {
            let outcome = Err(SendError::Refused(error));
            return BatchResult { outcome, messages: batch.messages };
        }
        let _under_way = self.under_way.read().await;
        let mut doubt = None;
        loop {
            if doubt.is_none() && !self.spill.is_filled() {
                match self.directly(lanes, batch).await {
                    Ok(left) => return left,
                    Err((back, position)) => (batch, doubt) = (back, position),
                }
            }
            match self.spill(batch, unit, doubt).await {
                Ok(left) => return left,
                Err(back) => batch = back,
            }
        }
    }

    /// Sends the batch to the server. Hands it back when it has to go into the journal, with the
    /// position of its lane if it is in doubt.
    async fn directly(
        &self,
        lanes: &Lanes,
        batch: Batch,
    ) -> Result<BatchResult, (Batch, Option<Position>)> {
        let seat = tokio::select! {
            biased;
            seat = lanes.seat() => seat,
            Ok(()) = self.spill.filled() => return Err((batch, None)),
        };
        let (topic, since) = (batch.topic.clone(), batch.since);
        let lanes::Sent { outcome, messages } = lanes.send(seat, batch).await;
        let Unsent { error, doubt } = match outcome {
            Ok(enqueued) => {
                return Ok(BatchResult { outcome: Ok(Destinations::Enqueued(enqueued)), messages });
            }
            Err(unsent) => unsent,
        };
        match error {
            // The server is up; in the journal, all other topics would queue behind this topic's
            // batch.
            full @ SendError::GaveUp { source: Error::TopicFull { .. }, .. } => {
                Ok(BatchResult { outcome: Err(full), messages })
            }
            SendError::GaveUp { .. } => Err((Batch { topic, messages, since }, None)),
            SendError::Unknown { .. } if doubt.is_some() => {
                Err((Batch { topic, messages, since }, doubt))
            }
            error => Ok(BatchResult { outcome: Err(error), messages }),
        }
    }

    /// Puts the batch into the journal; hands it back after a wait if the journal has no room for
    /// it. If its messages need not stay together, it does not wait but reports that there is no
    /// room, so that a part of them can be tried.
    async fn spill(
        &self,
        batch: Batch,
        unit: Unit,
        doubt: Option<Position>,
    ) -> Result<BatchResult, Batch> {
        let Batch { topic, messages, since } = batch;
        // A batch in doubt is stored as a whole or not at all.
        let unit = if doubt.is_some() { Unit::Whole } else { unit };
        let record = |messages| Record { topic: topic.clone(), messages, doubt };
        let records = match unit {
            Unit::Whole => vec![record(messages)],
            Unit::Apart => messages.into_iter().map(|message| record(vec![message])).collect(),
        };
        let n = records.iter().map(|record| record.messages.len()).sum();
        let (why, records) = match self.spill.append(records).await {
            Ok(spilled) => {
                if let Some(listener) = &self.options.on_progress {
                    listener.tell(Progress::Spilled { topic: &topic, messages: n });
                }
                let outcome = Ok(Destinations::Spilled(spilled, unit));
                return Ok(BatchResult { outcome, messages: Vec::new() });
            }
            Err(back) => back,
        };
        let messages = records.into_iter().flat_map(|record| record.messages).collect();
        let Some(why) = why else {
            let error = match doubt {
                Some(_) => {
                    let reason = "the producer was closed in the meantime".to_owned();
                    SendError::Unknown { topic, messages: n, reason }
                }
                None => SendError::Closed,
            };
            return Ok(BatchResult { outcome: Err(error), messages });
        };
        let parted = matches!(why, NotAppended::Full) && unit == Unit::Apart && n > 1;
        if parted || !self.wait(since).await {
            let limit = self.options.spill.as_ref().map_or(0, |spill| spill.limit_bytes.get());
            let (reason, error) = match why {
                NotAppended::Full => (
                    "the spill journal is full".to_owned(),
                    SendError::SpillFull { topic: topic.clone(), messages: n, limit },
                ),
                NotAppended::Failed(reason) => (
                    format!("the spill journal cannot be written: {reason}"),
                    SendError::SpillFailed { topic: topic.clone(), messages: n, reason },
                ),
            };
            let error = match doubt {
                Some(_) => SendError::Unknown { topic, messages: n, reason },
                None => error,
            };
            return Ok(BatchResult { outcome: Err(error), messages });
        }
        Err(Batch { topic, messages, since })
    }

    /// Waits for room in the journal, or for a while; false when the batch's time is up.
    async fn wait(&self, since: Instant) -> bool {
        let resend = &self.options.resend;
        let left = resend.give_up_after.saturating_sub(since.elapsed());
        if left.is_zero() {
            return false;
        }
        let pause = tokio::time::sleep(resend.backoff.delay(u32::MAX).min(left));
        tokio::select! {
            () = self.spill.changed() => {}
            () = pause => {}
        }
        true
    }
}
