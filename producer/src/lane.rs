//! A lane: one connection, one sequence number, one batch under way.

use std::sync::Arc;

use queue_core::connection::{Link, ServerUrl, Session, SessionKind};
use queue_core::store::lane::{self, LaneId};
use queue_core::topic::TopicSettings;
use queue_core::{Error, Fault, Result, TopicName, chance, enqueue_to, store};

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
    Stored,
    /// Nothing was in doubt, and the lane is not where it was left: pruned, or gone with a restored
    /// backup. Not stored.
    LaneGone,
    /// Certainly not stored.
    Failed(Error),
    /// The connection broke, or the server erred, during COMMIT; the lane stood here before.
    InDoubt(Position, Error),
}

/// What became of a batch that was in doubt.
enum Found {
    Stored,
    NotStored,
}

/// How far a transaction came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it is known to have reached the server.
    Begin,
    /// It may hold locks, and its COMMIT has not been sent.
    Working,
    /// Its COMMIT may have been sent.
    Committing,
}

impl Lane {
    pub(crate) fn new(url: ServerUrl, options: Arc<ProducerOptions>) -> Self {
        Self { url, options, session: None, position: None }
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
            tracing::debug!(lane.id = %id.0, %error, "A lane's row stays until it is pruned.");
        }
        self.session = None;
        self.position = None;
    }

    /// Stores the batch once, trying until it is stored, refused, or no longer to be tried.
    /// `wanted` says whether anybody still waits for it.
    pub(crate) async fn send(
        &mut self,
        batch: &Batch,
        wanted: impl Fn() -> bool,
    ) -> Result<(), SendError> {
        let options = Arc::clone(&self.options);
        let mut tries = Tries::new(batch, &options);
        loop {
            let error = match self.try_once(batch, &mut tries).await {
                Attempt::Stored => return Ok(()),
                Attempt::LaneGone => lane_gone(),
                Attempt::Failed(error) => error,
                Attempt::InDoubt(before, error) => match self.find_out(before, &mut tries).await? {
                    Found::Stored => return Ok(()),
                    Found::NotStored => error,
                },
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

    /// One transaction: BEGIN, read the topic, advance the lane, insert, COMMIT.
    ///
    /// The topic is read in every transaction, not cached: a round trip of some 50 µs beside a
    /// commit that waits for the disk, and a pause, a new limit or a topic deleted and made anew
    /// holds from the next message on.
    async fn transact(&mut self, batch: &Batch, tries: &mut Tries<'_>) -> Attempt {
        let (session, position) = match self.stand().await {
            Ok(standing) => standing,
            Err(error) => return Attempt::Failed(error),
        };
        tries.begin();
        let mut stage = Stage::Begin;
        let done = session
            .transaction("send the batch", async |conn| {
                stage = Stage::Working;
                let topic = store::topic::find(conn, &batch.topic).await?;
                let topic =
                    topic.ok_or_else(|| Error::UnknownTopic { topic: batch.topic.clone() })?;
                let advanced = lane::advance(conn, position.id, position.seq + 1).await?;
                if advanced == 1 {
                    tries.hand_over();
                    enqueue_to(conn, &topic, &batch.messages).await?;
                    stage = Stage::Committing;
                }
                Ok(advanced)
            })
            .await;
        let lost = session.is_lost();
        match done {
            Ok(1) => {
                self.position = Some(Position { seq: position.seq + 1, ..position });
                Attempt::Stored
            }
            Ok(_) => {
                self.position = None;
                Attempt::LaneGone
            }
            Err(error) if stage == Stage::Committing => Attempt::InDoubt(position, error),
            Err(error) => {
                // Its row may stay locked until the server notices that the connection is gone.
                // That transaction can never commit, so another lane may go ahead of it.
                if lost && stage == Stage::Working {
                    self.position = None;
                }
                Attempt::Failed(certain(error))
            }
        }
    }

    /// Asks the lane what became of the batch, until it answers.
    async fn find_out(
        &mut self,
        before: Position,
        tries: &mut Tries<'_>,
    ) -> Result<Found, SendError> {
        // If it cannot be found out, the next batch must not build on it.
        self.position = None;
        loop {
            let error = match self.settled_seq(before.id).await {
                Ok(Some(seq)) if seq == before.seq => {
                    self.position = Some(before);
                    return Ok(Found::NotStored);
                }
                Ok(Some(seq)) if seq == before.seq + 1 => {
                    self.position = Some(Position { seq, ..before });
                    return Ok(Found::Stored);
                }
                Ok(_) => return Err(tries.unknown("its lane is gone".to_owned())),
                Err(error) => error,
            };
            if !error.is_transient() {
                return Err(tries.unknown(error.to_string()));
            }
            tries.wait(error).await.map_err(|error| tries.unknown(error.to_string()))?;
        }
    }

    async fn settled_seq(&mut self, id: LaneId) -> Result<Option<u64>> {
        let session = self.connected().await?;
        session.call("read the lane", async |conn| lane::settled_seq(conn, id).await).await
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
                let id = LaneId(chance::name());
                session.call("open the lane", async |conn| lane::open(conn, id).await).await?;
                Position { id, seq: 0 }
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

/// The failure of a transaction whose COMMIT was not sent: a session that met its deadline cannot
/// know that, and says that the outcome is unknown.
fn certain(error: Error) -> Error {
    match error {
        Error::UnknownOutcome { operation, message } => {
            Error::Database { operation, fault: Fault::Gone, message }
        }
        error => error,
    }
}

/// Twice in a row, the lane just opened among them.
fn lane_gone() -> Error {
    Error::Counts { operation: "advance the lane", expected: 1, found: 0 }
}
