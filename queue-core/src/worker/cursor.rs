//! Where a worker stands in a topic: its low-water marks, the floors it has seen, and when it may
//! afford to walk from the start again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::message::{Delivery, Priority, RowId};
use crate::store::claim::{Marks, Walk};
use crate::store::floor::Floor;

/// A walk from the start costs what lies there, so the next one waits this many times as long as
/// the last one took: at most one part in twenty of the session's time.
const WALK_SHARE: u32 = 20;

/// While claims find work, walks are no closer than this.
const WALK_SPACING: Duration = Duration::from_millis(100);

/// A row below the mark is found after this time at the latest, whatever the walk costs.
const WALK_CAP: Duration = Duration::from_secs(30);

/// What a claim brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The messages, in order; empty when there is nothing ready.
    pub deliveries: Vec<Delivery>,
    /// A suspect waits to be claimed alone.
    pub suspect_waits: bool,
}

#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) marks: Marks,
    floors: HashMap<Priority, u64>,
    idle: bool,
    walked: Option<Walked>,
    pub(super) suspect_waits: bool,
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
            floors: HashMap::new(),
            idle: true,
            walked: None,
            suspect_waits: false,
        }
    }

    /// Lowers the mark of a priority whose floor has been published since the last look.
    pub(super) fn see(&mut self, floor: &Floor) {
        match self.floors.insert(floor.priority, floor.seq) {
            Some(seen) if seen == floor.seq => {}
            Some(seen) if seen + 1 == floor.seq => self.marks.lower(floor.priority, floor.row),
            // More than one publication was missed: only the start is sure to be low enough.
            _ => self.marks.lower(floor.priority, RowId(0)),
        }
    }

    pub(super) fn may_walk(&self, now: Instant) -> bool {
        let Some(walked) = self.walked else { return true };
        let spacing = if self.idle { Duration::ZERO } else { WALK_SPACING };
        let wait = (walked.took * WALK_SHARE).max(spacing).min(WALK_CAP);
        now.duration_since(walked.at) >= wait
    }

    /// Takes note of a walk; whether it found a row that is ready.
    pub(super) fn walked(&mut self, walk: &Walk, at: Instant, took: Duration) -> bool {
        self.walked = Some(Walked { at, took });
        self.suspect_waits = walk.suspect;
        for (priority, row) in &walk.ready {
            self.marks.lower(*priority, *row);
        }
        self.idle = walk.ready.is_empty();
        !self.idle
    }

    /// Takes note of a claim: everything up to its last row is claimed or somebody else's.
    pub(super) fn claimed(&mut self, deliveries: &[Delivery]) {
        self.idle = deliveries.is_empty();
        if let Some(last) = deliveries.last()
            && !last.priority.is_suspect()
        {
            self.marks.raise(last.priority, RowId(last.row.0 + 1));
        }
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
    fn a_costly_walk_is_rare_and_a_cheap_one_is_not() {
        let mut cursor = Cursor::new();
        let start = Instant::now();
        assert!(cursor.may_walk(start));
        cursor.walked(&Walk::default(), start, Duration::from_millis(1));
        assert!(!cursor.may_walk(start + Duration::from_millis(19)));
        assert!(cursor.may_walk(start + Duration::from_millis(20)));
        cursor.walked(&Walk::default(), start, Duration::from_secs(9));
        assert!(!cursor.may_walk(start + Duration::from_secs(29)));
        assert!(cursor.may_walk(start + WALK_CAP));
    }
}
