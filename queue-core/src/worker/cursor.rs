//! A worker's position in a topic: its low-water marks, the floors it has seen, and when it may
//! afford to walk from the start again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Delivery, Error, PartitionNo, Priority, Result, RowId};
use crate::store::claim::{Marks, ScanPosition, Walk};
use crate::store::floor::Floor;
use crate::store::stream::cursor::Work;
use crate::worker::work::limited::Full;
use crate::worker::work::shares::Known;

/// The cost of a walk from the start depends on the rows there, so the next walk waits this many
/// times as long as the last one took: walks take at most one part in twenty of the session's time.
const WALK_SHARE: u32 = 20;

/// The least time between walks while claims find work. Each walk reads over all claimed rows, some
/// thousand with 16 workers; it finds rows that committed late, and they can wait this long.
const WALK_SPACING: Duration = Duration::from_secs(1);

/// The least time between looks for urgent rows while claims find work.
const URGENT_SPACING: Duration = Duration::from_millis(200);

/// A message of a more urgent priority than the claims' current one is seen after this time at the
/// latest, unless looking for it costs more than its share.
const URGENT_CAP: Duration = Duration::from_secs(1);

/// A row below the mark is found after this time at the latest, whatever the walk costs.
const WALK_CAP: Duration = Duration::from_secs(30);

/// A claim that had to read over more of other workers' rows than this is followed by a look at how
/// far they have come. Each such row costs the server at most 1.5 µs (16 workers: 46 µs a message
/// and 12 rows more than the bare statements' 28 µs), the look a round trip.
const CROWD: u64 = 200;

/// The most bytes of bodies that one claim should read: they are in memory all at once, and must
/// arrive within the session's deadline.
const BYTES_PER_CLAIM: usize = 8 * 1024 * 1024;

/// The rows of the first claim, before the size of the bodies is known.
const FIRST_CLAIM: u32 = 32;

/// The most rows of one claim, well below the 65,535 values of one statement.
const LARGEST_CLAIM: u32 = 5000;

/// How long a worker leaves out a partition with a page that only newer programs can read.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// The result of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The messages, in order; empty when there is nothing ready.
    pub deliveries: Vec<Delivery>,
    /// A suspect waits to be claimed alone.
    pub suspect_waits: bool,
    /// Messages of a stream that retention had removed before they could be claimed.
    pub lost: u64,
    /// Messages of a stream that the group's filter rejected: they count as passed. If there are no
    /// deliveries, more messages may lie behind them: claim again at once.
    pub filtered: u64,
    /// Messages that this claim could not have may be ready, or become ready without a
    /// notification: claim again soon.
    pub more_later: bool,
}

