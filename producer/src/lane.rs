//! A lane: one connection, one sequence number, one batch under way.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use queue_core::connection::{
    Link, ServerUrl, Session, SessionKind, again_on_conflict, transaction,
};
use queue_core::store::enqueue::insert_in_lane;
use queue_core::store::lane::{self, Fenced, LaneId};
use queue_core::topic::{TOPIC_KNOWN_FOR, TopicSettings};
use queue_core::{
    Enqueued, Error, Fault, NewMessage, Part, Result, Topic, TopicName, chance,
    enqueue_in_transaction, is_plain, statements, store,
};
use tokio::time::Instant;

use crate::batch::Batch;
use crate::error::SendError;
use crate::options::ProducerOptions;
use crate::resend::Tries;

/// A lane. Between two batches nothing is ever in doubt in it.
pub(crate) struct Lane {
    url: ServerUrl,
    options: Arc<ProducerOptions>,
    session: Option<Session>,
    position: Option<Position>,
    /// The topics sent to of late, and when each was read. Those that refused a batch are not kept.
    topics: HashMap<TopicName, (Instant, Topic)>,
}

/// Where an open lane stands.
#[derive(Debug, Clone, Copy)]
struct Position {
    id: LaneId,
    /// The sequence number of the last batch that was committed.
    seq: u64,
}

/// What became of one try.
enum Attempt {
    /// What became of each message.
    Stored(Vec<Enqueued>),
    /// Nothing was in doubt, and the lane is not where it was left: gone with a failover or a
    /// restored backup. Not stored.
    LaneGone,
    /// Certainly not stored.
    Failed(Error),
    /// The connection broke, or the server erred, when the batch may have been committed; the lane
    /// stood here before. If it was committed, this became of each message.
    InDoubt(Position, Vec<Enqueued>, Error),
}

/// What became of a batch that was in doubt.
enum Found {
    Stored,
    NotStored,
}

/// How far a batch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it has been sent.
    Before,
    /// Its transaction may hold locks, and its COMMIT has not been sent.
    Working,
    /// What commits it may have been sent.
    Committing,
}

/// How far a try came.
struct Course {
    stage: Stage,
    /// What becomes of each message if it is committed.
    enqueued: Vec<Enqueued>,
}

impl Lane {
    pub(crate) fn new(url: ServerUrl, options: Arc<ProducerOptions>) -> Self {
        Self { url, options, session: None, position: None, topics: HashMap::new() }
    }

