//! The stream ranges that the worker holds, and how each of their messages ended.

mod report;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use self::report::is_repeated;
pub(super) use self::report::{Report, Reported};
use super::settling::Settled;
use crate::model::trace::Traced;
use crate::model::{ClaimNo, Delivery, Group, Offset, Settlement};
use crate::store::stream::range::Range;

/// How long an ack may wait for other acks of its range. After a crash, the messages whose acks
/// waited are handled again.
const LINGER: Duration = Duration::from_millis(100);

/// The wait after a report to the database has failed.
const RETRY: Duration = Duration::from_millis(500);

/// How an offset ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// Retention has removed it.
    Pruned,
    /// The group does not want it, or a damaged page is delivered for it.
    Filtered,
    /// It is handled, and the mark alone records it. Most messages end so; a held range's state is
    /// copied with every report.
    Acked,
    /// Its handler has finished.
    Settled(Box<Settled>),
    /// A handler's transaction has acked it.
    Passed,
    /// It is released, for another worker to handle.
    Released,
}

/// A range as this worker remembers it.
#[derive(Debug, Clone)]
pub(super) struct HeldRange {
    pub(super) range: Range,
    pub(super) group: Group,
    ends: BTreeMap<u64, End>,
    /// Its messages that leave a trace.
    traced: BTreeMap<u64, Traced>,
    /// The database has rows of messages that handlers' transactions acked.
    pub(super) has_passed: bool,
    /// Since when something is settled that the database does not know of.
    unreported_since: Option<Instant>,
    /// No report is sent before this time, because the last one failed.
    waits_until: Option<Instant>,
}

impl HeldRange {
    /// Creates the range. The log had `there` of it; `passed` had been acked before, and there is
    /// nothing to do for `filtered`, in order.
    pub(super) fn new(
        range: Range,
        group: Group,
        there: &[Delivery],
        passed: &HashSet<Offset>,
        filtered: &[Offset],
    ) -> Self {
        let traced =
            there.iter().filter_map(|one| Some((one.position?.offset.0, Traced::of(one)?)));
        let traced = traced.collect();
        let there = there.iter().filter_map(|delivery| delivery.position);
        let there: HashSet<u64> = there.map(|at| at.offset.0).collect();
        let end = |offset: u64| match passed.contains(&Offset(offset)) {
            true => Some((offset, End::Passed)),
            false if there.contains(&offset) => None,
            false if filtered.binary_search(&Offset(offset)).is_ok() => {
                Some((offset, End::Filtered))
            }
            false => Some((offset, End::Pruned)),
        };
        let ends: BTreeMap<_, _> = (range.mark.0..range.hi.0).filter_map(end).collect();
        let unreported_since = (!ends.is_empty()).then(Instant::now);
        let has_passed = !passed.is_empty();
        Self { range, group, ends, traced, has_passed, unreported_since, waits_until: None }
    }

    /// How many of its offsets retention had removed before they were read.
    pub(super) fn pruned(&self) -> u64 {
        self.ends.values().filter(|end| **end == End::Pruned).count() as u64
    }

    /// Takes over the database's list of messages that handlers' transactions have acked. Returns
    /// how many acks known to the worker are missing from it: those messages are handled again.
    fn learn(&mut self, passed: &[Offset]) -> u64 {
        let mut lost = 0;
        for (offset, end) in &mut self.ends {
            if *end == End::Passed && !passed.contains(&Offset(*offset)) {
                *end = End::Released;
                lost += 1;
            }
        }
        passed.iter().for_each(|offset| self.pass(*offset));
        lost
    }

    /// The messages before `mark` that handlers' transactions have acked.
    fn passed_before(&self, mark: Offset) -> Vec<Offset> {
        let ends = self.ends.range(..mark.0);
        ends.filter(|(_, end)| **end == End::Passed).map(|(offset, _)| Offset(*offset)).collect()
    }

    /// Records a message's settlement.
    fn settle(&mut self, offset: Offset, settled: &Settled) {
        let end = match settled.settlement {
            Settlement::Release => End::Released,
            Settlement::Ack if settled.ledger_window.is_none() => End::Acked,
            _ => End::Settled(Box::new(settled.clone())),
        };
        self.take(offset, end);
    }

    /// Records that a handler's transaction has acked the message.
    pub(super) fn pass(&mut self, offset: Offset) {
        self.has_passed = true;
        self.take(offset, End::Passed);
    }

    fn take(&mut self, offset: Offset, end: End) {
        if offset >= self.range.mark && offset < self.range.hi {
            self.ends.insert(offset.0, end);
            self.unreported_since.get_or_insert_with(Instant::now);
        }
    }

