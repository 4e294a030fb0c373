//! Members of broadcast groups: reading for them, and reporting their positions to the database.

use std::collections::HashMap;
use std::time::Duration;

use super::Work;
use super::settle::{Key, key};
use crate::connection::{Connection, Link};
use crate::model::{DeliveryNo, Error, PartitionNo, Result, Settlement, TopicId, WorkerId};
use crate::store::moves::{Outcome, equal};
use crate::store::stream::filing::{self, Filed};
use crate::store::stream::log::{self, Reading};
use crate::store::stream::member as row;
use crate::store::stream::partition::{self, Partition};
use crate::stream::broadcast::{Taken, begin, take_member};
use crate::stream::{LOOKED_AT, pick};
use crate::worker::cursor::Claimed;
use crate::worker::member::{Member, Over, Report};
use crate::worker::settling::{SettleOutcome, Settled};

/// The outcome of a report on a member.
enum Reported {
    /// The database has the report, except for this many messages that retention had removed.
    Written(u64),
    /// The member is no longer this worker's.
    Fenced,
}

impl Work {
    /// Reads up to `limit` messages of the stream for a member: messages to handle again if there
    /// are any, else the next new ones.
    pub(super) async fn read_for(&mut self, member: &Member, limit: u32) -> Result<Claimed> {
        let group = member.group();
        if !self.may_claim(group.id)? || limit == 0 {
            return Ok(Claimed::default());
        }
        self.members.insert(group.id, member.clone());
        if !member.state().is_of(self.id) {
            self.join(member).await?;
        }
        self.sequence_if_waiting(group.stream).await?;
        let Some(partitions) = self.look_for(member).await? else {
            // The member was moved, or another worker has taken it: the next read joins again.
            return Ok(Claimed { more_later: true, ..Claimed::default() });
        };
        let limit = self.cursor(group.id).sized(limit);
        let filter = member.filter();
        let most = if filter.wants_all() { u64::from(limit) } else { LOOKED_AT };
        let next = member.state().next(group, &partitions, most);
        let (mut deliveries, mut filtered) = (Vec::new(), 0);
        if let Some(mut stretch) = next {
            let claim_no = self.next_fence().claim_no;
            let reading = Reading { group: group.id, claim_no, delivery_no: DeliveryNo(1) };
            let session = self.session().await?;
            let read = async |conn: &mut Link| {
                let (hi, filtered, wanted) = if filter.wants_all() {
                    (stretch.hi, 0, log::read(conn, stretch, reading).await?)
                } else {
                    let (hi, picked) = pick(conn, stretch, limit, &filter).await?;
                    let wanted = log::read_some(conn, stretch, reading, &picked.wanted).await?;
                    (hi, picked.filtered.len() as u64, wanted)
                };
                Ok((hi, filtered, wanted))
            };
            let read = session.call("read the log", read).await;
            self.cursor(group.id).answered(&read, limit);
            if let Err(Error::NewerPage(page)) = &read {
                member.state().turn_behind(page.at.partition);
            }
            let wanted;
            (stretch.hi, filtered, wanted) = read?;
            deliveries = wanted.deliveries;
            self.cursor(group.id).learn(&deliveries, limit);
            let passed = filtered + wanted.hidden.len() as u64;
            member.state().read(stretch, claim_no, &mut deliveries, passed);
        }
        let mut state = member.state();
        let more_later = next.is_some() || state.waiting() > 0;
        let lost = state.take_lost();
        Ok(Claimed { deliveries, lost, filtered, more_later, ..Claimed::default() })
    }

    /// Makes this worker the member's reader from now on.
    async fn join(&mut self, member: &Member) -> Result<()> {
        let (id, group) = (self.id, member.group());
        let session = self.session().await?;
        let Some(name) = member.name() else {
            let has_begun = member.state().has_begun();
            let places = match has_begun {
                true => Vec::new(),
                false => {
                    let begin = async |conn: &mut Link| begin(conn, group).await;
                    session.call("begin to read", begin).await?
                }
            };
            member.state().begin(id, places);
            let unknown = || Error::UnknownTopic { topic: member.topic().clone() };
            return if member.state().has_begun() { Ok(()) } else { Err(unknown()) };
        };
        let take = async |conn: &mut Link| take_member(conn, group, name, id).await;
        match session.transaction("take the member", take).await? {
            Taken::Own(rows) => {
                member.state().take_over(id, &rows);
                Ok(())
            }
            Taken::Gone => Err(Error::UnknownTopic { topic: member.topic().clone() }),
            Taken::InUse(worker) => {
                let (topic, name) = (member.topic().clone(), name.clone());
                let error = Error::MemberInUse { topic, member: name, worker };
                if !std::mem::replace(&mut member.state().was_refused, true) {
                    tracing::warn!(worker.id = %id, %error, "Nothing is read; trying again.");
                }
                Err(error)
            }
        }
    }

    /// Reads where the partitions begin and end, and records it. `None` if the member is no longer
    /// this worker's.
    async fn look_for(&mut self, member: &Member) -> Result<Option<Vec<Partition>>> {
        let (id, group) = (self.id, member.group());
        let session = self.session().await?;
        if let Some(name) = member.name() {
            let read = async |conn: &mut Link| row::positions(conn, group.id, name).await;
            let rows = session.call("read the member's positions", read).await?;
            let mut state = member.state();
            if !state.fits(id, &rows) {
                state.lose_rows(id);
                tracing::info!(
                    worker.id = %id, topic.name = %member.topic(), member = %name,
                    "The member was moved, or another worker has taken it."
                );
                return Ok(None);
            }
        }
        let read = async |conn: &mut Link| partition::of_group(conn, group.id).await;
        let partitions = session.call("read the group's partitions", read).await?;
        if partitions.is_empty() {
            return Err(Error::UnknownTopic { topic: member.topic().clone() });
        }
        let gone = member.state().see(&partitions);
        if gone > 0 {
            tracing::warn!(
                worker.id = %id, topic.name = %member.topic(), messages = gone,
                "The server has lost messages that this member had read; it goes on at the end."
            );
        }
        Ok(Some(partitions))
    }

