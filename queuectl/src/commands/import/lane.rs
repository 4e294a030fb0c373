use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use queue_core::connection::{Link, ServerUrl, Session, SessionKind};
use queue_core::store::enqueue::insert_in_lane;
use queue_core::store::lane::{self, LaneId, LaneKind};
use queue_core::store::topic;
use queue_core::{Enqueued, NewMessage, chance, enqueue_in_transaction};

use super::plan::{Piece, Plan};

/// How long a transaction may take, and after which silence the server drops the connection: what
/// was under way on one that is lost holds the lane for so long.
const LEASE: Duration = Duration::from_secs(10);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The lane of an import. Its number says how many pieces are stored, as the transaction of each
/// piece takes it one further; so whatever is cut off, a process or a connection, and whatever a
/// failover loses, the number and the messages go together. A transaction that is still under way
/// on a connection that was lost takes the number that the next one wants, and only one of the two
/// can commit.
pub(super) struct Lane {
    url: ServerUrl,
    give_up_after: Duration,
    session: Option<Session>,
}

/// What became of the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Those that were imported before.
    pub(super) earlier: u64,
    /// Those that were not stored, as their ids or unique keys are known.
    pub(super) duplicates: u64,
}

impl Lane {
    pub(super) fn new(url: ServerUrl, give_up_after: Duration) -> Self {
        Self { url, give_up_after, session: None }
    }

    /// A new lane.
    pub(super) async fn open(&mut self) -> queue_core::Result<LaneId> {
        let name = chance::name();
        let open = async |conn: &mut Link| lane::open(conn, LaneKind::Durable, name).await;
        self.connected().await?.call("open the lane", open).await
    }

    /// Stores what is not stored yet. `tell` hears how many messages are.
    pub(super) async fn store(
        &mut self,
        id: LaneId,
        plan: &Plan,
        tell: impl Fn(usize),
    ) -> anyhow::Result<Tally> {
        let mut stored = self.stored(id).await?;
        let mut tally = Tally { earlier: messages(plan, stored), duplicates: 0 };
        let mut since = Instant::now();
        loop {
            tell(usize::try_from(messages(plan, stored)).unwrap_or(usize::MAX));
            let Some(piece) = plan.pieces.get(index(stored)) else {
                // MariaDB may say of a statement that somebody has killed that all is well.
                stored = self.stored(id).await?;
                if index(stored) >= plan.pieces.len() {
                    return Ok(tally);
                }
                continue;
            };
            let of_piece = plan.messages_of(piece)?;
            let mut enqueued = Vec::new();
            let done = self.store_piece(id, stored, piece, &of_piece, &mut enqueued).await;
            let found = match &done {
                Ok(()) => stored + 1,
                // It may be committed all the same, or another process was here.
                Err(_) => self.found(id, stored).await?,
            };
            match done {
                _ if found > stored => {
                    tally.duplicates +=
                        enqueued.iter().filter(|one| !one.is_stored()).count() as u64;
                    (stored, since) = (found, Instant::now());
                }
                Err(error) if !error.is_transient() || since.elapsed() > self.give_up_after => {
                    return Err(error).with_context(|| plan.place(piece));
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Stores a piece and takes the lane from `stored` to the next number, in one transaction.
    async fn store_piece(
        &mut self,
        id: LaneId,
        stored: u64,
        Piece { topic: name, .. }: &Piece,
        messages: &[NewMessage],
        enqueued: &mut Vec<Enqueued>,
    ) -> queue_core::Result<()> {
        let session = self.connected().await?;
        session
            .transaction("import", async |conn| {
                // Asked each time: it may have been closed since, or be full.
                let topic = topic::existing(conn, name).await?;
                *enqueued = enqueue_in_transaction(conn, &topic, messages).await?;
                insert_in_lane(conn, topic.id, &[], id, stored + 1).await
            })
            .await
    }

    /// Where the lane stands after a failure; as before, if that cannot be learned now.
    async fn found(&mut self, id: LaneId, before: u64) -> anyhow::Result<u64> {
        match self.seq(id).await {
            Ok(Some(seq)) => Ok(seq),
            Ok(None) => Err(forgotten()),
            Err(_) => Ok(before),
        }
    }

    async fn stored(&mut self, id: LaneId) -> anyhow::Result<u64> {
        self.seq(id).await?.ok_or_else(forgotten)
    }

    async fn seq(&mut self, id: LaneId) -> queue_core::Result<Option<u64>> {
        let session = self.connected().await?;
        session.call("read the lane", async |conn| lane::seq(conn, id).await).await
    }

    /// The connection, or a new one if it is lost.
    async fn connected(&mut self) -> queue_core::Result<&mut Session> {
        let session = match self.session.take().filter(|session| !session.is_lost()) {
            Some(session) => session,
            // Leased, because its transactions hold locks.
            None => Session::open(&self.url, SessionKind::Leased(LEASE), LEASE).await?,
        };
        Ok(self.session.insert(session))
    }
}

fn forgotten() -> anyhow::Error {
    anyhow!(
        "The database knows nothing of this import: is QUEUE_URL another one than when it was begun? One that is left for 30 days is forgotten. A --journal of its own has all of it imported, what is stored already too"
    )
}

/// How many messages the first `pieces` pieces have.
fn messages(plan: &Plan, pieces: u64) -> u64 {
    plan.pieces.iter().take(index(pieces)).map(|piece| piece.messages).sum()
}

fn index(pieces: u64) -> usize {
    usize::try_from(pieces).unwrap_or(usize::MAX)
}
