use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join;
use rowmq_core::codec::Encoding;
use rowmq_core::connection::ServerUrl;
use rowmq_core::{NewMessage, Result, TopicName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::accumulator::{self, Accumulator, BatchKey, Sequence};
use crate::batch::Batch;
use crate::error::SendError;
use crate::lanes::Lanes;
use crate::options::ProducerOptions;
use crate::outlet::{Journal, Outlet, Unit};
use crate::receipt::{Outcome, Receipt, Sent, Tell};
use crate::spill::{Drain, Spill};

/// Sends messages in transactions of its own. Cheap to clone; all clones share the lanes.
///
/// A `send` that returned `Ok` is committed, or, if it says so, in the spill journal on this
/// machine's disk. If it is dropped before it returns, its message may still be stored, once, or
/// not at all; nothing else is affected. Messages of one caller that awaits each `send` are stored
/// in that order; concurrent sends have no order among them.
#[derive(Debug, Clone)]
pub struct Producer {
    lanes: Lanes,
    outlet: Outlet,
    accumulator: Arc<Accumulator>,
    encoding: Encoding,
    /// Ends the draining of the journal.
    end: CancellationToken,
}

impl Producer {
    /// Connects to the server. The lanes run on a thread of their own, whatever the runtime.
    ///
    /// # Errors
    /// [`Connect`](rowmq_core::Error::Connect) when the server cannot be reached, unless there is a
    /// spill journal: only later failures are tried again. A database failure when the queue's
    /// tables are missing. [`Spill`](rowmq_core::Error::Spill) when the journal's directory cannot
    /// be used.
    pub async fn connect(url: ServerUrl, options: ProducerOptions) -> Result<Self> {
        let options = Arc::new(options);
        let (collecting, encoding) = (Arc::clone(&options), options.encoding.clone());
        let (accumulator, incoming) = Accumulator::new(&options.batching);
        let end = CancellationToken::new();
        let (mut journal, mut drain) = (None, None);
        if let Some(spill) = &options.spill {
            let spill = Spill::open(spill).await?;
            drain = Some(Drain::new(spill.clone(), url.clone(), Arc::clone(&options), end.clone()));
            journal = Some(Journal::new(spill, Arc::clone(&options), end.clone()));
        }
        let collected = journal.clone();
        let beside = |lanes| {
            let collect = accumulator::run(incoming, Outlet::new(lanes, collected), collecting);
            let drain = async {
                if let Some(drain) = drain {
                    drain.run().await;
                }
            };
            join(collect, drain).map(drop)
        };
        let lanes = Lanes::start(url, options, beside).await?;
        let outlet = Outlet::new(lanes.clone(), journal);
        Ok(Self { lanes, outlet, accumulator: Arc::new(accumulator), encoding, end })
    }

    /// Sends one message and waits until it is stored, or in the spill journal: the answer says
    /// which. For a duplicate, the answer has the id of the existing message. While all lanes are
    /// busy, the messages that wait share the next transaction; an error of one message reaches its
    /// sender only.
    ///
    /// # Errors
    /// [`SendError::Refused`] at once, when another try would end the same way: an unknown or
    /// paused topic, a body beyond the topic's limit, a missing grant. The others after the
    /// [`ResendPolicy`](crate::ResendPolicy)'s time.
    pub async fn send(&self, topic: &TopicName, message: NewMessage) -> Result<Sent, SendError> {
        tracing::trace!(step = "send");
        let span = span(topic, &message);
        let sent = async { self.accept(topic, Sequence::Free, message).await?.await };
        sent.instrument(span).await
    }

    /// Sends messages, in order, and waits until all of them are stored, or in the spill journal.
    /// They are one transaction: whatever happens, all of them are stored or none. One transaction
    /// must finish within the [`lease`](ProducerOptions::lease), so send some hundreds or thousands
    /// at a time. Returns the outcome of each: if some are duplicates, the others are stored all
    /// the same.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_all(
        &self,
        topic: &TopicName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Sent>, SendError> {
        tracing::trace!(step = "send_all");
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let encoded =
            messages.into_iter().map(|message| message.encoded_for(topic, &self.encoding));
        let messages = encoded.collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = messages.iter().map(|message| message.msg_id).collect();
        let batch = Batch { topic: topic.clone(), messages, since: Instant::now() };
        let places = self.outlet.send(batch, Unit::Whole).await.outcome?;
        Ok(ids.into_iter().enumerate().map(|(nth, id)| places.of(nth, id)).collect())
    }

    /// Accepts a message, to be stored together with others, and returns as soon as there is room
    /// for it; the [`Receipt`] resolves when it is stored. Messages of one topic are stored in the
    /// order in which they were accepted; those of one batch share a transaction, as
    /// [`ProducerOptions::batching`](crate::ProducerOptions) says. Until it is stored, or the
    /// receipt says that it is in the spill journal, an accepted message exists only in this
    /// process.
    ///
    /// # Errors
    /// [`SendError::Closed`]; [`SendError::Refused`] by a codec. The receipt's are those of
    /// [`Producer::send`]: an error of one message reaches its receipt only, and the time of the
    /// [`ResendPolicy`](crate::ResendPolicy) counts from here.
    pub async fn send_async(
        &self,
        topic: &TopicName,
        message: NewMessage,
    ) -> Result<Receipt, SendError> {
        let span = span(topic, &message);
        self.accept(topic, Sequence::Kept, message).instrument(span).await
    }

    /// As [`Producer::send_async`], with a function that is called with the outcome. It runs on the
    /// lanes' thread and should return at once; a panic in it is logged and ends nothing else.
    ///
    /// # Errors
    /// [`SendError::Closed`], [`SendError::Refused`] by a codec; the function is not called then.
    pub async fn send_then(
        &self,
        topic: &TopicName,
        message: NewMessage,
        then: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), SendError> {
        let message = message.encoded_for(topic, &self.encoding)?;
        let key = BatchKey { topic: topic.clone(), sequence: Sequence::Kept };
        self.accumulator.accept(key, message, Tell::Callback(Box::new(then))).await
    }

    async fn accept(
        &self,
        topic: &TopicName,
        sequence: Sequence,
        message: NewMessage,
    ) -> Result<Receipt, SendError> {
        let (receipt, tell) = Receipt::new(message.msg_id);
        let message = message.encoded_for(topic, &self.encoding)?;
        let key = BatchKey { topic: topic.clone(), sequence };
        self.accumulator.accept(key, message, tell).await?;
        Ok(receipt)
    }

    /// How many messages are in the spill journal and not stored yet.
    #[must_use]
    pub fn in_journal(&self) -> u64 {
        self.outlet.spill().map_or(0, |spill| spill.state().messages)
    }

    /// Waits until the spill journal is empty; what earlier processes left in its directory is sent
    /// first. May be dropped while it waits.
    ///
    /// # Errors
    /// [`SendError::Closed`] when the producer is closed before that.
    pub async fn drained(&self) -> Result<(), SendError> {
        match self.outlet.spill() {
            Some(spill) => spill.emptied().await,
            None => Ok(()),
        }
    }

    /// Waits for everything accepted and in flight, then closes the lanes and their connections.
    /// Later sends, also of clones, fail with [`SendError::Closed`]. What is in the spill journal
    /// stays there for the next producer with its directory; to wait for it, call
    /// [`Producer::drained`] first.
    ///
    /// A producer that is only dropped closes its lanes in the background. If the process ends
    /// before that, the janitor prunes what is left in the database.
    pub async fn close(&self) {
        self.accumulator.close().await;
        self.outlet.rest().await;
        self.lanes.close().await;
        self.end.cancel();
        if let Some(spill) = self.outlet.spill() {
            spill.closed().await;
        }
    }
}

/// The span of sending a message that is part of a distributed trace. For any other message there
/// is no span, at no cost. The message keeps its header as it was given, which does not name this
/// span.
fn span(topic: &TopicName, message: &NewMessage) -> Span {
    let Some(parent) = message.headers.traceparent() else { return Span::none() };
    tracing::info_span!(
        "send",
        topic.name = %topic,
        message.id = %message.msg_id,
        trace_id = parent.trace_id(),
        span_id = parent.span_id(),
        sampled = parent.is_sampled(),
    )
}
