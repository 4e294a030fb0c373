use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rowmq_core::connection::{Link, ServerUrl, Session, SessionKind};
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lane::{self, LaneId, LaneKind};
use rowmq_core::store::topic;
use rowmq_core::{Enqueued, Error, NewMessage, chance, enqueue_in_transaction};

use super::plan::{Piece, Plan};

/// How long a transaction may take, and the silence after which the server drops the connection.
/// The transaction of a lost connection holds the lane for that long.
const LEASE: Duration = Duration::from_secs(10);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The lane of an import. Its number says how many pieces are stored: the transaction of each piece
/// advances it by one. So the number and the messages stay consistent, even if a process or a
/// connection is interrupted or a failover loses transactions. A transaction that is still in
/// progress on a lost connection uses the number that the next transaction needs, and only one of
/// the two can commit.
pub(super) struct Lane {
    url: ServerUrl,
    give_up_after: Duration,
    session: Option<Session>,
}

/// The outcome of the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Those that were imported before.
    pub(super) earlier: u64,
    /// Those that were not stored because their ids or unique keys are known.
    pub(super) duplicates: u64,
}

/// The progress of an import, as far as this process knows.
#[derive(Debug, Default)]
struct Progress {
    /// How many pieces were stored when the lane was first asked.
    begun: Option<u64>,
    stored: u64,
    /// The duplicates of the last piece that was handed over: they count if it is stored.
    handed_over: u64,
    duplicates: u64,
}

impl Progress {
    /// Records that this many pieces are stored.
    fn reach(&mut self, stored: u64) {
        let begun = *self.begun.get_or_insert(stored);
        if stored > self.stored && stored > begun {
            self.duplicates += self.handed_over;
        }
        (self.stored, self.handed_over) = (stored, 0);
    }

    fn tally(&self, plan: &Plan) -> Tally {
        let earlier = messages(plan, self.begun.unwrap_or_default());
        Tally { earlier, duplicates: self.duplicates }
    }
}

impl Lane {
    pub(super) fn new(url: ServerUrl, give_up_after: Duration) -> Self {
        Self { url, give_up_after, session: None }
    }

    /// Opens a new lane.
    pub(super) async fn open(&mut self) -> rowmq_core::Result<LaneId> {
        let name = chance::name();
        let open = async |conn: &mut Link| lane::open(conn, LaneKind::Durable, name).await;
        self.connected().await?.call("open the lane", open).await
    }

    /// Stores what is not stored yet, and reports the number of stored messages to `tell`.
    pub(super) async fn store(
        &mut self,
        id: LaneId,
        plan: &Plan,
        tell: impl Fn(usize),
    ) -> anyhow::Result<Tally> {
        let mut progress = Progress::default();
        let mut since = Instant::now();
        loop {
            let before = progress.stored;
            let Err(error) = self.go_on(id, plan, &mut progress, &tell).await else {
                return Ok(progress.tally(plan));
            };
            if progress.begun.is_none() {
                // The server was never reached: its name may be wrong.
                return Err(error);
            }
            if progress.stored != before {
                since = Instant::now();
            }
            let known = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
            let passes = known.is_some_and(Error::is_transient);
            if passes && since.elapsed() < self.give_up_after {
                tokio::time::sleep(PAUSE).await;
            } else if !self.has_moved(id, progress.stored).await {
                return Err(error);
            }
        }
    }

    /// Stores pieces until all are stored, or one is not. It reads the lane first: after any
    /// failure, only the lane knows what is stored. A lane whose row a failover has lost must not
    /// be created again.
    async fn go_on(
        &mut self,
        id: LaneId,
        plan: &Plan,
        progress: &mut Progress,
        tell: &impl Fn(usize),
    ) -> anyhow::Result<()> {
        loop {
            let stored = self.seq(id).await?.ok_or_else(forgotten)?;
            progress.reach(stored);
            if index(stored) >= plan.pieces.len() {
                return Ok(());
            }
            // The outer loop reads the lane again after the last piece: MariaDB may report success
            // for a statement that was killed.
            while let Some(piece) = plan.pieces.get(index(progress.stored)) {
                tell(usize::try_from(messages(plan, progress.stored)).unwrap_or(usize::MAX));
                let of_piece = plan.messages_of(piece)?;
                let before = progress.handed_over;
                let stored = self.store_piece(id, piece, &of_piece, progress).await;
                if stored.is_err() && self.session.as_ref().is_some_and(|it| !it.is_lost()) {
                    // It was refused: if the piece is stored, an earlier try stored it.
                    progress.handed_over = before;
                }
                stored.with_context(|| plan.place(piece))?;
                progress.reach(progress.stored + 1);
            }
        }
    }

    /// Whether the lane has moved: another process has used it, or a pending commit has completed.
    async fn has_moved(&mut self, id: LaneId, from: u64) -> bool {
        matches!(self.seq(id).await, Ok(Some(seq)) if seq != from)
    }

    /// Stores the next piece and advances the lane, in one transaction.
    async fn store_piece(
        &mut self,
        id: LaneId,
        Piece { topic: name, .. }: &Piece,
        messages: &[NewMessage],
        progress: &mut Progress,
    ) -> rowmq_core::Result<()> {
        let seq = progress.stored + 1;
        let session = self.connected().await?;
        session
            .transaction("import", async |conn| {
                // Read each time: the topic may have been closed since, or be full.
                let topic = topic::existing(conn, name).await?;
                let enqueued = enqueue_in_transaction(conn, &topic, messages).await?;
                let is_duplicate = |one: &&Enqueued| matches!(one, Enqueued::Duplicate(_));
                progress.handed_over = enqueued.iter().filter(is_duplicate).count() as u64;
                insert_in_lane(conn, topic.id, &[], id, seq).await
            })
            .await
    }

    async fn seq(&mut self, id: LaneId) -> rowmq_core::Result<Option<u64>> {
        let session = self.connected().await?;
        session.call("read the lane", async |conn| lane::seq(conn, id).await).await
    }

    /// The connection, or a new one if it is lost.
    async fn connected(&mut self) -> rowmq_core::Result<&mut Session> {
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
        "The database knows nothing of this import: is ROWMQ_URL another one than when it was begun? One that is left for 30 days is forgotten. A --journal of its own has all of it imported, what is stored already too"
    )
}

/// How many messages the first `pieces` pieces have.
fn messages(plan: &Plan, pieces: u64) -> u64 {
    plan.pieces.iter().take(index(pieces)).map(|piece| piece.messages).sum()
}

fn index(pieces: u64) -> usize {
    usize::try_from(pieces).unwrap_or(usize::MAX)
}
