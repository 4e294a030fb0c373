//! A ruler along a topic: marks that are some thousands of rows apart, and how many rows there were
//! between them when they were last counted.
//!
//! Messages arrive at the end and mostly leave at the beginning. So each row is counted once after
//! it has arrived, and rows before the first one are dropped uncounted. Each measurement recounts
//! stretches from the beginning, and from one other place in turn, up to the next one that is still
//! well filled. A stretch that has grown thin is joined to the one before it, so that a few old
//! rows cost nothing. A measurement reads some ten thousand rows however many there are
//! (docs/performance.md has its time).

use std::collections::{HashMap, VecDeque};

use rand::Rng;
use rowmq_core::Result;
use rowmq_core::connection::Session;
use rowmq_core::model::{RowId, TopicId};
use rowmq_core::store::backlog::{self, CountedRows};

/// How many rows lie between two marks: some 2 ms to count.
const STEP: u32 = 10_000;

/// How many stretches one measurement adds at most: a long backlog that is measured for the first
/// time is counted bit by bit, 200 k rows at a time.
const ADDED: usize = 20;

/// How many stretches are recounted at most, from the beginning and from the place in turn. A
/// recount continues to the next stretch only while stretches are thin, and so quickly counted.
/// Consumers that have emptied this many since the last measurement have handled more than a
/// million messages a second.
const RENEWED: usize = 40;

/// After this many measurements, a measurement looks for the beginning from the start: a long
/// transaction may have committed rows before it.
const FROM_THE_START: u32 = 30;

/// A ruler along each priority of a topic.
#[derive(Debug, Default)]
pub(super) struct Ruler {
    lines: HashMap<u8, Line>,
    measured: u32,
}

/// The ruler of one priority.
#[derive(Debug, Default)]
struct Line {
    /// No row exists before this id.
    first: u64,
    stretches: VecDeque<Counted>,
    /// Which stretch is recounted next.
    turn: usize,
    /// Whether rows behind the last mark may not be counted yet.
    unfinished: bool,
}

/// Rows after `after` and up to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    after: u64,
    to: u64,
    rows: u64,
}

impl Ruler {
    /// Measures the topic.
    pub(super) async fn measure(&mut self, session: &mut Session, topic: TopicId) -> Result<()> {
        let from_the_start = self.measured.is_multiple_of(FROM_THE_START);
        self.measured = self.measured.wrapping_add(1);
        let known = |priority: u8| self.lines.get(&priority).map_or(0, |line| line.first);
        let from: Vec<_> = backlog::priorities()
            .map(|priority| (priority, RowId(if from_the_start { 0 } else { known(priority) })))
            .collect();
        let dive = async |conn: &mut _| backlog::starts(conn, topic, &from).await;
        let starts = session.call("measure a topic", dive).await?;
        for (priority, line) in &mut self.lines {
            if !starts.iter().any(|start| start.priority == *priority) {
                *line = Line::default();
            }
        }
        for start in starts {
            let line = self.lines.entry(start.priority).or_default();
            line.begin(start.first.0);
            let mut count = async |after: u64, to: u64| {
                let range = (RowId(after), RowId(to));
                let count = async |conn: &mut _| {
                    backlog::count_rows(conn, topic, start.priority, range, STEP).await
                };
                session.call("measure a topic", count).await
            };
            line.renew(&mut count).await?;
            line.extend(&mut count).await?;
        }
        Ok(())
    }

    /// Returns how many rows there are, by the last count of each stretch.
    pub(super) fn total(&self) -> u64 {
        let lines = self.lines.values().flat_map(|line| &line.stretches);
        lines.map(|stretch| stretch.rows).sum()
    }

    /// Returns whether every row was counted once: false at first for a long backlog.
    pub(super) fn is_whole(&self) -> bool {
        !self.lines.values().any(|line| line.unfinished)
    }

    /// Returns `n` random places in the topic, each row about as likely as any other.
    pub(super) fn places(&self, n: usize, rng: &mut impl Rng) -> Vec<(u8, RowId)> {
        let total = self.total();
        if total == 0 {
            return Vec::new();
        }
        (0..n).filter_map(|_| self.place(rng.random_range(0..total), rng)).collect()
    }

    fn place(&self, mut row: u64, rng: &mut impl Rng) -> Option<(u8, RowId)> {
        for (priority, line) in &self.lines {
            for stretch in &line.stretches {
                if row < stretch.rows {
                    let id = rng.random_range(stretch.after..stretch.to) + 1;
                    return Some((*priority, RowId(id)));
                }
                row -= stretch.rows;
            }
        }
        None
    }
}

impl Line {
    /// Drops what lies before the first row.
    fn begin(&mut self, first: u64) {
        self.first = first;
        let over = self.stretches.iter().take_while(|stretch| stretch.to < first).count();
        self.stretches.drain(..over);
        if let Some(stretch) = self.stretches.front_mut() {
            stretch.after = first.saturating_sub(1);
        }
    }

    /// Recounts from the first stretch on, and from another one in its turn.
    async fn renew(
        &mut self,
        count: &mut impl AsyncFnMut(u64, u64) -> Result<CountedRows>,
    ) -> Result<()> {
        let renewed = self.renew_from(0, count).await?;
        let turn = self.turn.max(renewed);
        self.turn =
            if turn < self.stretches.len() { self.renew_from(turn, count).await? } else { 0 };
        Ok(())
    }

