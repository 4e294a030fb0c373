//! The pull API: deliveries that the caller's own code settles (seed 002: the ack is the business's
//! own call).

mod received;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rowmq_core::checkpoint::Keeper;
use rowmq_core::codec::Codecs;
use rowmq_core::connection::{Link, Pool, ServerUrl, Session, SessionKind};
use rowmq_core::handler::RunOutcome;
use rowmq_core::model::Settlement;
use rowmq_core::telemetry::TopicMeter;
use rowmq_core::wake::{self, Wakes};
use rowmq_core::worker::{Claimed, Phase, Worker, WorkerOptions};
use rowmq_core::{Topic, TopicName, store, telemetry};
use rowmq_service::identity;
use tokio::sync::RwLock;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bell::Bell;
use crate::consumer::{CALL_DEADLINE, CONNECTIONS, is_consumable};
use crate::error::Error;
use crate::ledger::Ledger;
use crate::members::Members;
use crate::options::ConsumerOptions;
use crate::permit::{GatePermit, HeldCount, Permit};
use crate::poll::Poll;
use crate::services::{BUSY_PAUSE, Interruption, SUSPECT_PAUSE, Services};
use crate::settler::Settler;
use crate::sweep;

pub use self::received::Received;

/// How long a delivery is held before it is given back because the ledger cannot be read.
const PAUSE: Duration = Duration::from_secs(1);

/// Claims messages of one topic and hands them out one by one.
pub struct Receiver {
    url: ServerUrl,
    options: ConsumerOptions,
    topic: Arc<Topic>,
    batch: u32,
    services: Services,
    wakes: Wakes,
    bell: Bell,
    poll: Poll,
    waiting: VecDeque<Received>,
    /// When a suspect may be claimed.
    suspect_at: Option<Instant>,
    meter: TopicMeter,
    codecs: Codecs,
    /// Ends the sweeper of the current worker.
    sweeping: DropGuard,
}

impl Receiver {
    /// Connects a receiver that claims up to `batch` messages at once. A larger batch needs fewer
    /// round trips, but its messages wait in this process. From an ordered group it claims one
    /// message at a time of each partition.
    ///
    /// # Errors
    /// An unknown topic, no server.
    pub async fn connect(
        url: ServerUrl,
        topic: TopicName,
        batch: u32,
        options: ConsumerOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let mut session = Session::open(&url, SessionKind::Plain, CALL_DEADLINE).await?;
        let find = async |conn: &mut Link| store::topic::find(conn, &topic).await;
        let found = session.call("find the topic", find).await?;
        drop(session);
        let Some(found) = found else {
            return Err(rowmq_core::Error::UnknownTopic { topic }.into());
        };
        is_consumable(&found)?;
        let found = Arc::new(found);
        options.check_member([Arc::clone(&found)])?;
        let members = Members::new(options.member.clone());
        let bell = Bell::new(&url, &options);
        bell.listen(&found);
        let (services, sweeping) = register(&url, &options, &bell, members).await?;
        let wakes = wake::listen(&url, &topic);
        let (poll, waiting) = (Poll::new(), VecDeque::new());
        // In an ordered group the caller must hold nothing that could overtake a failed message.
        let is_ordered = found.group().is_some_and(|group| group.ordered);
        let batch = if is_ordered { 1 } else { batch.max(1) };
        let meter = TopicMeter::new(topic.as_str());
        Ok(Self {
            url,
            options,
            topic: found,
            batch,
            services,
            wakes,
            bell,
            poll,
            waiting,
            suspect_at: None,
            meter,
            codecs: Codecs::default(),
            sweeping,
        })
    }

    /// Sets the codecs that decode encoded bodies. The default is gzip. A message that none of them
    /// decodes is dead-lettered and not handed out.
    #[must_use]
    pub fn with_codecs(mut self, codecs: Codecs) -> Self {
        self.codecs = codecs;
        self
    }