#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) marks: Marks,
    /// Where the marks stood before something below them became ready: until claims reach that
    /// point again, they skip nothing.
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
    /// For a topic with limits: where the next claim begins to look; `None`: at the start.
    pub(super) window: Option<ScanPosition>,
    /// Since when claims find something there.
    pub(super) window_since: Option<Instant>,
    /// For such a topic: the stretch at the start that has to wait for its keys.
    pub(super) full: Option<Full>,
    /// For such a topic: since when a suspect waits for room.
    pub(super) suspect_since: Option<Instant>,
    /// For a topic that limits only how many messages run: the worker's share of the limit.
    pub(super) share: Known,
    /// For a group: the partition whose turn is next.
    pub(super) next_partition: Option<usize>,
    /// For a group: the partitions that it leaves out, and until when.
    left_out: HashMap<PartitionNo, Instant>,
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
    /// Check first whether a more urgent priority than this one has rows.
    Urgent(Priority),
    /// Look for ready rows from here on.
    Next(ScanPosition),
    /// Skip the rows of this priority that other workers have claimed.
    Skip(Priority),
    /// Claim here.
    Claim(ScanPosition),
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
            window: None,
            window_since: None,
            full: None,
            suspect_since: None,
            share: Known::default(),
            largest: FIRST_CLAIM,
            body: 0,
            next_partition: None,
            left_out: HashMap::new(),
        }
    }

    /// How many rows to claim of the `limit` that the caller would take.
    pub(super) fn sized(&self, limit: u32) -> u32 {
        let fitting = BYTES_PER_CLAIM / self.body.max(1);
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
        limit.min(self.largest).min(fitting).max(1)
    }

    /// Records how a claim of `limit` rows, or the read of its bodies, went. The next claim is
    /// smaller if no answer came in time.
    pub(super) fn answered<T>(&mut self, answer: &Result<T>, limit: u32) {
        if matches!(answer, Err(Error::UnknownOutcome { .. } | Error::Deadline { .. })) {
            self.too_slow(limit);
        }
    }

    /// Leaves out a partition with a page that this program cannot read, for a while.
    pub(super) fn leave_out(&mut self, partition: PartitionNo) {
        self.left_out.insert(partition, Instant::now() + LEFT_OUT);
    }

    /// Removes the work of the partitions that it leaves out.
    pub(super) fn keep_readable(&self, work: &mut Vec<Work>) {
        work.retain(|one| self.left_out.get(&one.partition).is_none_or(|at| *at <= Instant::now()));
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
        tracing::trace!(step = "look");
        if self.may_walk(now) {
            return Look::Walk;
        }
        if let Some(lowered) = self.lowered_before_state() {
            return Look::Next(self.marks.position(lowered));
        }
        match self.state {
            State::Ready(priority) if self.may_look_up(priority, now) => Look::Urgent(priority),
            State::Ready(priority) if self.crowded && self.is_in_front(priority) => {
                Look::Skip(priority)
            }
            State::Ready(priority) => Look::Claim(self.marks.position(priority)),
            State::Exhausted(priority) => Look::Next(self.marks.position(priority)),
            State::Idle if self.may_look_up(self.marks.last().priority, now) => {
                Look::Urgent(self.marks.last().priority)
            }
            // Messages arrive at the end of the priority that is in use.
            State::Idle => Look::Next(self.marks.last()),
        }
    }

    /// The priority that a floor was published for, unless claims are there or will reach it by
    /// themselves.
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
        self.marks.position(priority).from >= self.reached.position(priority).from
    }

    fn may_look_up(&self, priority: Priority, now: Instant) -> bool {
        let took = self.looked_up.map_or(Duration::ZERO, |looked| looked.took);
        let last = self.looked_up.into_iter().chain(self.walked).map(|look| look.at).max();
        let wait = (took * WALK_SHARE).max(URGENT_SPACING).min(URGENT_CAP);
        priority > Priority::FIRST && last.is_none_or(|last| now.duration_since(last) >= wait)
    }

    /// Records the cost of a walk, whether it found anything or not.
    pub(super) fn walk_cost(&mut self, at: Instant, took: Duration) {
        self.walked = Some(Walked { at, took });
    }

    /// Records the cost of a look for urgent rows.
    pub(super) fn look_up_cost(&mut self, at: Instant, took: Duration) {
        self.looked_up = Some(Walked { at, took });
    }

    /// Records what a walk found.
    pub(super) fn walked(&mut self, walk: &Walk) {
        self.suspect_waits = walk.suspect;
        self.found(walk.first);
    }

    /// Records the first ready row that a look found.
    pub(super) fn found(&mut self, first: Option<ScanPosition>) {
        self.lowered = None;
        self.state = match first {
            None => State::Idle,
            Some(place) => {
                self.marks.set(place);
                State::Ready(place.priority)
            }
        };
    }

    /// Records the highest row of `priority` that any claim has. Walks find ready rows below it.
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
    pub(super) fn position(&self) -> Option<ScanPosition> {
        match self.state {
            State::Ready(priority) => Some(self.marks.position(priority)),
            State::Idle | State::Exhausted(_) => None,
        }
    }

    /// Records a claim of at most `limit` rows at `place`: everything up to its last row is
    /// claimed, by this worker or another.
    pub(super) fn claimed(&mut self, place: ScanPosition, deliveries: &[Delivery], limit: u32) {
        let priority = place.priority;
        let full = deliveries.len() >= limit as usize;
        self.state = if full { State::Ready(priority) } else { State::Exhausted(priority) };
        let (Some(first), Some(last)) = (deliveries.first(), deliveries.last()) else { return };
        self.crowded = first.row.0.saturating_sub(place.from.0) > CROWD;
        self.raise(priority, RowId(last.row.0 + 1));
        self.learn(deliveries, limit);
    }

    /// Sizes the next claim by the bodies of this one.
    pub(super) fn learn(&mut self, deliveries: &[Delivery], limit: u32) {
        if deliveries.is_empty() {
            return;
        }
        if deliveries.len() >= limit as usize {
            self.largest = self.largest.max(limit.saturating_mul(2)).min(LARGEST_CLAIM);
        }
        let bytes: usize = deliveries.iter().map(|delivery| delivery.body.len()).sum();
        let mean = bytes / deliveries.len();
        // Large bodies count at once, small ones gradually: too much is worse than too little.
        self.body = if mean > self.body { mean } else { (self.body * 3 + mean) / 4 };
    }
}

#[cfg(test)]
mod tests;