    /// Recounts stretches until one is well filled; returns the index of the next one.
    async fn renew_from(
        &mut self,
        mut index: usize,
        count: &mut impl AsyncFnMut(u64, u64) -> Result<CountedRows>,
    ) -> Result<usize> {
        for _ in 0..RENEWED {
            let Some(stretch) = self.stretches.get_mut(index) else { break };
            stretch.rows = count(stretch.after, stretch.to).await?.rows;
            let is_thin = stretch.rows < u64::from(STEP) / 2;
            if !self.join(index) {
                index += 1;
            }
            if !is_thin {
                break;
            }
        }
        Ok(index)
    }

    /// Joins a stretch to the one before it, if together they can be counted as one.
    fn join(&mut self, index: usize) -> bool {
        let before = index.checked_sub(1).and_then(|before| self.stretches.get(before));
        let (Some(before), Some(stretch)) = (before, self.stretches.get(index)) else {
            return false;
        };
        let rows = before.rows + stretch.rows;
        if stretch.rows > 0 && rows >= u64::from(STEP) {
            return false;
        }
        let both = Counted { after: before.after, to: stretch.to, rows };
        self.stretches.remove(index);
        self.stretches[index - 1] = both;
        true
    }

    /// Counts the rows that have arrived behind the last mark.
    async fn extend(
        &mut self,
        count: &mut impl AsyncFnMut(u64, u64) -> Result<CountedRows>,
    ) -> Result<()> {
        // The last stretch grows until it is well filled.
        let unfinished = self.stretches.back().filter(|last| last.rows < u64::from(STEP) / 2);
        let mut after = match (unfinished, self.stretches.back()) {
            (Some(last), _) => last.after,
            (None, Some(last)) => last.to,
            (None, None) => self.first.saturating_sub(1),
        };
        if unfinished.is_some() {
            self.stretches.pop_back();
        }
        self.unfinished = true;
        for _ in 0..ADDED {
            let CountedRows { rows, last } = count(after, u64::MAX).await?;
            if let Some(last) = last {
                self.stretches.push_back(Counted { after, to: last.0, rows });
                after = last.0;
            }
            if rows < u64::from(STEP) {
                self.unfinished = false;
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A priority that holds these ids, and how many of its rows were read.
    struct Rows(Vec<u64>, Cell<u64>);

    impl Rows {
        fn new(ids: impl IntoIterator<Item = u64>) -> Self {
            Self(ids.into_iter().collect(), Cell::new(0))
        }

        fn stretch(&self, after: u64, to: u64) -> CountedRows {
            let found = self.0.iter().filter(|id| **id > after && **id <= to);
            let found: Vec<_> = found.take(STEP as usize).copied().collect();
            self.1.set(self.1.get() + found.len() as u64);
            CountedRows { rows: found.len() as u64, last: found.last().copied().map(RowId) }
        }

        /// Measures as a ruler does; returns how many rows the line reports.
        async fn measured(&self, line: &mut Line) -> u64 {
            let Some(first) = self.0.first() else { return 0 };
            line.begin(*first);
            let mut count = async |after, to| Ok(self.stretch(after, to));
            line.renew(&mut count).await.expect("counted");
            line.extend(&mut count).await.expect("counted");
            line.stretches.iter().map(|stretch| stretch.rows).sum()
        }
    }

    #[tokio::test]
    async fn what_has_come_is_counted_once_and_what_has_gone_in_order_not_at_all() {
        let mut line = Line::default();
        assert_eq!(Rows::new(1..=25).measured(&mut line).await, 25);
        let grown = Rows::new(1..=150_000);
        assert_eq!(grown.measured(&mut line).await, 150_000);
        grown.1.set(0);
        assert_eq!(grown.measured(&mut line).await, 150_000);
        assert!(grown.1.get() <= 4 * u64::from(STEP), "{} rows were read", grown.1.get());
        let drained = Rows::new(123_456..=150_000);
        assert_eq!(drained.measured(&mut line).await, 26_545);
        assert!(drained.1.get() <= 4 * u64::from(STEP), "{} rows were read", drained.1.get());
    }

    #[tokio::test]
    async fn what_has_gone_in_between_is_found_in_turn() {
        let mut line = Line::default();
        Rows::new(1..=100_000).measured(&mut line).await;
        let holed = Rows::new((1..=100_000).filter(|id| id % 7 == 0 || *id == 1));
        let mut last = 0;
        for _ in 0..12 {
            last = holed.measured(&mut line).await;
        }
        assert_eq!(last, holed.0.len() as u64);
    }

    #[tokio::test]
    async fn a_backlog_met_for_the_first_time_is_counted_bit_by_bit() {
        let (mut line, rows) = (Line::default(), Rows::new((1..=500_000).map(|n| n * 3)));
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(rows.measured(&mut line).await);
        }
        assert_eq!(seen, [200_000, 400_000, 500_000]);
        assert!(!line.unfinished);
    }

    #[tokio::test]
    async fn a_few_rows_that_stay_do_not_hide_that_those_behind_them_go() {
        let mut line = Line::default();
        for round in 1..=60 {
            let from = round * 25_000;
            let rows = Rows::new([1, 9].into_iter().chain(from..from + 25_000));
            assert_eq!(rows.measured(&mut line).await, 25_002, "in round {round}");
            assert!(line.stretches.len() <= 5, "{:?}", line.stretches);
            assert!(rows.1.get() <= 6 * u64::from(STEP), "{} rows were read", rows.1.get());
        }
    }

    #[tokio::test]
    async fn many_rows_that_stay_hide_for_some_turns_only_that_those_behind_them_go() {
        let mut line = Line::default();
        for round in 2..=60 {
            let from = round * 25_000;
            let rows = Rows::new((1..=35_000).chain(from..from + 25_000));
            let measured = rows.measured(&mut line).await;
            assert!(measured <= 60_000 + 8 * 25_000, "{measured} in round {round}");
            assert!(line.stretches.len() <= 30, "{:?}", line.stretches);
        }
    }
}