    /// The report that is due. Acks alone wait a little for other acks.
    fn report(&self, at_once: bool) -> Option<Report> {
        let mut mark = self.range.mark.0;
        let mut settled = Vec::new();
        while let Some(end) = self.ends.get(&mark) {
            match end {
                End::Released => break,
                End::Settled(one) if self.group.ordered && !one.settlement.is_final() => {
                    let (mark, head) = (Offset(mark), one.clone());
                    return Some(Report::HoldBack { mark, settled, head });
                }
                End::Settled(one) if is_repeated(one) => {}
                End::Settled(one) => settled.push((Offset(mark), Settled::clone(one))),
                End::Pruned | End::Filtered | End::Passed | End::Acked => {}
            }
            mark += 1;
        }
        if self.is_whole() {
            return Some(self.close());
        }
        let waits = settled.is_empty()
            && self.unreported_since.is_some_and(|since| since.elapsed() < LINGER);
        let said = mark == self.range.mark.0;
        (!said && (at_once || !waits)).then_some(Report::Pass { mark: Offset(mark), settled })
    }

    /// Whether there is anything to report.
    fn has_news(&self) -> bool {
        let first = self.ends.get(&self.range.mark.0);
        self.is_whole() || first.is_some_and(|end| *end != End::Released)
    }

    /// Whether every message of it has ended.
    fn is_whole(&self) -> bool {
        self.ends.len() as u64 == self.range.hi.0 - self.range.mark.0
    }

    fn close(&self) -> Report {
        let mut released: Vec<(Offset, Offset)> = Vec::new();
        let mut settled = Vec::new();
        for (&offset, end) in &self.ends {
            match end {
                End::Pruned | End::Filtered | End::Passed | End::Acked => {}
                End::Settled(one) if is_repeated(one) => {}
                End::Settled(one) => settled.push((Offset(offset), Settled::clone(one))),
                End::Released => match released.last_mut() {
                    Some((_, hi)) if hi.0 == offset => *hi = Offset(offset + 1),
                    _ => released.push((Offset(offset), Offset(offset + 1))),
                },
            }
        }
        Report::Close { settled, released }
    }

    /// Records that the database knows everything up to `mark`.
    pub(super) fn mark_reported(&mut self, mark: Offset) {
        self.ends = self.ends.split_off(&mark.0);
        self.traced = self.traced.split_off(&mark.0);
        self.range.mark = mark;
        self.has_passed = self.ends.values().any(|end| *end == End::Passed);
        self.unreported_since = (!self.ends.is_empty()).then(Instant::now);
    }

    /// How soon its next report is due.
    fn due_in(&self) -> Option<Duration> {
        let waited = self.unreported_since.map_or(LINGER, |since| since.elapsed());
        let wait = self.waits_until.map(|until| until.duration_since(Instant::now()));
        let due = LINGER.saturating_sub(waited).max(wait.unwrap_or_default());
        self.has_news().then_some(due)
    }

    fn is_waiting(&self) -> bool {
        self.waits_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Every range of the worker, by the claim that holds it.
#[derive(Debug, Default)]
pub(super) struct HeldRanges {
    held: HashMap<ClaimNo, HeldRange>,
}

impl HeldRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn add(&mut self, held: HeldRange) {
        self.held.insert(held.range.fence.claim_no, held);
    }

    pub(super) fn get(&self, claim: ClaimNo) -> Option<&HeldRange> {
        self.held.get(&claim)
    }

    pub(super) fn get_mut(&mut self, claim: ClaimNo) -> Option<&mut HeldRange> {
        self.held.get_mut(&claim)
    }

    pub(super) fn forget(&mut self, claim: ClaimNo) {
        self.held.remove(&claim);
    }

    pub(super) fn claims(&self) -> Vec<ClaimNo> {
        self.held.keys().copied().collect()
    }

    /// Records a message's settlement; false if its range is no longer held.
    pub(super) fn settle(&mut self, offset: Offset, settled: &Settled) -> bool {
        let held = self.held.get_mut(&settled.claim_no);
        held.map(|held| held.settle(offset, settled)).is_some()
    }

    /// The reports that are due, in the order of the ranges' rows; everything, if `at_once`.
    pub(super) fn reports(&self, at_once: bool) -> Vec<(ClaimNo, Report)> {
        let mut reports: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| !held.is_waiting())
            .filter_map(|(claim, held)| Some((held.range.id, *claim, held.report(at_once)?)))
            .collect();
        reports.sort_unstable_by_key(|(id, ..)| *id);
        reports.into_iter().map(|(_, claim, report)| (claim, report)).collect()
    }

    /// How soon the next report is due.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.held.values().filter_map(HeldRange::due_in).min()
    }

    /// Holds the range's reports back for a while.
    pub(super) fn wait(&mut self, claim: ClaimNo) {
        if let Some(held) = self.held.get_mut(&claim) {
            held.waits_until = Some(Instant::now() + RETRY);
        }
    }

    /// Holds all reports back for a while.
    pub(super) fn wait_all(&mut self) {
        self.claims().into_iter().for_each(|claim| self.wait(claim));
    }

    /// Ends the waits after failures.
    pub(super) fn end_waits(&mut self) {
        self.held.values_mut().for_each(|held| held.waits_until = None);
    }

    /// Releases every message that has not ended.
    pub(super) fn release_rest(&mut self) {
        for held in self.held.values_mut() {
            for offset in held.range.mark.0..held.range.hi.0 {
                held.ends.entry(offset).or_insert(End::Released);
            }
        }
    }
}
