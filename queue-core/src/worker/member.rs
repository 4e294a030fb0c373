//! A member of a broadcast group: this process's position in the stream, kept in memory.

#[cfg(test)]
mod tests;
mod track;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

pub(super) use self::track::Over;
use self::track::{Now, Track};
use crate::model::{
    Broadcast, ClaimNo, Delivery, Error, HeaderFilter, MemberName, Offset, PartitionNo, Result,
    Topic, TopicName, WorkerId,
};
use crate::store::stream::log::Stretch;
use crate::store::stream::member::{MemberPosition, Progress};
use crate::store::stream::partition::Partition;
use crate::worker::settling::Settled;

/// How far the database may lag behind a named member's mark. After a crash, these messages are
/// handled again.
const LINGER: Duration = Duration::from_millis(100);

/// The wait after a report to the database has failed.
const RETRY: Duration = Duration::from_millis(500);

/// Nothing new is read while more messages than this wait for a retry. Each takes a few hundred
/// bytes of this process's memory.
const MOST_WAITING: usize = 1000;

/// A member of a broadcast group. It outlives the workers that read for it, so a consumer that
/// registers a new worker continues where it was. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Member(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    topic: TopicName,
    group: Broadcast,
    name: Option<MemberName>,
    state: Mutex<State>,
}

/// A member's state in memory.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The worker that reads for it.
    worker: Option<WorkerId>,
    /// The last worker that read for it, which may have lost it since.
    last: Option<WorkerId>,
    tracks: BTreeMap<PartitionNo, Track>,
    /// The messages that it wants.
    filter: HeaderFilter,
    /// The partition whose turn it is.
    turn: usize,
    /// The server's clock at the last read.
    clock: Option<(Instant, DateTime<Utc>)>,
    /// Messages lost to retention that have not been reported to the claimer.
    lost: u64,
    /// No report is sent before this time, because the last one failed.
    waits_until: Option<Instant>,
    /// It has been logged that another worker has the name.
    pub(super) was_refused: bool,
}

/// A report to the database on a member.
#[derive(Debug)]
pub(super) struct Report {
    /// Messages to dead-letter or discard.
    pub(super) over: Vec<(PartitionNo, Vec<Over>)>,
    /// The member's new positions; empty for a member without a name.
    pub(super) progress: Vec<Progress>,
}

impl Member {
    /// Creates a member of the group `topic`, with a name if its position is to be kept. It begins
    /// with its first read.
    ///
    /// # Errors
    /// [`Error::NoBroadcast`] if it is no broadcast group.
    pub fn new(topic: &Topic, name: Option<MemberName>) -> Result<Self> {
        let Some(group) = topic.broadcast() else {
            return Err(Error::NoBroadcast { topic: topic.name.clone() });
        };
        let state = State { filter: topic.settings.filter.clone(), ..State::default() };
        let topic = topic.name.clone();
        Ok(Self(Arc::new(Inner { topic, group, name, state: Mutex::new(state) })))
    }

    /// Applies the group's current filter from the next read on.
    pub(super) fn wants_as(&self, filter: &HeaderFilter) {
        let mut state = self.state();
        if state.filter != *filter {
            state.filter = filter.clone();
        }
    }

