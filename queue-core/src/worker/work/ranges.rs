//! Ranges of streams: claiming them, and reporting their messages' ends to the database.

mod reconcile;

use std::collections::{HashMap, HashSet};

use super::Work;
use super::claiming::Tracer;
use super::settle::{Key, key};
use crate::connection::Link;
use crate::model::{
    ClaimNo, Delivery, Error, Group, Offset, PartitionNo, Result, Settlement, TopicId,
};
use crate::store::stream::cursor::GroupWork;
use crate::store::stream::log::{self, Messages, Reading, Stretch};
use crate::store::stream::range::{Range, Wanted};
use crate::store::stream::{cursor, inbox, passed};
use crate::stream::{Claim, Contention, Picked, claim_range, sequence};
use crate::telemetry;
use crate::worker::cursor::Claimed;
use crate::worker::ranges::{HeldRange, Report, Reported};
use crate::worker::settling::{SettleOutcome, Settled};

/// The most messages that one transaction of the sequencer moves. From 1000 on throughput hardly
/// rises, and the partitions stay locked for longer.
const SEQUENCED_AT_ONCE: u32 = 1000;

/// The most turns of the sequencer before a claim; the next claim does the rest.
const TURNS: usize = 8;

/// The most claims in a row that only skip messages that the group does not want, up to a thousand
/// each. After that, the worker's other work comes first.
const PASSING: u32 = 8;

impl Work {
    /// Claims up to `limit` messages of a group's stream.
    pub(super) async fn claim_range(
        &mut self,
        group: Group,
        limit: u32,
        wanted: Wanted,
    ) -> Result<Claimed> {
        if !self.may_claim(group.id)? || limit == 0 {
            return Ok(Claimed::default());
        }
        let mut group_work = self.group_work(group).await?;
        if group_work.inbox {
            // While another session sequences, this one claims what has been sequenced before.
            let done = self.sequence(group.stream).await?;
            if done || !group_work.work.iter().any(|work| work.is_there(group)) {
                group_work = self.group_work(group).await?;
            }
        }
        let GroupWork { mut work, filter, .. } = group_work;
        self.cursor(group.id).keep_readable(&mut work);
        let mut claimed = Claimed {
            suspect_waits: work.iter().any(|work| work.suspect > 0),
            more_later: work.iter().any(|work| work.busy + work.free + work.suspect > 0),
            ..Claimed::default()
        };
        let turn = self.turn(group, work.len());
        let has_some = |(_, work): &(usize, &cursor::Work)| match wanted {
            Wanted::Shared => work.is_there(group),
            Wanted::Suspect => work.suspect > 0,
        };
        let places = work.iter().enumerate();
        let mut passing = PASSING;
        // Other workers may have claimed the first place, or retention may have left nothing of it.
        for (nth, place) in places.clone().skip(turn).chain(places.take(turn)).filter(has_some) {
            claimed.more_later = true;
            loop {
                let (fence, filter) = (self.next_fence(), &filter);
                let claim = Claim { group, seen: *place, fence, limit, wanted, filter };
                let only_passed = match self.claim_at(claim, &mut claimed).await {
                    Err(Error::NewerPage(page)) => {
                        return self.leave(group, page, claimed).await;
                    }
                    only_passed => only_passed?,
                };
                if !only_passed || passing == 0 {
                    break;
                }
                passing -= 1;
            }
            if !claimed.deliveries.is_empty() || passing == 0 {
                if wanted == Wanted::Shared {
                    self.cursor(group.id).next_partition = Some(nth + 1);
                }
                break;
            }
        }
        Ok(claimed)
    }

    async fn group_work(&mut self, group: Group) -> Result<GroupWork> {
        let session = self.session().await?;
        let look = async |conn: &mut Link| cursor::group_work(conn, group).await;
        session.call("look for work of the group", look).await
    }