    /// Connects and opens the lane, if that is still to be done.
    pub(crate) async fn open(&mut self) -> Result<()> {
        self.stand().await.map(drop)
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

    /// Stores the batch once, trying until it is stored, refused, or no longer to be tried.
    /// `wanted` says whether anybody still waits for it. What became of each message.
    pub(crate) async fn send(
        &mut self,
        batch: &Batch,
        wanted: impl Fn() -> bool,
    ) -> Result<Vec<Enqueued>, SendError> {
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
            if !error.is_transient() {
                return Err(SendError::Refused(error));
            }
            if !wanted() {
                return Err(tries.gave_up(error));
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

    async fn transact(&mut self, batch: &Batch, tries: &mut Tries<'_>) -> Attempt {
        let topic = match self.topic(&batch.topic).await {
            Ok(topic) => topic,
            Err(error) => return Attempt::Failed(error),
        };
        let (session, position) = match self.stand().await {
            Ok(standing) => standing,
            Err(error) => return Attempt::Failed(error),
        };
        tries.begin();
        let mut course = Course { stage: Stage::Before, enqueued: Vec::new() };
        let done = session
            .call("send the batch", async |conn| {
                store_batch(conn, &topic, batch, position, tries, &mut course).await
            })
            .await;
        let lost = session.is_lost();
        let Course { stage, enqueued } = course;
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
                // gone. That transaction can never commit, so another lane may go ahead of it.
                self.position = None;
                Attempt::Failed(error)
            }
            (Err(error), _) if lost || error.fault() == Fault::Interrupted => {
                Attempt::InDoubt(position, enqueued, error)
            }
            (Err(error), _) => self.refused(position, enqueued, error).await,
        }
    }

    /// What a server that answers has refused: the batch, or a lane that is not where it was left.
    async fn refused(&mut self, left: Position, enqueued: Vec<Enqueued>, error: Error) -> Attempt {
        let read = match self.connected().await {
            Ok(session) => {
                session.call("read the lane", async |conn| lane::seq(conn, left.id).await).await
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(Some(seq)) if seq == left.seq => Attempt::Failed(error),
            // It erred after its commit.
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

    /// Asks the lane what became of the batch, until it answers.
    async fn find_out(
        &mut self,
        before: Position,
        tries: &mut Tries<'_>,
    ) -> Result<Found, SendError> {
        // What is in doubt may still be on its way, and then finds this lane fenced. So the lane's
        // row stays, and the next batch goes through another.
        self.position = None;
        loop {
            let error = match self.fence(before).await {
                Ok(Fenced::Stored) => return Ok(Found::Stored),
                Ok(Fenced::NotStored) => return Ok(Found::NotStored),
                Ok(Fenced::Gone) => return Err(tries.unknown("its lane is gone".to_owned())),
                Err(error) => error,
            };
            if !error.is_transient() {
                return Err(tries.unknown(error.to_string()));
            }
            tries.wait(error).await.map_err(|error| tries.unknown(error.to_string()))?;
        }
    }

    async fn fence(&mut self, Position { id, seq }: Position) -> Result<Fenced> {
        let session = self.connected().await?;
        session.call("read the lane", async |conn| lane::fence(conn, id, seq).await).await
    }

    /// The topic as it is, or was a moment ago: then a send is one round trip.
    async fn topic(&mut self, name: &TopicName) -> Result<Topic> {
        if let Some((read_at, topic)) = self.topics.get(name)
            && read_at.elapsed() < TOPIC_KNOWN_FOR
        {
            return Ok(topic.clone());
        }
        self.topics.retain(|_, (read_at, _)| read_at.elapsed() < TOPIC_KNOWN_FOR);
        let session = self.connected().await?;
        let read_at = Instant::now();
        let read = async |conn: &mut Link| store::topic::existing(conn, name).await;
        let topic = session.call("read the topic", read).await?;
        self.topics.insert(name.clone(), (read_at, topic.clone()));
        Ok(topic)
    }

    async fn create_topic(&mut self, topic: &TopicName) -> Result<()> {
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
        let open = self.position;
        let session = self.connected().await?;
        let position = match open {
            Some(position) => position,
            None => {
                let name = chance::name();
                let open = async |conn: &mut Link| lane::open(conn, name).await;
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
                // Leased, because its transactions hold locks: behind a cut cable the server would
                // keep them for hours, and with them the answer to what became of a batch.
                Session::open(&self.url, SessionKind::Leased(lease), lease).await?
            }
        };
        Ok(self.session.insert(session))
    }
}

/// Stores a batch and advances the lane: in one statement that commits by itself, or, if it is too
/// large for one, in a transaction whose last INSERT advances the lane.
async fn store_batch(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    position: Position,
    tries: &mut Tries<'_>,
    course: &mut Course,
) -> Result<()> {
    const OPERATION: &str = "send the batch";
    let Position { id, seq } = position;
    if !is_plain(topic, &batch.messages) {
        return store_once(conn, topic, batch, position, tries, course).await;
    }
    let sorted = sorted(&batch.messages);
    let parts = statements(conn, topic, &sorted).await?;
    let stored = |message: &NewMessage| Enqueued::Stored(message.msg_id);
    course.enqueued = batch.messages.iter().map(stored).collect();
    // The lane's row can only be advanced beside messages that are ready, or alone.
    let (first, last) = match parts.split_last() {
        Some((Part::Ready(last), first)) => (first, *last),
        Some((Part::Later(_), _)) => (&parts[..], &[][..]),
        None => return Ok(()),
    };
    tries.hand_over();
    if first.is_empty() {
        course.stage = Stage::Committing;
        let insert =
            async |conn: &mut Link| insert_in_lane(conn, topic.id, last, id, seq + 1).await;
        return again_on_conflict(conn, OPERATION, insert).await;
    }
    transaction(conn, OPERATION, async |conn| {
        course.stage = Stage::Working;
        for part in first {
            part.insert(conn, topic.id).await?;
        }
        insert_in_lane(conn, topic.id, last, id, seq + 1).await?;
        course.stage = Stage::Committing;
        Ok(())
    })
    .await
}

/// The same for a batch in which are messages that may be duplicates. Which of them are is known
/// before the commit, so that it is known too if that has no answer.
async fn store_once(
    conn: &mut Link,
    topic: &Topic,
    batch: &Batch,
    Position { id, seq }: Position,
    tries: &mut Tries<'_>,
    course: &mut Course,
) -> Result<()> {
    tries.hand_over();
    transaction(conn, "send the batch", async |conn| {
        course.stage = Stage::Working;
        course.enqueued = enqueue_in_transaction(conn, topic, &batch.messages).await?;
        insert_in_lane(conn, topic.id, &[], id, seq + 1).await?;
        course.stage = Stage::Committing;
        Ok(())
    })
    .await
}

/// The delayed messages first: in any other order they would be a statement each. Order is promised
/// to those that are ready, and they keep it.
fn sorted(messages: &[NewMessage]) -> Cow<'_, [NewMessage]> {
    let is_ready = |message: &NewMessage| message.deliver.is_none();
    if messages.is_sorted_by_key(is_ready) {
        return Cow::Borrowed(messages);
    }
    let mut sorted = messages.to_vec();
    sorted.sort_by_key(is_ready);
    Cow::Owned(sorted)
}

/// Twice in a row, the lane just opened among them.
fn lane_gone() -> Error {
    Error::Counts { operation: "advance the lane", expected: 1, found: 0 }
}
