//! A lane: one connection, one sequence number, one batch in flight.

mod insert;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use rowmq_core::connection::{Link, ServerUrl, Session, SessionKind};
use rowmq_core::model::TopicSettings;
use rowmq_core::store::lane::{self, Fenced, LaneId, LaneKind};
use rowmq_core::{Enqueued, Error, Fault, Result, Topic, TopicName, chance, store};
use tokio::time::Instant;

use self::insert::{Stage, TryProgress, store_batch};
pub(crate) use self::turns::Turns;

use crate::batch::Batch;
use crate::error::SendError;
use crate::options::ProducerOptions;
use crate::resend::Tries;

/// A lane. Between two batches, no batch of it is in doubt.
pub(crate) struct Lane {
    url: ServerUrl,
    options: Arc<ProducerOptions>,
    turns: Turns,
    kind: LaneKind,
    session: Option<Session>,
    position: Option<Position>,
    /// The recently used topics, and when each was read. A topic that refused a batch is not kept.
    topics: HashMap<TopicName, (Instant, Topic)>,
}

/// Where an open lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) id: LaneId,
    /// The sequence number of the last batch that was committed.
    pub(crate) seq: u64,
}

/// Why a batch is not stored, or is not known to be stored.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) error: SendError,
    /// Where its lane stood, if a later process can learn from it whether the batch is stored.
    pub(crate) doubt: Option<Position>,
}

impl From<SendError> for Unsent {
    fn from(error: SendError) -> Self {
        Self { error, doubt: None }
    }
}

/// The outcome of one try.
pub(crate) enum Attempt {
    /// The outcome of each message.
    Stored(Vec<Enqueued>),
    /// Nothing was in doubt, but the lane is not where it was left: a failover or a restored backup
    /// has lost its row. Not stored.
    LaneGone,
    /// Certainly not stored.
    Failed(Error),
    /// The connection broke, or the server failed, when the batch may have been committed. The lane
    /// stood here before. If the batch was committed, this is the outcome of each message.
    InDoubt(Position, Vec<Enqueued>, Error),
}

/// The outcome of a batch that was in doubt.
enum Found {
    Stored,
    NotStored,
}

impl Lane {
    pub(crate) fn new(url: ServerUrl, options: Arc<ProducerOptions>, turns: Turns) -> Self {
        // A batch in doubt may go into the journal, and another process may ask about it.
        let kind = match options.spill {
            Some(_) => LaneKind::Durable,
            None => LaneKind::Passing,
        };
        Self { url, options, turns, kind, session: None, position: None, topics: HashMap::new() }
    }

    /// Connects and opens the lane unless that is done, and returns where it stands.
    pub(crate) async fn open(&mut self) -> Result<Position> {
        self.stand().await.map(|(_, position)| position)
    }

    /// Whether there is anything to [`close`](Self::close).
    pub(crate) fn is_open(&self) -> bool {
        self.session.is_some() || self.position.is_some()
    }

    /// Removes the lane's row and closes the connection; the next batch opens another lane. A row
    /// that cannot be removed is pruned by the janitor.
    pub(crate) async fn close(&mut self) {
        if let (Some(session), Some(Position { id, .. })) = (&mut self.session, self.position)
            && let Err(error) =
                session.call("close the lane", async |conn| lane::close(conn, id).await).await
        {
            tracing::debug!(lane.name = %id.name, %error, "A lane's row stays until it is pruned.");
        }
        self.session = None;
        self.position = None;
    }