    /// Records the settlements of messages that were read for members, and reports to the database
    /// what it must know. What cannot be reported yet is [deferred](SettleOutcome::Deferred).
    pub(super) async fn settle_for_members(
        &mut self,
        settled: &[Settled],
    ) -> Result<HashMap<Key, SettleOutcome>> {
        let mut outcomes = HashMap::with_capacity(settled.len());
        for one in settled {
            let Some(member) = self.members.get(&one.topic) else { continue };
            let outcome = match member.state().settle(self.id, one) {
                true => SettleOutcome::Settled,
                false if one.settlement == Settlement::Release => SettleOutcome::Settled,
                false => SettleOutcome::Fenced,
            };
            outcomes.insert(key(one), outcome);
        }
        let fenced = self.report_members(false).await?;
        for one in settled {
            let Some(member) = self.members.get(&one.topic) else { continue };
            let is_unreported = member.state().is_unreported(one, member.name().is_some());
            let outcome = outcomes.entry(key(one)).or_insert(SettleOutcome::Fenced);
            if *outcome == SettleOutcome::Settled && is_unreported {
                *outcome = match fenced.contains(&one.topic) {
                    true => SettleOutcome::Fenced,
                    false => SettleOutcome::Deferred,
                };
            }
        }
        Ok(outcomes)
    }

    /// How soon the next report on a member is due.
    pub(super) fn members_due_in(&self) -> Option<Duration> {
        let due_in = |member: &Member| member.state().due_in(member.name().is_some());
        let own = self.members.values().filter(|member| member.state().is_of(self.id));
        own.filter_map(due_in).min()
    }

    /// Sends the reports that are due. Returns the groups whose member this worker has lost. Failed
    /// reports are sent later.
    pub(super) async fn report_members(&mut self, at_once: bool) -> Result<Vec<TopicId>> {
        let mut fenced = Vec::new();
        let own = self.members.values().filter(|member| member.state().is_of(self.id));
        for member in own.cloned().collect::<Vec<_>>() {
            let report = member.state().report(member.name().is_some(), at_once);
            let Some(report) = report else { continue };
            match self.report_member(&member, &report).await {
                Ok(Reported::Written(lost)) => {
                    let mut state = member.state();
                    state.mark_reported(&report, lost);
                    state.end_wait();
                    if lost > 0 {
                        tracing::warn!(
                            worker.id = %self.id, topic.name = %member.topic(), messages = lost,
                            "Messages are lost: retention had removed them before they could be \
                             filed."
                        );
                    }
                }
                Ok(Reported::Fenced) => {
                    member.state().lose_rows(self.id);
                    fenced.push(member.group().id);
                }
                Err(error @ (Error::WorkerDead { .. } | Error::WorkerStopped)) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(
                        worker.id = %self.id, topic.name = %member.topic(), %error,
                        "Cannot report the member's position; trying again."
                    );
                    member.wait();
                }
            }
        }
        Ok(fenced)
    }

    async fn report_member(&mut self, member: &Member, report: &Report) -> Result<Reported> {
        let id = self.id;
        let session = self.session().await?;
        let write = async |conn: &mut Link| write(conn, member, id, report).await;
        session.transaction("settle", write).await
    }
}

/// Sends a report on a member, under the lock of its rows if it has a name.
async fn write(
    conn: &mut impl Connection,
    member: &Member,
    worker: WorkerId,
    report: &Report,
) -> Result<Reported> {
    let group = member.group().id;
    if let Some(name) = member.name() {
        // Two workers must not file the same message, so the fence comes first.
        for progress in &report.progress {
            if row::report(conn, group, name, worker, *progress).await? == 0 {
                return Ok(Reported::Fenced);
            }
        }
        if report.progress.is_empty() {
            let rows = row::lock(conn, group, name).await?;
            if rows.iter().any(|row| row.worker != worker) || rows.is_empty() {
                return Ok(Reported::Fenced);
            }
        }
    }
    let mut lost = 0;
    for (no, over) in &report.over {
        for one in over {
            lost += file(conn, member, worker, *no, one).await?;
        }
    }
    Ok(Reported::Written(lost))
}

/// Files a dead or discarded message. Returns 1 if retention had removed it.
async fn file(
    conn: &mut impl Connection,
    member: &Member,
    worker: WorkerId,
    partition: PartitionNo,
    over: &Over,
) -> Result<u64> {
    let filed = Filed {
        stream: member.group().stream,
        partition,
        offsets: vec![over.offset],
        group: member.group().id,
        worker,
        delivery_no: over.delivery_no,
        past: over.past.clone(),
    };
    let done = match &over.settled.settlement {
        Settlement::DeadLetter { cause, error } => {
            filing::to_dead(conn, &filed, *cause, error).await?
        }
        Settlement::Discard { reason } => {
            let outcome = Outcome::Discarded(reason);
            filing::to_archive(conn, &filed, outcome, over.settled.on_done).await?
        }
        _ => return Ok(0),
    };
    equal("settle: file", 1, done.max(1))?;
    Ok(u64::from(done == 0))
}
