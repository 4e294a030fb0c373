//! Where a worker stands in a topic: its low-water marks, the floors it has seen, and when it may
//! afford to walk from the start again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::message::{Delivery, Priority, RowId};
use crate::store::claim::{Marks, Place, Walk};
use crate::store::floor::Floor;

/// A walk from the start costs what lies there, so the next one waits this many times as long as
/// the last one took: at most one part in twenty of the session's time.
const WALK_SHARE: u32 = 20;

/// While claims find work, walks are no closer than this: each reads over all that is claimed, some
/// thousand rows with 16 workers, and what it is for, a row that committed late, can wait so long.
const WALK_SPACING: Duration = Duration::from_secs(1);

/// While claims find work, looks for urgent rows are no closer than this.
const URGENT_SPACING: Duration = Duration::from_millis(200);

/// A message of a more urgent priority than the one that claims come from is seen after this time
/// at the latest, unless looking for it costs more than its share.
const URGENT_CAP: Duration = Duration::from_secs(1);

/// A row below the mark is found after this time at the latest, whatever the walk costs.
const WALK_CAP: Duration = Duration::from_secs(30);

/// A claim that had to read over more of other workers' rows than this is followed by a look at how
/// far they have come: each such row costs the server at most 1.5 µs (16 workers: 46 µs a message
/// and 12 rows more than the bare statements' 28 µs), the look a round trip.
const CROWD: u64 = 200;

/// The bytes of bodies that one claim should bring: they are in memory all at once, and must have
/// come within the session's deadline.
const BYTES_PER_CLAIM: usize = 8 * 1024 * 1024;

/// The rows of the first claim, before anything is known of the bodies' size.
const FIRST_CLAIM: u32 = 32;

/// The most rows of one claim, well below the 65,535 values of one statement.
const LARGEST_CLAIM: u32 = 5000;

/// What a claim brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The messages, in order; empty when there is nothing ready.
    pub deliveries: Vec<Delivery>,
    /// A suspect waits to be claimed alone.
    pub suspect_waits: bool,
    /// Messages of a stream that retention had removed before they could be claimed.
    pub lost: u64,
    /// A group has ranges that others have, or that wait for their time: when they are free, nobody
    /// may tell.
    pub more_later: bool,
}

#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) marks: Marks,
    /// Where the marks stood before something below them became ready: until they are there again,
    /// nothing is skipped.
    reached: Marks,
    /// The last claim began far behind the rows that it got.
    crowded: bool,
    floors: HashMap<Priority, u64>,
    /// The most urgent priority whose mark was lowered by a floor since the last look.
    lowered: Option<Priority>,
    state: State,
    walked: Option<Walked>,
    looked_up: Option<Walked>,
    pub(super) suspect_waits: bool,
    /// The most rows of the next claim: grows while claims are full, halves when one is too slow.
    largest: u32,
    /// Mean bytes of a body.
    body: usize,
    /// Of a group: which of its partitions it is the turn of.
    pub(super) next_partition: Option<usize>,
}

/// What is known of ready rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The last look found none.
    Idle,
    /// This priority has some.
    Ready(Priority),
    /// The last claim took all that this priority had.
    Exhausted(Priority),
}

/// How the next claim begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Walk from the start.
    Walk,
    /// See first whether a more urgent priority than this one has rows.
    Urgent(Priority),
    /// See what is ready from here on.
    Next(Place),
    /// Skip what others have claimed of this priority.
    Skip(Priority),
    /// Claim here.
    Claim(Place),
}

#[derive(Debug, Clone, Copy)]
struct Walked {
    at: Instant,
    took: Duration,
}

impl Cursor {
    pub(super) fn new() -> Self {
        Self {
            marks: Marks::START,
            reached: Marks::START,
            crowded: false,
            floors: HashMap::new(),
            lowered: None,
            state: State::Idle,
            walked: None,
            looked_up: None,
            suspect_waits: false,
            largest: FIRST_CLAIM,
            body: 0,
            next_partition: None,
        }
    }