    /// Stores the batch once: retries until it is stored, refused, or no longer to be tried.
    /// Returns the outcome of each message. A refusal that [will pass](Error::is_transient) is that
    /// of a full topic. `wanted` says whether a caller still waits for the batch.
    pub(crate) async fn send(
        &mut self,
        batch: &Batch,
        wanted: impl Fn() -> bool,
    ) -> Result<Vec<Enqueued>, Unsent> {
        tracing::trace!(step = "send");
        let options = Arc::clone(&self.options);
        let mut tries = Tries::new(batch, &options);
        loop {
            let error = match self.try_once(batch, &mut tries).await {
                Attempt::Stored(enqueued) => return Ok(enqueued),
                Attempt::LaneGone => lane_gone(),
                Attempt::Failed(error) => error,
                Attempt::InDoubt(before, enqueued, error) => {
                    match self.find_out(before, &mut tries).await? {
                        Found::Stored => return Ok(enqueued),
                        Found::NotStored => error,
                    }
                }
            };
            // The lane does not wait for room in a topic.
            if !error.is_transient() || matches!(error, Error::TopicFull { .. }) {
                return Err(SendError::Refused(error).into());
            }
            if !wanted() {
                return Err(tries.gave_up(error).into());
            }
            tries.pause(error).await.map_err(|error| tries.gave_up(error))?;
        }
    }

    async fn try_once(&mut self, batch: &Batch, tries: &mut Tries<'_>) -> Attempt {
        let (mut created, mut reopened) = (false, false);
        loop {
            match self.transact(batch, tries).await {
                Attempt::Failed(Error::UnknownTopic { topic })
                    if self.options.auto_create_topics && !created =>
                {
                    if let Err(error) = self.create_topic(&topic).await {
                        return Attempt::Failed(error);
                    }
                    created = true;
                }
                Attempt::LaneGone if !reopened => reopened = true,
                attempt => return attempt,
            }
        }
    }

    /// Runs one transaction through the lane where it stands.
    pub(crate) async fn transact(&mut self, batch: &Batch, tries: &mut Tries<'_>) -> Attempt {
        let topic = match self.topic(&batch.topic).await {
            Ok(topic) => topic,
            Err(error) => return Attempt::Failed(error),
        };
        let turns = self.turns.clone();
        let (session, position) = match self.stand().await {
            Ok(standing) => standing,
            Err(error) => return Attempt::Failed(error),
        };
        let turn = turns.take(&topic, &batch.messages).await;
        tries.begin();
        let mut progress = TryProgress { stage: Stage::Before, enqueued: Vec::new() };
        let done = session
            .call("send the batch", async |conn| {
                store_batch(conn, &topic, batch, position, tries, &mut progress).await
            })
            .await;
        drop(turn);
        let lost = session.is_lost();
        let TryProgress { stage, enqueued } = progress;
        match (done, stage) {
            (Ok(()), _) => {
                self.position = Some(Position { seq: position.seq + 1, ..position });
                Attempt::Stored(enqueued)
            }
            (Err(error), Stage::Before) => {
                self.topics.remove(&batch.topic);
                Attempt::Failed(error)
            }
            // The server has rolled it back.
            (Err(error), _) if error.fault().is_conflict() => Attempt::Failed(error),
            (Err(error), _) if error.fault() == Fault::ReadOnly => Attempt::Failed(error),
            (Err(error), Stage::Working) if lost => {
                // The lane's row may stay locked until the server notices that the connection is
                // gone. That transaction can never commit, so another lane may overtake it.
                self.position = None;
                Attempt::Failed(error)
            }
            (Err(error), _) if lost || error.fault() == Fault::Interrupted => {
                Attempt::InDoubt(position, enqueued, error)
            }
            (Err(error), _) => self.refused(position, enqueued, error).await,
        }
    }