    /// Returns the next message; waits for one if there is none. Safe to drop half-way: what was
    /// claimed by then is released.
    ///
    /// A message that was in two crashes is handed out [alone](Received::is_alone): only while you
    /// hold no other delivery of this receiver, and nothing more is handed out until you have
    /// settled or dropped it. So do not wait for another message while you hold one that is alone.
    /// You may keep every other delivery while you ask for more: when a suspect is due, this call
    /// waits up to a second for you to settle what you hold, and then continues without the
    /// suspect. A caller that always holds a delivery thus never gets a suspect; another consumer
    /// of the topic does.
    ///
    /// # Errors
    /// When this receiver was declared dead, and the server cannot be reached to register again.
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            if matches!(self.services.worker.life().borrow().phase, Phase::Dead { .. }) {
                self.waiting.clear();
                let members = self.services.members.clone();
                (self.services, self.sweeping) =
                    register(&self.url, &self.options, &self.bell, members).await?;
            }
            if let Some(mut received) = self.waiting.pop_front() {
                if received.is_cancelled() {
                    received.hand_over(received.settlement(RunOutcome::Cancelled), None);
                    continue;
                }
                if self.services.worker.has_lost(received.delivery.claim_no) {
                    // The worker that now holds its range handles it.
                    continue;
                }
                match self.sift(received).await {
                    Some(received) => return Ok(received),
                    None => continue,
                }
            }
            let due = self.due();
            // Only for this turn: the caller may drop this future, and ask again much later.
            let mut idleness = self.bell.idleness();
            idleness.as_mut().into_iter().for_each(|it| it.set(self.poll.is_idle()));
            // In order, so that a simulation can repeat it.
            tokio::select! {
                biased;
                () = self.wakes.next() => self.poll.wake(),
                () = self.bell.turned() => self.poll.wake(),
                () = tokio::time::sleep_until(due) => self.claim().await,
            }
        }
    }

    /// Releases what was not handed out, and deregisters. Deliveries that the caller still holds
    /// are released too: settle them first.
    ///
    /// # Errors
    /// When the worker was declared dead, or the server cannot be reached.
    pub async fn close(mut self) -> Result<(), Error> {
        self.waiting.clear();
        self.services.worker.begin_stop();
        self.services.settler.finish().await;
        Ok(self.services.worker.stop().await?)
    }

    /// Filters out a delivery if another message with its biz id has been handled. If the ledger
    /// cannot be read, the delivery is released.
    async fn sift(&self, mut received: Received) -> Option<Received> {
        let keys: Vec<&[u8]> = Ledger::key(&self.topic, &received.delivery).into_iter().collect();
        match self.services.ledger.handled(&self.topic, &keys).await {
            Ok(handled) if handled.is_empty() => self.decode(received),
            Ok(_) => {
                received.hand_over(Settlement::Repeated, None);
                None
            }
            Err(error) => {
                tracing::warn!(
                    topic.name = %self.topic.name, %error,
                    "A delivery is given back: the ledger cannot be read."
                );
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    /// Decodes the body; dead-letters a message that cannot be decoded.
    fn decode(&self, mut received: Received) -> Option<Received> {
        match self.codecs.decoded(&self.topic.name, &received.delivery) {
            Ok(None) => {}
            Ok(Some(decoded)) => received.delivery = Arc::new(decoded),
            Err(error) => {
                tracing::error!(
                    topic.name = %self.topic.name, message.id = %received.msg_id, %error,
                    "Message is dead-lettered."
                );
                let undecodable = RunOutcome::Undecodable(error.to_string());
                received.hand_over(received.settlement(undecodable), None);
                return None;
            }
        }
        Some(received)
    }

    /// Returns when to claim next, for a suspect or for other messages.
    fn due(&self) -> Instant {
        self.suspect_at.map_or(self.poll.due(), |at| at.min(self.poll.due()))
    }

    async fn claim(&mut self) {
        let asked = if self.suspect_at.is_some_and(|at| at <= Instant::now()) {
            let asked = self.services.claim_alone(&self.topic).await;
            // Only now: the suspect is still due if this future is dropped before.
            self.suspect_at = None;
            asked
        } else {
            self.poll.begun();
            let shared = GatePermit::Shared(Arc::clone(&self.services.gate).read_owned().await);
            self.claim_shared().await.map(|claimed| Some((claimed, shared)))
        };
        let now = Instant::now();
        match asked {
            Ok(Some((claimed, gate))) => self.take(claimed, gate, now),
            Ok(None) => {
                self.suspect_at = Some(now + BUSY_PAUSE);
                tracing::debug!(
                    topic.name = %self.topic.name,
                    "A suspect waits until nothing else of this receiver is held."
                );
            }
            Err(error) => {
                tracing::debug!(topic.name = %self.topic.name, %error, "Claim fails; trying again.");
                self.poll.failed(now);
            }
        }
    }

    async fn claim_shared(&self) -> rowmq_core::Result<Claimed> {
        let member = self.services.members.of(&self.topic)?;
        self.services.worker.claim_of(&self.topic, member.as_ref(), self.batch).await
    }

    /// Queues what was claimed for the caller.
    fn take(&mut self, claimed: Claimed, gate: GatePermit, now: Instant) {
        let name = self.topic.name.as_str();
        telemetry::lost_to_retention(name, claimed.lost);
        telemetry::filtered(name, claimed.filtered);
        if claimed.suspect_waits && self.suspect_at.is_none() {
            self.suspect_at = Some(now + SUSPECT_PAUSE);
        }
        if claimed.deliveries.is_empty() && claimed.filtered == 0 {
            self.poll.empty(now, self.bell.is_ringing() && !claimed.more_later);
            return;
        }
        telemetry::claimed(name, claimed.deliveries.len());
        self.poll.found(now);
        let gate = Arc::new(gate);
        for delivery in claimed.deliveries {
            self.meter.picked_up(&delivery);
            self.services.picked_up(self.topic.id, &delivery);
            let counts = [HeldCount::default(), self.services.settler.held()];
            let mut received = Received {
                delivery: Arc::new(delivery),
                topic: self.topic.clone(),
                settler: self.services.settler.clone(),
                worker: self.services.worker.clone(),
                permit: Some(Permit::new(Arc::clone(&gate), counts)),
            };
            if received.is_expired() {
                received.hand_over(received.settlement(RunOutcome::Expired), None);
            } else {
                self.waiting.push_back(received);
            }
        }
    }
}

async fn register(
    url: &ServerUrl,
    options: &ConsumerOptions,
    bell: &Bell,
    members: Members,
) -> Result<(Services, DropGuard), Error> {
    let worker = Worker::start(WorkerOptions {
        url: url.clone(),
        client_id: identity::client_id(),
        lease: options.lease,
        beat: options.beat,
        strategy: options.claim_strategy,
        doorbell: bell.doorbell(),
    })
    .await?;
    let pool = Pool::new(url.clone(), CONNECTIONS, CALL_DEADLINE)?;
    let stop = CancellationToken::new();
    sweep::start(url, options, &worker, stop.clone());
    let services = Services {
        settler: Settler::start(worker.clone(), None),
        ledger: Ledger::new(pool.clone()),
        keeper: Arc::new(Keeper::new(pool, worker.id())),
        members,
        worker,
        gate: Arc::new(RwLock::new(())),
        interruption: Interruption::default(),
    };
    Ok((services, stop.drop_guard()))
}