    /// How many rows to claim of the `limit` that the caller would take.
    pub(super) fn sized(&self, limit: u32) -> u32 {
        let fitting = BYTES_PER_CLAIM / self.body.max(1);
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
        limit.min(self.largest).min(fitting).max(1)
    }

    /// Takes note of how a claim of `limit` rows, or the reading of its bodies, went: the next one
    /// is smaller if there was no answer in time.
    pub(super) fn answered<T>(&mut self, answer: &Result<T>, limit: u32) {
        if matches!(answer, Err(Error::UnknownOutcome { .. } | Error::Deadline { .. })) {
            self.too_slow(limit);
        }
    }

    fn too_slow(&mut self, limit: u32) {
        self.largest = (limit / 2).max(1);
    }

    /// Lowers the mark of a priority whose floor has been published since the last look.
    pub(super) fn see(&mut self, floor: &Floor) {
        let priority = floor.priority;
        match self.floors.insert(priority, floor.seq) {
            Some(seen) if seen == floor.seq => return,
            Some(seen) if seen + 1 == floor.seq => self.marks.lower(priority, floor.row),
            // More than one publication was missed: only the start is sure to be low enough.
            _ => self.marks.lower(priority, RowId(0)),
        }
        self.lowered = Some(self.lowered.map_or(priority, |lowered| lowered.min(priority)));
    }

    /// How the next claim begins.
    pub(super) fn look(&self, now: Instant) -> Look {
        if self.may_walk(now) {
            return Look::Walk;
        }
        if let Some(lowered) = self.lowered_before_state() {
            return Look::Next(self.marks.place(lowered));
        }
        match self.state {
            State::Ready(priority) if self.may_look_up(priority, now) => Look::Urgent(priority),
            State::Ready(priority) if self.crowded && self.is_in_front(priority) => {
                Look::Skip(priority)
            }
            State::Ready(priority) => Look::Claim(self.marks.place(priority)),
            State::Exhausted(priority) => Look::Next(self.marks.place(priority)),
            State::Idle if self.may_look_up(self.marks.last().priority, now) => {
                Look::Urgent(self.marks.last().priority)
            }
            // Messages come in at the end of the priority that is in use.
            State::Idle => Look::Next(self.marks.last()),
        }
    }

    /// The priority that a floor was published for, unless claims come from there or will come
    /// there by themselves.
    fn lowered_before_state(&self) -> Option<Priority> {
        let lowered = self.lowered?;
        match self.state {
            State::Ready(priority) | State::Exhausted(priority) if priority <= lowered => None,
            _ => Some(lowered),
        }
    }

    fn may_walk(&self, now: Instant) -> bool {
        let Some(walked) = self.walked else { return true };
        let spacing = if self.state == State::Idle { Duration::ZERO } else { WALK_SPACING };
        let wait = (walked.took * WALK_SHARE).max(spacing).min(WALK_CAP);
        now.duration_since(walked.at) >= wait
    }

    fn is_in_front(&self, priority: Priority) -> bool {
        self.marks.place(priority).from >= self.reached.place(priority).from
    }

    fn may_look_up(&self, priority: Priority, now: Instant) -> bool {
        let took = self.looked_up.map_or(Duration::ZERO, |looked| looked.took);
        let last = self.looked_up.into_iter().chain(self.walked).map(|look| look.at).max();
        let wait = (took * WALK_SHARE).max(URGENT_SPACING).min(URGENT_CAP);
        priority > Priority::FIRST && last.is_none_or(|last| now.duration_since(last) >= wait)
    }

    /// Takes note of what a walk cost, whether it brought anything or not.
    pub(super) fn walk_cost(&mut self, at: Instant, took: Duration) {
        self.walked = Some(Walked { at, took });
    }

    /// Takes note of what it cost to look for urgent rows.
    pub(super) fn look_up_cost(&mut self, at: Instant, took: Duration) {
        self.looked_up = Some(Walked { at, took });
    }

    /// Takes note of what a walk found.
    pub(super) fn walked(&mut self, walk: &Walk) {
        self.suspect_waits = walk.suspect;
        self.found(walk.first);
    }