    /// Handles an error of a server that still answers: it has refused the batch, or the lane is
    /// not where it was left.
    async fn refused(&mut self, left: Position, enqueued: Vec<Enqueued>, error: Error) -> Attempt {
        let read = match self.connected().await {
            Ok(session) => {
                session.call("read the lane", async |conn| lane::seq(conn, left.id).await).await
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(Some(seq)) if seq == left.seq => Attempt::Failed(error),
            // The server failed after its commit.
            Ok(Some(seq)) if seq == left.seq + 1 => {
                self.position = Some(Position { seq, ..left });
                Attempt::Stored(enqueued)
            }
            Ok(_) => {
                self.position = None;
                Attempt::LaneGone
            }
            Err(_) => Attempt::InDoubt(left, enqueued, error),
        }
    }

    /// Asks the lane for the outcome of the batch until it answers.
    async fn find_out(&mut self, before: Position, tries: &mut Tries<'_>) -> Result<Found, Unsent> {
        // A batch in doubt may still be on its way, and must then find this lane fenced. So the
        // lane's row stays, and the next batch uses another lane.
        self.position = None;
        let in_doubt = |error| Unsent { error, doubt: Some(before) };
        loop {
            let error = match self.fence(before).await {
                Ok(Fenced::Stored) => return Ok(Found::Stored),
                Ok(Fenced::NotStored) => return Ok(Found::NotStored),
                Ok(Fenced::Gone) => {
                    return Err(tries.unknown("its lane is gone".to_owned()).into());
                }
                Err(error) => error,
            };
            if !error.is_transient() {
                return Err(in_doubt(tries.unknown(error.to_string())));
            }
            let waited = tries.wait(error).await;
            waited.map_err(|error| in_doubt(tries.unknown(error.to_string())))?;
        }
    }

    /// Whether the lane is open, so that nothing is in doubt in it.
    pub(crate) fn stands(&self) -> bool {
        self.position.is_some()
    }

    /// Uses another lane from now on: a batch in doubt may still arrive at this one.
    pub(crate) fn leave(&mut self) {
        self.position = None;
    }

    /// Asks a lane for the outcome of a batch that began at this position. The answer is final, so
    /// the question may be repeated, also when an earlier answer was lost.
    pub(crate) async fn fence(&mut self, Position { id, seq }: Position) -> Result<Fenced> {
        let session = self.connected().await?;
        session.call("read the lane", async |conn| lane::fence(conn, id, seq).await).await
    }

    /// The topic as it is, or was a moment ago; the short-lived copy makes a send one round trip.
    async fn topic(&mut self, name: &TopicName) -> Result<Topic> {
        if let Some((read_at, topic)) = self.topics.get(name)
            && read_at.elapsed() < topic.known_for()
        {
            return Ok(topic.clone());
        }
        self.topics.retain(|_, (read_at, topic)| read_at.elapsed() < topic.known_for());
        let session = self.connected().await?;
        let read_at = Instant::now();
        let read = async |conn: &mut Link| store::topic::existing(conn, name).await;
        let topic = session.call("read the topic", read).await?;
        self.topics.insert(name.clone(), (read_at, topic.clone()));
        Ok(topic)
    }

    pub(crate) async fn create_topic(&mut self, topic: &TopicName) -> Result<()> {
        let session = self.connected().await?;
        let settings = TopicSettings::default();
        let create = async |conn: &mut Link| store::topic::create(conn, topic, &settings).await;
        match session.call("create the topic", create).await {
            Err(Error::TopicExists { .. }) => Ok(()),
            created => created,
        }
    }

    /// A connection and an open lane.
    async fn stand(&mut self) -> Result<(&mut Session, Position)> {
        let (open, kind) = (self.position, self.kind);
        let session = self.connected().await?;
        let position = match open {
            Some(position) => position,
            None => {
                let name = chance::name();
                let open = async |conn: &mut Link| lane::open(conn, kind, name).await;
                Position { id: session.call("open the lane", open).await?, seq: 0 }
            }
        };
        self.position = Some(position);
        match &mut self.session {
            Some(session) => Ok((session, position)),
            None => unreachable!("connected above"),
        }
    }

    /// The connection, or a new one if it is lost.
    async fn connected(&mut self) -> Result<&mut Session> {
        let standing = self.session.take().filter(|session| !session.is_lost());
        let session = match standing {
            Some(session) => session,
            None => {
                let lease = self.options.lease;
                // Leased, because its transactions hold locks. Behind a cut cable, the server would
                // keep those locks for hours, and the outcome of a batch could not be found out
                // until then.
                Session::open(&self.url, SessionKind::Leased(lease), lease).await?
            }
        };
        Ok(self.session.insert(session))
    }
}

/// The error when lanes were gone twice in a row, the second one just opened.
pub(crate) fn lane_gone() -> Error {
    Error::Counts { operation: "advance the lane", expected: 1, found: 0 }
}
