//! Claims of a topic that bounds them.

use std::time::Duration;

use tokio::time::Instant;

use super::Work;
use super::claiming::make_own;
use crate::connection::{Connection, Link};
use crate::error::Result;
use crate::message::{Delivery, Priority, RowId};
use crate::store::claim::{self, Fence, Place};
use crate::store::limit;
use crate::store::row_set::RowSet;
use crate::topic::{Limits, TopicId};
use crate::worker::cursor::{Claimed, Cursor};
use crate::worker::gate::Gate;

/// How many ready messages one look takes in, to find some whose keys have room: about a
/// millisecond of the server, with the gate closed to others.
const WINDOW: u32 = 1000;

/// The most looks of one claim. With all of them blocked, the next claim goes on behind them.
const WINDOWS: usize = 16;

/// What lies before the window has its turn after this time.
const WINDOW_FOR: Duration = Duration::from_secs(1);

/// For so long a place is kept for a suspect, and then as long not: it is claimed by a worker that
/// has nothing else, and there may be none.
const KEPT_FOR: Duration = Duration::from_secs(10);

const START: Place = Place { priority: Priority::FIRST, from: RowId(0) };

/// What one look has brought.
struct Looked {
    deliveries: Vec<Delivery>,
    has_suspect: bool,
    /// There is one, and room for it.
    suspect_waits: bool,
    /// There is something ready, but it has to wait.
    blocked: bool,
    /// Where to look next; `None`: from the start.
    next: Option<Place>,
    /// There is no point in looking on now.
    ends: bool,
}

impl Work {
    /// As a claim of any other topic, within the gate. Where claims begin is remembered here and
    /// not by marks: blocked messages stay behind.
    pub(super) async fn claim_within(
        &mut self,
        topic: TopicId,
        limits: Limits,
        limit: u32,
    ) -> Result<Claimed> {
        let limit = self.cursor(topic).sized(limit);
        let mut claimed = Claimed::default();
        for _ in 0..WINDOWS {
            let (from, keeps) = self.cursor(topic).begin();
            let fence = self.next_fence();
            let tracer = self.tracer(topic);
            let session = self.session().await?;
            let look = async |conn: &mut Link| {
                let mut looked = look(conn, fence, topic, limits, (from, keeps), limit).await?;
                looked.deliveries = tracer.trace(conn, looked.deliveries).await?;
                Ok(looked)
            };
            let looked = session.transaction("claim", look).await;
            self.cursor(topic).answered(&looked, limit);
            let looked = looked?;
            self.held.add(fence.claim_no, &looked.deliveries);
            let cursor = self.cursor(topic);
            cursor.learn(&looked.deliveries, limit);
            cursor.end(&looked);
            claimed.suspect_waits |= looked.suspect_waits;
            claimed.more_later |= looked.blocked;
            claimed.deliveries = looked.deliveries;
            if looked.ends {
                break;
            }
        }
        Ok(claimed)
    }
}

impl Cursor {
    /// Where to look, and whether to keep a place for a suspect.
    fn begin(&mut self) -> (Place, bool) {
        if self.window_since.is_some_and(|since| since.elapsed() >= WINDOW_FOR) {
            (self.window, self.window_since) = (None, None);
        }
        let waits = self.suspect_since.map_or(Duration::ZERO, |since| since.elapsed());
        let keeps = (waits.as_millis() / KEPT_FOR.as_millis()).is_multiple_of(2);
        (self.window.unwrap_or(START), keeps)
    }

    fn end(&mut self, looked: &Looked) {
        self.window = looked.next;
        let found = looked.next.is_some() && !looked.deliveries.is_empty();
        self.window_since = found.then(|| self.window_since.unwrap_or_else(Instant::now));
        self.suspect_since =
            looked.has_suspect.then(|| self.suspect_since.unwrap_or_else(Instant::now));
    }
}

/// Claims a suspect within the gate, if there is room for it.
pub(super) async fn suspect_within(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    limits: Limits,
) -> Result<Vec<Delivery>> {
    let mut gate = Gate::enter(conn, topic, limits).await?;
    let mut rows = claim::lock_suspect(conn, topic, fence.claim_no).await?;
    rows.retain(|delivery| gate.admits(delivery.key.as_deref()));
    let deliveries = make_own(conn, fence, rows).await?;
    gate.book(conn, fence, &deliveries).await?;
    Ok(deliveries)
}

async fn look(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    limits: Limits,
    (from, keeps): (Place, bool),
    limit: u32,
) -> Result<Looked> {
    let mut gate = Gate::enter(conn, topic, limits).await?;
    let suspect = limit::suspect(conn, topic).await?;
    let has_suspect = suspect.is_some();
    let suspect_waits = suspect.as_ref().is_some_and(|it| gate.has_room(it.key.as_deref()));
    if let Some(suspect) = suspect.filter(|_| keeps) {
        // It is claimed by a worker that has nothing else. Among many that do, it would never
        // find room.
        gate.reserve(suspect.key.as_deref());
    }
    let room = gate.room().min(limit);
    // Where there is no room, one tells whether anything waits for it.
    let window = if gate.looks_at_keys() { WINDOW.max(limit) } else { room.max(1) };
    let candidates = limit::candidates(conn, topic, from, window).await?;
    let (mut rows, mut priority) = (Vec::new(), None);
    for candidate in &candidates {
        // A claim is of one priority.
        let fits = priority.is_none_or(|priority| priority == candidate.place.priority);
        if rows.len() < room as usize && fits && gate.admits(candidate.key.as_deref()) {
            priority = Some(candidate.place.priority);
            rows.push(candidate.place.from);
        }
    }
    let is_last = candidates.len() < window as usize;
    let deliveries = match priority {
        Some(priority) => {
            let rows: RowSet = rows.into_iter().collect();
            let locked = claim::lock_rows(conn, topic, priority, &rows, fence.claim_no).await?;
            make_own(conn, fence, locked).await?
        }
        None => Vec::new(),
    };
    gate.book(conn, fence, &deliveries).await?;
    let ends = room == 0 || !deliveries.is_empty() || (is_last && from == START);
    let next = match candidates.last() {
        _ if room == 0 => None,
        // What lies behind is looked at when there is no more here.
        _ if !deliveries.is_empty() => (from != START).then_some(from),
        // Also behind rows that a stranger has locked.
        Some(last) if !is_last => Some(Place { from: RowId(last.place.from.0 + 1), ..last.place }),
        _ => None,
    };
    let blocked = candidates.len() > deliveries.len() || (room == 0 && from != START);
    Ok(Looked { deliveries, has_suspect, suspect_waits, blocked, next, ends })
}