    /// Takes note of the first ready row that a look has found.
    pub(super) fn found(&mut self, first: Option<Place>) {
        self.lowered = None;
        self.state = match first {
            None => State::Idle,
            Some(place) => {
                self.marks.set(place);
                State::Ready(place.priority)
            }
        };
    }

    /// Takes note of the highest row of `priority` that any claim has. What is ready below it is
    /// found by walks.
    pub(super) fn skip(&mut self, priority: Priority, frontier: Option<RowId>) {
        self.crowded = false;
        if let Some(frontier) = frontier {
            self.raise(priority, RowId(frontier.0 + 1));
        }
    }

    fn raise(&mut self, priority: Priority, row: RowId) {
        self.marks.raise(priority, row);
        self.reached.raise(priority, row);
    }

    /// Where to claim, if anything is ready.
    pub(super) fn place(&self) -> Option<Place> {
        match self.state {
            State::Ready(priority) => Some(self.marks.place(priority)),
            State::Idle | State::Exhausted(_) => None,
        }
    }

    /// Takes note of a claim of at most `limit` rows at `place`: everything up to its last row is
    /// claimed or somebody else's.
    pub(super) fn claimed(&mut self, place: Place, deliveries: &[Delivery], limit: u32) {
        let priority = place.priority;
        let full = deliveries.len() >= limit as usize;
        self.state = if full { State::Ready(priority) } else { State::Exhausted(priority) };
        let (Some(first), Some(last)) = (deliveries.first(), deliveries.last()) else { return };
        self.crowded = first.row.0.saturating_sub(place.from.0) > CROWD;
        self.raise(priority, RowId(last.row.0 + 1));
        self.learn(deliveries, limit);
    }

