//! The search of a stream's log.

use chrono::{DateTime, TimeDelta, Utc};

use super::search::{ROWS, STRETCH, Search};
use super::{PageToken, Searched};
use crate::connection::Link;
use crate::model::found::StateWord;
use crate::model::{MsgId, Offset, PartitionNo, Position, Result};
use crate::store::stream::log::Stretch;
use crate::store::stream::partition::{self, Partition};
use crate::store::stream::search::{self, Looked};
use crate::stream::group::at_time;

/// Messages that are read together.
const READ: usize = 500;

/// How long after its enqueue a message may get its offset, so that a search for messages enqueued
/// before a given time still finds it. A message is late if its transaction stayed open for so
/// long, or if no sequencer ran.
const LATE: TimeDelta = TimeDelta::minutes(1);

/// How many messages before and after the time in a message's id are searched. The message may be
/// elsewhere in the log, because the clocks of producer and server differ and the message got its
/// offset only after its commit.
const BEFORE: u64 = 2000;
const AFTER: u64 = 8000;

impl Search<'_> {
    /// Reads the message at a position of the log.
    pub(super) async fn at(&mut self, position: Position) -> Result<()> {
        let (stream, bodies) = (self.topic, self.query.bodies);
        let is_there = |end: &Partition| end.no == position.partition && position.offset < end.next;
        if self.partitions().await?.iter().any(is_there) {
            let read = async |conn: &mut Link| {
                search::at(conn, stream, position.partition, &[position.offset], bodies).await
            };
            let found = self.session.call("read what was found in the log", read).await?;
            self.take(found);
        }
        self.answer.searched.push(Searched::Log { rows: self.answer.found.len(), whole: true });
        Ok(())
    }

    /// Searches the log of a stream, if the log may hold a match and the tables have been searched
    /// to their end.
    pub(super) async fn then_log(&mut self) -> Result<()> {
        let filter = &self.query.filter;
        let in_log = filter.state.is_none_or(|state| state == StateWord::Logged);
        if !self.topic.is_stream() || !in_log || filter.error.is_some() {
            return Ok(());
        }
        if self.answer.next.is_some() {
            return Ok(());
        }
        let partitions = self.partitions().await?;
        if let Some(id) = filter.msg_id
            && self.around(id, &partitions).await?
        {
            return Ok(());
        }
        let mut ends = Vec::with_capacity(partitions.len());
        for partition in &partitions {
            let end = match filter.before {
                Some(before) => self.offset_of(partition, before + LATE).await?,
                None => partition.next,
            };
            ends.push(Position { partition: partition.no, offset: end });
        }
        self.log(&ends).await
    }

    /// Searches the partitions backwards from these ends; each gets a share of all reads.
    pub(super) async fn log(&mut self, ends: &[Position]) -> Result<()> {
        let share = (ROWS / ends.len().max(1)).max(STRETCH as usize / 4);
        let partitions = self.partitions().await?;
        let (mut rows, mut rest) = (0, Vec::new());
        for end in ends {
            let Some(partition) = partitions.iter().find(|one| one.no == end.partition) else {
                continue;
            };
            let lo = match self.query.filter.since {
                Some(since) => self.offset_of(partition, since).await?,
                None => partition.first,
            };
            // A token of a page says what its sender likes.
            let hi = end.offset.min(partition.next);
            let stretch = Stretch { stream: self.topic.id, partition: end.partition, lo, hi };
            let (seen, left) = self.backwards(stretch, share).await?;
            rows += seen;
            rest.extend(left.map(|offset| Position { offset, ..*end }));
        }
        self.answer.searched.push(Searched::Log { rows, whole: rest.is_empty() });
        self.answer.next = Some(rest).filter(|rest| !rest.is_empty()).map(PageToken::Log);
        Ok(())
    }

    /// Searches at most about `share` messages of a stretch from its end. Returns how many it
    /// searched, and before which message to continue.
    async fn backwards(
        &mut self,
        mut stretch: Stretch,
        share: usize,
    ) -> Result<(usize, Option<Offset>)> {
        let (query, topic, bodies) = (self.query, self.topic, self.query.bodies);
        let mut seen = 0;
        while stretch.lo < stretch.hi {
            let room = query.limit.saturating_sub(self.answer.found.len());
            if room == 0 || seen >= share {
                return Ok((seen, Some(stretch.hi)));
            }
            let (ids, filter) = (query.filter.msg_id, &query.filter);
            let limit = u32::try_from(share - seen).map_or(STRETCH, |left| left.min(STRETCH));
            let look = async |conn: &mut Link| {
                search::newest(conn, stretch, ids.as_slice(), filter, limit).await
            };
            let Looked { mut wanted, damaged, seen: some, oldest } =
                self.session.call("search the log", look).await?;
            seen += some;
            self.report_damaged(stretch.partition, damaged);
            let cut = wanted.len() > room;
            wanted.truncate(room);
            for some in wanted.chunks(READ) {
                let read = async |conn: &mut Link| {
                    search::at(conn, topic, stretch.partition, some, bodies).await
                };
                let found = self.session.call("read what was found in the log", read).await?;
                self.take(found);
            }
            match (oldest, wanted.last()) {
                (_, Some(last)) if cut => return Ok((seen, Some(*last))),
                (Some(oldest), _) => stretch.hi = oldest,
                (None, _) => return Ok((seen, None)),
            }
        }
        Ok((seen, None))
    }

    fn report_damaged(&mut self, partition: PartitionNo, pages: Vec<Offset>) {
        for offset in pages {
            let page = Searched::DamagedPage { position: Position { partition, offset } };
            if !self.answer.searched.contains(&page) {
                self.answer.searched.push(page);
            }
        }
    }

    /// Searches for a message around the time in its id, if its id has one. Returns whether it was
    /// found. The message may be in several partitions, if its sender has stored it twice.
    async fn around(&mut self, id: MsgId, partitions: &[Partition]) -> Result<bool> {
        let Some(time) = id.made_at() else { return Ok(false) };
        let before = self.answer.found.len();
        let mut rows = 0;
        for partition in partitions {
            let middle = self.offset_of(partition, time).await?.0;
            let stretch = Stretch {
                stream: self.topic.id,
                partition: partition.no,
                lo: Offset(middle.saturating_sub(BEFORE)).max(partition.first),
                hi: Offset(middle + AFTER).min(partition.next),
            };
            rows += self.backwards(stretch, ROWS).await?.0;
        }
        let is_found = self.answer.found.len() > before;
        if is_found {
            self.answer.searched.push(Searched::Log { rows, whole: false });
        }
        Ok(is_found)
    }

    async fn partitions(&mut self) -> Result<Vec<Partition>> {
        let stream = self.topic.id;
        let read = async |conn: &mut Link| partition::all(conn, stream).await;
        self.session.call("read the partitions", read).await
    }

    async fn offset_of(&mut self, partition: &Partition, time: DateTime<Utc>) -> Result<Offset> {
        let stream = self.topic.id;
        let find = async |conn: &mut Link| at_time(conn, stream, partition, time).await;
        self.session.call("find a time in the log", find).await
    }
}
