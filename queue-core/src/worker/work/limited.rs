//! Claims of a topic with limits.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Work;
use super::claiming::make_own;
use crate::connection::{Connection, Link};
use crate::model::{Delivery, Limits, Priority, Result, RowId, TopicId};
use crate::store::claim::{self, Fence, ScanPosition};
use crate::store::limit::{self, Candidate};
use crate::store::row_set::RowSet;
use crate::worker::cursor::{Claimed, Cursor};
use crate::worker::gate::Gate;

/// How many ready messages one look reads to find some whose keys have room. It takes about a
/// millisecond of the server, with the gate closed to other claims.
const WINDOW: u32 = 1000;

/// The most looks of one claim. If all find only blocked messages, the next claim continues behind
/// them.
const WINDOWS: usize = 16;

/// After this time, a look begins again before the window.
const WINDOW_FOR: Duration = Duration::from_secs(1);

/// A stretch whose keys were all full is looked at again after this time, even if none of them has
/// room: something else, such as a more urgent message, may have become ready there. Without this
/// bound, eight consumers before 3000 messages of four full keys read them over and over, and
/// handled three a second.
const FULL_FOR: Duration = Duration::from_millis(200);

/// A place is kept for a suspect for this long, and then not kept for as long: only a worker that
/// holds nothing else claims a suspect, and there may be none.
const KEPT_FOR: Duration = Duration::from_secs(10);

const START: ScanPosition = ScanPosition { priority: Priority::FIRST, from: RowId(0) };

/// A stretch from the start on in which every ready message had to wait for its key.
#[derive(Debug, Clone)]
pub(in crate::worker) struct Full {
    /// The keys: until one of them has room, nothing can be claimed.
    keys: HashSet<Vec<u8>>,
    /// The first place behind the stretch.
    until: ScanPosition,
    since: Instant,
}

impl Full {
    /// Whether still nothing in it can be claimed.
    fn holds(&self, gate: &Gate) -> bool {
        self.keys.iter().all(|key| !gate.has_room(Some(key)))
    }
}

/// Where a look begins.
struct Begin {
    from: ScanPosition,
    /// The stretch from the start on that the look may skip.
    full: Option<Full>,
    /// Whether it keeps a place for a suspect.
    keeps: bool,
}

/// The result of one look.
struct Looked {
    deliveries: Vec<Delivery>,
    has_suspect: bool,
    /// A suspect waits, and there is room for it.
    suspect_waits: bool,
    /// Something is ready, but it has to wait.
    blocked: bool,
    /// Where to look next; `None`: from the start.
    next: Option<ScanPosition>,
    full: Option<Full>,
    /// Looking further is useless now.
    ends: bool,
}

impl Work {
    /// Claims within the gate, otherwise as from any other topic. This cursor remembers where
    /// claims begin in place of the marks: blocked messages stay behind.
    pub(super) async fn claim_within(
        &mut self,
        topic: TopicId,
        limits: Limits,
        limit: u32,
    ) -> Result<Claimed> {
        let limit = self.cursor(topic).sized(limit);
        let mut claimed = Claimed::default();
        let mut has_turned = false;
        for _ in 0..WINDOWS {
            let begin = self.cursor(topic).begin();
            let is_start = begin.from == START;
            let fence = self.next_fence();
            let tracer = self.tracer(topic);
            let session = self.session().await?;
            let look = async |conn: &mut Link| {
                let mut looked = look(conn, fence, topic, limits, &begin, limit).await?;
                looked.deliveries = tracer.trace(conn, looked.deliveries).await?;
                Ok(looked)
            };
            let looked = session.transaction("claim", look).await;
            self.cursor(topic).answered(&looked, limit);
            let looked = looked?;
            self.held.add(fence.claim_no, &looked.deliveries);
            let cursor = self.cursor(topic);
            cursor.learn(&looked.deliveries, limit);
            let is_end = looked.next.is_none();
            cursor.end(&looked);
            claimed.suspect_waits |= looked.suspect_waits;
            claimed.more_later |= looked.blocked;
            claimed.deliveries = looked.deliveries;
            // A look that began at the window has covered the rest; one that began at the start,
            // everything.
            if looked.ends || (has_turned && is_end) {
                break;
            }
            has_turned |= is_start;
        }
        Ok(claimed)
    }
}

impl Cursor {
    /// Decides where to look, and whether to keep a place for a suspect.
    fn begin(&mut self) -> Begin {
        if self.window_since.is_some_and(|since| since.elapsed() >= WINDOW_FOR) {
            (self.window, self.window_since) = (None, None);
        }
        let keeps = self.keeps_place();
        let full = self.full.take_if(|full| full.since.elapsed() < FULL_FOR);
        Begin { from: self.window.unwrap_or(START), full, keeps }
    }

    /// Whether a place is kept now for a suspect that waits.
    pub(super) fn keeps_place(&self) -> bool {
        let waits = self.suspect_since.map_or(Duration::ZERO, |since| since.elapsed());
        (waits.as_millis() / KEPT_FOR.as_millis()).is_multiple_of(2)
    }