    /// Takes the bodies of a claim into the size of the next one.
    pub(super) fn learn(&mut self, deliveries: &[Delivery], limit: u32) {
        if deliveries.is_empty() {
            return;
        }
        if deliveries.len() >= limit as usize {
            self.largest = self.largest.max(limit.saturating_mul(2)).min(LARGEST_CLAIM);
        }
        let bytes: usize = deliveries.iter().map(|delivery| delivery.body.len()).sum();
        let mean = bytes / deliveries.len();
        // Large bodies count at once, small ones bit by bit: too much is worse than too little.
        self.body = if mean > self.body { mean } else { (self.body * 3 + mean) / 4 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::TopicId;

    fn floor(row: u64, seq: u64) -> Floor {
        Floor { topic: TopicId(1), priority: Priority::default(), row: RowId(row), seq }
    }

    fn marks_at(row: u64) -> Marks {
        let mut marks = Marks::START;
        marks.raise(Priority::default(), RowId(row));
        marks
    }

    #[test]
    fn a_published_floor_lowers_the_mark_and_a_missed_one_sends_it_to_the_start() {
        let mut cursor = Cursor::new();
        cursor.see(&floor(10, 4));
        cursor.marks = marks_at(100);
        cursor.see(&floor(10, 4));
        assert_eq!(cursor.marks, marks_at(100), "nothing new");
        cursor.see(&floor(50, 5));
        assert_eq!(cursor.marks, marks_at(50));
        cursor.see(&floor(70, 6));
        assert_eq!(cursor.marks, marks_at(50), "never raised by a floor");
        cursor.see(&floor(40, 8));
        assert_eq!(cursor.marks, Marks::START, "publication 7 was missed");
    }

    #[test]
    fn what_a_floor_made_ready_is_looked_for_at_once_however_costly_walks_are() {
        let mut cursor = Cursor::new();
        let start = Instant::now();
        let floor = |priority, row, seq| Floor { priority, ..floor(row, seq) };
        let (urgent, late) = (Priority::FIRST, Priority::LAST);
        for priority in [urgent, late] {
            cursor.see(&floor(priority, 1, 1));
            cursor.marks.raise(priority, RowId(1000));
        }
        cursor.walk_cost(start, Duration::from_secs(9));
        cursor.look_up_cost(start, Duration::from_secs(9));
        cursor.found(None);
        assert_eq!(cursor.look(start), Look::Next(cursor.marks.place(late)), "nothing new");
        cursor.see(&floor(urgent, 7, 2));
        cursor.see(&floor(late, 7, 2));
        let lowered = Place { priority: urgent, from: RowId(7) };
        assert_eq!(cursor.look(start), Look::Next(lowered), "idle");
        cursor.state = State::Ready(late);
        assert_eq!(cursor.look(start), Look::Next(lowered), "others are claimed");
        cursor.state = State::Ready(urgent);
        assert_eq!(cursor.look(start), Look::Claim(lowered), "claims come from there");
        cursor.found(None);
        let last = Place { priority: late, from: RowId(7) };
        assert_eq!(cursor.look(start), Look::Next(last), "once is enough");
    }

    #[test]
    fn a_costly_walk_is_rare_and_a_cheap_one_is_not() {
        let mut cursor = Cursor::new();
        let start = Instant::now();
        assert!(cursor.may_walk(start));
        cursor.walk_cost(start, Duration::from_millis(1));
        cursor.walked(&Walk::default());
        assert_eq!(cursor.look(start), Look::Next(Marks::START.place(Priority::default())));
        assert!(!cursor.may_walk(start + Duration::from_millis(19)));
        assert!(cursor.may_walk(start + Duration::from_millis(20)));
        cursor.walk_cost(start, Duration::from_secs(9));
        assert!(!cursor.may_walk(start + Duration::from_secs(29)));
        assert!(cursor.may_walk(start + WALK_CAP));
    }

    #[test]
    fn urgent_rows_are_looked_for_while_others_are_claimed_and_never_beyond_the_cap() {
        let mut cursor = Cursor::new();
        let start = Instant::now();
        let place = Place { priority: Priority::default(), from: RowId(7) };
        cursor.walk_cost(start, Duration::from_secs(1));
        cursor.found(Some(place));
        let soon = start + Duration::from_millis(199);
        assert_eq!(cursor.look(soon), Look::Claim(place));
        let later = start + URGENT_SPACING;
        assert_eq!(cursor.look(later), Look::Urgent(place.priority));
        cursor.look_up_cost(later, Duration::from_secs(9));
        assert!(matches!(cursor.look(later + Duration::from_millis(999)), Look::Claim(_)));
        assert!(matches!(cursor.look(later + URGENT_CAP), Look::Urgent(_)));
        cursor.found(Some(Place { priority: Priority::FIRST, from: RowId(9) }));
        assert!(matches!(cursor.look(later + URGENT_CAP), Look::Claim(_)), "nothing comes before");
    }

    #[test]
    fn what_others_have_claimed_is_skipped_unless_something_below_was_made_ready() {
        let mut cursor = Cursor::new();
        let start = Instant::now();
        let priority = Priority::FIRST;
        cursor.walk_cost(start, Duration::ZERO);
        cursor.found(Some(Place { priority, from: RowId(1) }));
        cursor.crowded = true;
        assert_eq!(cursor.look(start), Look::Skip(priority));
        cursor.skip(priority, Some(RowId(999)));
        assert_eq!(cursor.look(start), Look::Claim(Place { priority, from: RowId(1000) }));
        cursor.marks.lower(priority, RowId(500));
        cursor.crowded = true;
        assert_eq!(cursor.look(start), Look::Claim(Place { priority, from: RowId(500) }));
    }

    #[test]
    fn claims_grow_while_they_are_full_and_shrink_when_bodies_are_large_or_answers_late() {
        let mut cursor = Cursor::new();
        assert_eq!(cursor.sized(1000), FIRST_CLAIM);
        cursor.largest = 1000;
        assert_eq!(cursor.sized(100), 100);
        cursor.body = 4 << 20;
        assert_eq!(cursor.sized(100), 2);
        cursor.body = 64 << 20;
        assert_eq!(cursor.sized(100), 1);
        cursor.body = 10;
        let late = || Err::<(), _>(Error::UnknownOutcome { operation: "claim" });
        cursor.answered(&Ok(()), 100);
        assert_eq!(cursor.sized(100), 100);
        cursor.answered(&late(), 100);
        assert_eq!(cursor.sized(100), 50);
        cursor.answered(&late(), 1);
        assert_eq!(cursor.sized(100), 1);
    }
}