    /// Returns the partition, of `n`, at which this worker begins to look: the one behind its last
    /// claim, so that it comes to each. Workers begin at different ones.
    fn turn(&mut self, group: Group, n: usize) -> usize {
        let first = usize::try_from(self.id.0).unwrap_or(0);
        let next = self.cursor(group.id).next_partition.unwrap_or(first);
        if n == 0 { 0 } else { next % n }
    }

    /// Claims messages of one partition. Returns whether it has only skipped messages that the
    /// group does not want.
    async fn claim_at(&mut self, mut claim: Claim<'_>, claimed: &mut Claimed) -> Result<bool> {
        let group = claim.group;
        let limit = self.cursor(group.id).sized(claim.limit);
        claim.limit = limit;
        let session = self.session().await?;
        let take = async |conn: &mut Link| claim_range(conn, claim).await;
        let found = session.transaction("claim", take).await;
        self.cursor(group.id).answered(&found, limit);
        let found = found?;
        claimed.lost += found.lost;
        let picked = found.picked.as_ref();
        let filtered = picked.map_or(0, |picked| picked.filtered.len());
        claimed.filtered += filtered as u64;
        let Some(range) = found.range else { return Ok(filtered > 0) };
        let read = self.read(group, range, picked).await;
        self.cursor(group.id).answered(&read, limit);
        let (deliveries, pruned) = read?;
        self.cursor(group.id).learn(&deliveries, limit);
        claimed.lost += pruned;
        claimed.deliveries = deliveries;
        Ok(false)
    }

    /// As [`sequence`](Self::sequence), if the inbox has a message.
    pub(super) async fn sequence_if_waiting(&mut self, stream: TopicId) -> Result<()> {
        let session = self.session().await?;
        let look = async |conn: &mut Link| inbox::is_empty(conn, stream).await;
        if !session.call("look into the inbox", look).await? {
            self.sequence(stream).await?;
        }
        Ok(())
    }

    /// Assigns offsets to the messages in the stream's inbox, except in partitions where another
    /// session is about to. Returns whether some may have been assigned.
    async fn sequence(&mut self, stream: TopicId) -> Result<bool> {
        let session = self.session().await?;
        let mut sequenced = false;
        for _ in 0..TURNS {
            let turn = async |conn: &mut Link| {
                sequence(conn, stream, SEQUENCED_AT_ONCE, Contention::Leave).await
            };
            let done = match session.transaction("sequence", turn).await {
                Ok(done) => done,
                // A row was purged in the meantime; the next turn reads again.
                Err(Error::Counts { .. }) => return Ok(true),
                Err(error) => return Err(error),
            };
            telemetry::sequenced(done.messages);
            sequenced |= done.messages > 0;
            if !done.more {
                break;
            }
        }
        Ok(sequenced)
    }