    fn end(&mut self, looked: &Looked) {
        self.window = looked.next;
        self.full.clone_from(&looked.full);
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
    begin: &Begin,
    limit: u32,
) -> Result<Looked> {
    let mut gate = Gate::enter(conn, topic, limits).await?;
    let suspect = limit::suspect(conn, topic).await?;
    let has_suspect = suspect.is_some();
    let suspect_waits = suspect.as_ref().is_some_and(|it| gate.has_room(it.key.as_deref()));
    if let Some(suspect) = suspect.filter(|_| begin.keeps) {
        // Only a worker that holds nothing else claims the suspect. The other workers' claims would
        // never leave room for it.
        gate.reserve(suspect.key.as_deref());
    }
    let full = begin.full.clone().filter(|full| full.holds(&gate));
    let from = first_place(begin.from, full.as_ref());
    let room = gate.room().min(limit);
    // Where there is no room, one candidate shows whether anything waits for it.
    let looks_on = room > 0 && gate.looks_at_keys();
    let window = if looks_on { WINDOW.max(limit) } else { room.max(1) };
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
    let ends = room == 0 || !deliveries.is_empty() || (is_last && begin.from == START);
    let next = match candidates.last() {
        _ if room == 0 => None,
        // The next look goes behind the stretch when nothing more is here; a look from the start
        // also begins behind the full stretch there.
        _ if !deliveries.is_empty() => {
            let is_behind = full.as_ref().is_some_and(|full| full.until == begin.from);
            (begin.from != START && !is_behind).then_some(begin.from)
        }
        // Also behind rows that another transaction has locked.
        Some(last) if !is_last => Some(behind(last)),
        _ => None,
    };
    let waits = candidates.len() > deliveries.len() || full.is_some();
    let blocked = waits || (room == 0 && from != START);
    let full = if looks_on && priority.is_none() { longer(full, from, candidates) } else { full };
    Ok(Looked { deliveries, has_suspect, suspect_waits, blocked, next, full, ends })
}

/// Where to start reading: a look from the start skips the full stretch there.
fn first_place(begin: ScanPosition, full: Option<&Full>) -> ScanPosition {
    full.filter(|_| begin == START).map_or(begin, |full| full.until)
}

/// The first place behind a message.
fn behind(candidate: &Candidate) -> ScanPosition {
    ScanPosition { from: RowId(candidate.place.from.0 + 1), ..candidate.place }
}

/// Extends the stretch by these candidates, none of which could be claimed, if they lie right
/// behind it.
fn longer(full: Option<Full>, from: ScanPosition, candidates: Vec<Candidate>) -> Option<Full> {
    let until = candidates.last().map(behind);
    let Some(until) = until.filter(|_| full.as_ref().map_or(START, |it| it.until) == from) else {
        return full;
    };
    let start = Full { keys: HashSet::new(), until, since: Instant::now() };
    let mut full = Full { until, ..full.unwrap_or(start) };
    full.keys.extend(candidates.into_iter().filter_map(|candidate| candidate.key));
    Some(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: std::ops::Range<u64>, key: &str) -> Vec<Candidate> {
        let place = |row| ScanPosition { from: RowId(row), ..START };
        let key = Some(key.as_bytes().to_vec());
        rows.map(|row| Candidate { place: place(row), key: key.clone() }).collect()
    }

    #[test]
    fn a_look_from_the_start_passes_over_what_is_full_there_and_no_other_does() {
        let full = longer(None, START, of(1..4, "a"));
        assert_eq!(first_place(START, full.as_ref()).from, RowId(4));
        assert_eq!(first_place(START, None), START);
        for row in [2, 9] {
            let window = ScanPosition { from: RowId(row), ..START };
            assert_eq!(first_place(window, full.as_ref()), window);
        }
    }

    #[test]
    fn a_stretch_is_full_until_one_of_its_keys_has_room() {
        let first = longer(None, START, of(1..4, "a")).expect("a stretch");
        let until = first.until;
        let full = longer(Some(first), until, of(4..9, "b")).expect("a stretch");
        let max_running_per_key = std::num::NonZeroU32::new(1);
        let mut gate = Gate::new(TopicId(1), Limits { max_running_per_key, ..Limits::default() });
        gate.reserve(Some(b"a"));
        assert!(!full.holds(&gate));
        gate.reserve(Some(b"b"));
        assert!(full.holds(&gate));
    }

    #[test]
    fn a_stretch_grows_by_what_lies_right_behind_it_and_by_nothing_else() {
        let apart = ScanPosition { from: RowId(9), ..START };
        assert!(longer(None, apart, of(9..12, "a")).is_none());
        assert!(longer(None, START, Vec::new()).is_none());
        let first = longer(None, START, of(1..4, "a")).expect("a stretch");
        assert_eq!(first.until.from, RowId(4));
        let same = longer(Some(first.clone()), apart, of(9..12, "b")).expect("a stretch");
        assert_eq!((same.until, same.keys.len()), (first.until, 1));
        let both = longer(Some(first.clone()), first.until, of(4..9, "b")).expect("a stretch");
        assert_eq!((both.until.from, both.keys.len(), both.since), (RowId(9), 2, first.since));
    }
}