    /// The messages that it wants.
    pub(super) fn filter(&self) -> HeaderFilter {
        self.state().filter.clone()
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> Broadcast {
        self.0.group
    }

    /// The group's name.
    pub(super) fn topic(&self) -> &TopicName {
        &self.0.topic
    }

    /// Its name, if its position is kept.
    #[must_use]
    pub fn name(&self) -> Option<&MemberName> {
        self.0.name.as_ref()
    }

    /// Holds reports back for a while.
    pub(super) fn wait(&self) {
        self.state().waits_until = Some(Instant::now() + RETRY);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether its starting position is known.
    pub(super) fn has_begun(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Whether this worker reads for it.
    pub(super) fn is_of(&self, worker: WorkerId) -> bool {
        self.worker == Some(worker)
    }

    /// Makes `worker` the reader from now on. It starts at these places unless the member has
    /// already begun. Messages that another worker held are handled again.
    pub(super) fn begin(&mut self, worker: WorkerId, places: Vec<(PartitionNo, Offset)>) {
        let now = Instant::now();
        for (no, offset) in places {
            self.tracks.entry(no).or_insert_with(|| Track::at(offset));
        }
        self.tracks.values_mut().for_each(|track| track.release_held(now));
        (self.worker, self.last) = (Some(worker), Some(worker));
    }

    /// As [`State::begin`], from rows that others may have changed since a worker of this process
    /// last had them. A partition whose row has changed starts over from that row.
    pub(super) fn take_over(&mut self, worker: WorkerId, rows: &[MemberPosition]) {
        let before = self.last;
        let is_left = |track: &Track, row: &MemberPosition| {
            Some(row.worker) == before && track.reported <= row.next && row.next <= track.mark()
        };
        for row in rows {
            match self.tracks.get_mut(&row.partition) {
                Some(track) if is_left(track, row) => track.reported = row.next,
                _ => drop(self.tracks.insert(row.partition, Track::at(row.next))),
            }
        }
        self.begin(worker, Vec::new());
        self.was_refused = false;
    }

    /// Records that the rows are no longer this worker's: the next read joins again. A worker that
    /// was declared dead may learn of it after another worker of this process has the rows.
    pub(super) fn lose_rows(&mut self, worker: WorkerId) {
        self.worker.take_if(|own| *own == worker);
    }

    /// Whether the rows are as this worker left them.
    pub(super) fn fits(&self, worker: WorkerId, rows: &[MemberPosition]) -> bool {
        let fits = |(no, track): (&PartitionNo, &Track)| {
            let row = rows.iter().find(|row| row.partition == *no);
            row.is_some_and(|row| {
                row.worker == worker && track.reported <= row.next && row.next <= track.mark()
            })
        };
        self.tracks.iter().all(fits)
    }

    /// Records where the partitions begin and end now. Returns how many messages the server once
    /// had and has lost.
    pub(super) fn see(&mut self, partitions: &[Partition]) -> u64 {
        let (now, mut gone) = (Instant::now(), 0);
        for partition in partitions {
            if let Some(track) = self.tracks.get_mut(&partition.no) {
                gone += track.ends_at(partition.next);
                self.lost += track.begins_at(partition.first, now);
            }
        }
        gone
    }

    /// The stretch to read now: messages to handle again if there are any, else the next new ones.
    pub(super) fn next(
        &self,
        group: Broadcast,
        partitions: &[Partition],
        limit: u64,
    ) -> Option<Stretch> {
        let stretch = |partition, (lo, hi)| Stretch { stream: group.stream, partition, lo, hi };
        let now = Instant::now();
        let mut due = self.tracks.iter();
        if let Some(due) = due.find_map(|(no, track)| Some(stretch(*no, track.due(now, limit)?))) {
            return Some(due);
        }
        if self.waiting() >= MOST_WAITING {
            return None;
        }
        let turn = if partitions.is_empty() { 0 } else { self.turn % partitions.len() };
        let (before, behind) = partitions.split_at(turn);
        behind.iter().chain(before).find_map(|partition| {
            let lo = self.tracks.get(&partition.no)?.next;
            let hi = Offset(partition.next.0.min(lo.0 + limit));
            (lo < hi).then(|| stretch(partition.no, (lo, hi)))
        })
    }

    /// Begins the next look behind this partition.
    pub(super) fn turn_behind(&mut self, partition: PartitionNo) {
        self.turn = usize::try_from(partition.0).unwrap_or(0) + 1;
    }

    /// Records what was read under a claim, and how many messages of the stretch the filter
    /// rejected.
    pub(super) fn read(
        &mut self,
        stretch: Stretch,
        claim: ClaimNo,
        deliveries: &mut [Delivery],
        filtered: u64,
    ) {
        let now = Instant::now();
        if let Some(delivery) = deliveries.first() {
            self.clock = Some((now, delivery.claimed_at));
        }
        self.turn_behind(stretch.partition);
        if let Some(track) = self.tracks.get_mut(&stretch.partition) {
            let bounds = (stretch.lo, stretch.hi);
            self.lost += track.take(bounds, claim, deliveries, filtered, now);
        }
    }

    /// Returns the messages lost to retention since the last call.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// How many messages wait for a retry.
    pub(super) fn waiting(&self) -> usize {
        self.tracks.values().map(Track::waiting).sum()
    }

    /// Records a message's settlement; false if the worker had lost the message.
    pub(super) fn settle(&mut self, worker: WorkerId, one: &Settled) -> bool {
        let (here, is_own) = (Instant::now(), self.is_of(worker));
        let (Some(at), Some(clock)) = (one.position, self.clock) else { return false };
        let passed = TimeDelta::from_std(here - clock.0).unwrap_or_default();
        let now = Now { here, server: clock.1 + passed };
        let track = self.tracks.get_mut(&at.partition).filter(|_| is_own);
        track.is_some_and(|track| track.settle(at.offset, one, worker, now))
    }

    /// The report that is due. It holds marks that have waited long enough, or all of them if
    /// `at_once`.
    pub(super) fn report(&self, is_named: bool, at_once: bool) -> Option<Report> {
        let over = |(no, track): (&PartitionNo, &Track)| {
            let over = track.over();
            (!over.is_empty()).then_some((*no, over))
        };
        let over: Vec<_> = self.tracks.iter().filter_map(over).collect();
        let waits = self.waits_until.is_some_and(|until| Instant::now() < until);
        let is_due = self.due_in(is_named).is_some_and(|due| due.is_zero());
        if (waits && !at_once) || (over.is_empty() && !at_once && !is_due) {
            return None;
        }
        let unreported = |(no, track): (&PartitionNo, &Track)| {
            let of = over.iter().find(|(of, _)| of == no);
            let next = track.mark_without(of.map_or(&[], |(_, over)| over));
            let news = next > track.reported || track.lost > 0;
            news.then_some(Progress { partition: *no, next, lost: track.lost })
        };
        let progress: Vec<_> =
            self.tracks.iter().filter(|_| is_named).filter_map(unreported).collect();
        (!over.is_empty() || !progress.is_empty()).then_some(Report { over, progress })
    }

    /// Records that the database has the report, except for `lost` messages that retention had
    /// removed.
    pub(super) fn mark_reported(&mut self, report: &Report, lost: u64) {
        self.lost += lost;
        for (no, track) in &mut self.tracks {
            let over = report.over.iter().find(|(of, _)| of == no);
            let progress = report.progress.iter().find(|it| it.partition == *no);
            if over.is_some() || progress.is_some() {
                track.mark_reported(
                    over.map_or(&[], |(_, over)| over),
                    progress.map_or(0, |it| it.lost),
                );
            }
        }
    }

    /// Ends the wait after a failure.
    pub(super) fn end_wait(&mut self) {
        self.waits_until = None;
    }

    /// Whether a message that was read is not finished.
    pub(super) fn has_open(&self) -> bool {
        self.tracks.values().any(Track::has_open)
    }

    /// How soon the next report is due.
    pub(super) fn due_in(&self, is_named: bool) -> Option<Duration> {
        let now = Instant::now();
        let of_track = |track: &Track| {
            let of_mark = track.unreported_since.filter(|_| is_named && track.has_news());
            let of_mark = of_mark.map(|since| (since + LINGER).duration_since(now));
            if track.has_over() { Some(Duration::ZERO) } else { of_mark }
        };
        let due = self.tracks.values().filter_map(of_track).min()?;
        let wait = self.waits_until.map(|until| until.duration_since(now));
        Some(due.max(wait.unwrap_or_default()))
    }

    /// Whether the message's settlement is not yet in the database.
    pub(super) fn is_unreported(&self, one: &Settled, is_named: bool) -> bool {
        let Some(at) = one.position else { return false };
        self.tracks.get(&at.partition).is_some_and(|track| {
            track.is_over(at.offset)
                || (is_named && one.settlement.is_final() && track.is_unsaid(at.offset))
        })
    }
}