    /// Reads the messages of a range that has just been claimed, and counts those that retention
    /// has removed.
    async fn read(
        &mut self,
        group: Group,
        range: Range,
        picked: Option<&Picked>,
    ) -> Result<(Vec<Delivery>, u64)> {
        let stretch = Stretch {
            stream: group.stream,
            partition: range.partition,
            lo: range.mark,
            hi: range.hi,
        };
        let reading = Reading {
            group: group.id,
            claim_no: range.fence.claim_no,
            delivery_no: range.delivery_no,
        };
        let tracer = self.tracer(group.id);
        let session = self.session().await?;
        let mut acked = HashSet::new();
        if range.delivery_no.0 > 1 {
            let read = async |conn: &mut Link| passed::of_range(conn, range.id).await;
            acked.extend(session.call("read what was acked", read).await?);
        }
        let mut filtered = picked.map_or_else(Vec::new, |picked| picked.filtered.clone());
        // The bodies of the other messages need not be read. A damaged page is delivered in the
        // place of a message that is to be handled, so that it is not taken for one that is.
        let is_left =
            |offset: &Offset| !acked.contains(offset) && filtered.binary_search(offset).is_err();
        let left = (range.mark.0..range.hi.0).map(Offset).filter(is_left);
        let some = (!acked.is_empty() || !filtered.is_empty()).then(|| left.collect::<Vec<_>>());
        let read = async |conn: &mut Link| match &some {
            Some(offsets) => log::read_some(conn, stretch, reading, offsets).await,
            None => log::read(conn, stretch, reading).await,
        };
        let Messages { mut deliveries, hidden } = session.call("read the log", read).await?;
        tracer.mark(&mut deliveries);
        filtered.extend(hidden);
        filtered.sort_unstable();
        if let Some(head) = deliveries.first_mut()
            && head.position.is_some_and(|at| at.offset == range.mark)
        {
            (head.failures, head.crashes) = (range.failures, range.crashes);
        }
        let held = HeldRange::new(range, group, &deliveries, &acked, &filtered);
        let pruned = held.pruned();
        if pruned > 0
            && let Err(error) = self.count_lost(group, range.partition, pruned).await
        {
            // The messages that are there should be handled all the same.
            tracing::warn!(
                worker.id = %self.id, messages = pruned, %error,
                "Cannot count messages that retention had removed before they were read."
            );
        }
        self.ranges.add(held);
        self.trace_claimed(&tracer, &deliveries).await;
        Ok((deliveries, pruned))
    }

    /// Records in the traces that messages of a range were claimed. The claim was committed before
    /// the messages were read. If the traces cannot be written, the messages should be handled all
    /// the same.
    async fn trace_claimed(&mut self, tracer: &Tracer, deliveries: &[Delivery]) {
        if !deliveries.iter().any(|delivery| delivery.traced) {
            return;
        }
        let Some(session) = self.session.as_mut() else { return };
        let record = async |conn: &mut Link| tracer.record(conn, deliveries).await;
        if let Err(error) = session.transaction("trace what was claimed", record).await {
            tracing::warn!(worker.id = %self.id, %error, "The trace lacks that messages were claimed.");
        }
    }

    async fn count_lost(&mut self, group: Group, no: PartitionNo, lost: u64) -> Result<usize> {
        let count = async |conn: &mut Link| cursor::count_lost(conn, group.id, no, lost).await;
        let session = self.session().await?;
        session.transaction("count what is lost to retention", count).await
    }

    /// Records the settlements of stream messages, and reports those that are due. What cannot be
    /// reported yet is [deferred](SettleOutcome::Deferred).
    pub(super) async fn settle_ranges(
        &mut self,
        settled: &[Settled],
        in_doubt: bool,
    ) -> Result<HashMap<Key, SettleOutcome>> {
        let mut outcomes = HashMap::with_capacity(settled.len());
        if in_doubt && let Err(error) = self.look_for_acked(settled, &mut outcomes).await {
            // The report that releases them looks again, under the lock of their range.
            tracing::warn!(worker.id = %self.id, %error, "Cannot read what was acked; later.");
        }
        for one in settled {
            let Some(position) = one.position else { continue };
            if outcomes.contains_key(&key(one)) {
                continue;
            }
            let outcome = match self.ranges.settle(position.offset, one) {
                true => SettleOutcome::Deferred,
                false if one.settlement == Settlement::Release => SettleOutcome::Settled,
                false => SettleOutcome::Fenced,
            };
            outcomes.insert(key(one), outcome);
        }
        let fenced = self.report_ranges(false).await?;
        for one in settled {
            let Some(position) = one.position else { continue };
            let held = self.ranges.get(one.claim_no);
            let outcome = match held {
                _ if fenced.contains(&one.claim_no) => SettleOutcome::Fenced,
                Some(held) if position.offset >= held.range.mark => continue,
                _ => SettleOutcome::Settled,
            };
            let known = outcomes.entry(key(one)).or_insert(outcome);
            if *known == SettleOutcome::Deferred {
                *known = outcome;
            }
        }
        Ok(outcomes)
    }

    /// Finds out which of these were acked by the transactions that had no answer.
    async fn look_for_acked(
        &mut self,
        settled: &[Settled],
        outcomes: &mut HashMap<Key, SettleOutcome>,
    ) -> Result<()> {
        for claim in settled.iter().map(|one| one.claim_no).collect::<HashSet<_>>() {
            let Some(range) = self.ranges.get(claim).map(|held| held.range.id) else { continue };
            let session = self.session().await?;
            let read = async |conn: &mut Link| passed::of_range(conn, range).await;
            let acked = session.call("read what was acked", read).await?;
            // An earlier report may have found the ack: then the mark is behind the message.
            let mark = self.ranges.get(claim).map(|held| held.range.mark);
            let is_acked =
                |offset: Offset| acked.contains(&offset) || mark.is_some_and(|mark| offset < mark);
            for one in settled.iter().filter(|one| one.claim_no == claim) {
                let Some(at) = one.position.filter(|at| is_acked(at.offset)) else { continue };
                if let Some(held) = self.ranges.get_mut(claim) {
                    held.pass(at.offset);
                }
                outcomes.insert(key(one), SettleOutcome::Unknown);
            }
        }
        Ok(())
    }

    /// Records messages that handlers' transactions have acked.
    pub(super) fn passed(&mut self, gone: &[Key]) {
        for (claim, row) in gone {
            if let Some(held) = self.ranges.get_mut(*claim) {
                held.pass(Offset(row.0));
            }
        }
    }

    /// Sends the reports that are due. Returns the claims of ranges that the worker has lost. A
    /// report that fails is sent later and holds up no other range.
    pub(super) async fn report_ranges(&mut self, at_once: bool) -> Result<HashSet<ClaimNo>> {
        let mut fenced = HashSet::new();
        for (claim, report) in self.ranges.reports(at_once) {
            // Without a connection, no report can be sent.
            if let Err(error) = self.session().await {
                if matches!(error, Error::WorkerDead { .. } | Error::WorkerStopped) {
                    return Err(error);
                }
                tracing::warn!(worker.id = %self.id, %error, "Settling fails; trying again.");
                self.ranges.wait_all();
                break;
            }
            match self.report(claim, &report).await {
                Ok(true) => {}
                Ok(false) => {
                    fenced.insert(claim);
                }
                Err(error) => {
                    tracing::warn!(
                        worker.id = %self.id, claim.no = %claim, %error,
                        "Settling of a range fails; trying again."
                    );
                    self.ranges.wait(claim);
                }
            }
        }
        Ok(fenced)
    }

    /// Sends the report; false if the range is no longer the worker's.
    async fn report(&mut self, claim: ClaimNo, report: &Report) -> Result<bool> {
        let Some(held) = self.ranges.get(claim).cloned() else { return Ok(true) };
        if !report.fits(&held) {
            // A reconnect has learned more of the range.
            return Ok(true);
        }
        let Some(session) = self.session.as_mut() else { return Ok(true) };
        let write = async |conn: &mut Link| report.write(conn, &held).await;
        let reported = match report.is_one_statement(&held) {
            true => session.call("settle", write).await?,
            false => session.transaction("settle", write).await?,
        };
        let written = match reported {
            Reported::Written(written) => written,
            Reported::Fenced => {
                self.ranges.forget(claim);
                self.lost.add(claim);
                return Ok(false);
            }
        };
        if written.lost > 0 {
            tracing::warn!(
                worker.id = %self.id, messages = written.lost,
                "Messages are lost: retention had removed them before they could be tried again."
            );
        }
        if written.again > 0 {
            tracing::warn!(
                worker.id = %self.id, messages = written.again,
                "Messages are handled again: the server has lost that they were acked."
            );
        }
        match written.held {
            Some(held) => self.ranges.add(held),
            None => self.ranges.forget(claim),
        }
        Ok(true)
    }
}
