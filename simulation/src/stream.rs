//! Streams and their groups in a history, and what must hold of them at every moment.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::{Connection, Link, Session, SessionKind};
use rowmq_core::model::{
    MsgId, Offset, OffsetSpec, Position, Retention, RetryPolicy, TopicId, TopicSettings,
};
use rowmq_core::stream::group::{create_group, create_stream, replay, reset_group};
use rowmq_core::worker::Worker;
use rowmq_core::{Delivery, Result, TopicName, store};

use crate::model::{Row, Table, Value};
use crate::settings::Streamed;
use crate::stage::Stage;

/// An ordered group is handling a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    place: (TopicId, u32, i128),
    offset: u64,
}

/// Creates the stream and its groups.
pub(crate) async fn create(
    conn: &mut impl Connection,
    stage: &Stage,
    streamed: &Streamed,
    settings: &TopicSettings,
) -> Result<()> {
    let retention = Retention { time: Some(streamed.retention), ..Retention::default() };
    let of_stream = TopicSettings { retention, trace: settings.trace, ..TopicSettings::default() };
    create_stream(conn, &stage.topic, streamed.partitions, &of_stream).await?;
    if streamed.pages {
        store::migration::turn_pages_on(conn).await?;
    }
    for (n, ordered) in streamed.groups.iter().enumerate() {
        let name = TopicName::of_group(&stage.topic, &format!("g{n}"))?;
        let retry = RetryPolicy::Fixed(Duration::from_millis(200));
        let settings = TopicSettings { retry, ..settings.clone() };
        create_group(conn, &name, *ordered, OffsetSpec::Earliest, &settings).await?;
        let group = store::topic::existing(conn, &name).await?;
        stage.readers.borrow_mut().push(Rc::new(group));
    }
    Ok(())
}

/// A range as the table has it.
#[derive(Debug, Clone, Copy)]
struct Range {
    group: TopicId,
    partition: u32,
    mark: u64,
    hi: u64,
    worker: u64,
    claim: u64,
}

/// A group's cursor.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    group: TopicId,
    partition: u32,
    next: u64,
    generation: i128,
    lost: i128,
}

/// Reads committed rows.
fn read<T>(stage: &Stage, name: &str, of: impl Fn(&dyn Fn(&str) -> i128) -> T) -> Vec<T> {
    let engine = stage.server.engine.borrow();
    let table = &engine.tables[engine.table(name)];
    let rows = table.slots.values().filter_map(|slot| slot.committed.as_ref());
    rows.map(|row| of(&|column| number(table, row, column))).collect()
}

fn number(table: &Table, row: &Row, column: &str) -> i128 {
    row[table.definition.place(column).expect("a column")].number()
}

fn ranges(stage: &Stage) -> Vec<Range> {
    read(stage, "queue_range", |of| Range {
        group: TopicId(of("group_id") as u32),
        partition: of("partition_no") as u32,
        mark: of("mark") as u64,
        hi: of("hi") as u64,
        worker: of("worker_id") as u64,
        claim: of("claim_no") as u64,
    })
}

fn cursors(stage: &Stage) -> Vec<Cursor> {
    read(stage, "queue_cursor", |of| Cursor {
        group: TopicId(of("group_id") as u32),
        partition: of("partition_no") as u32,
        next: of("next_offset") as u64,
        generation: of("generation"),
        lost: of("lost"),
    })
}

/// Returns the first and the next offset of each partition.
fn partitions(stage: &Stage) -> BTreeMap<u32, (u64, u64)> {
    let of_row = |of: &dyn Fn(&str) -> i128| {
        (of("partition_no") as u32, (of("first_offset") as u64, of("next_offset") as u64))
    };
    read(stage, "queue_partition", of_row).into_iter().collect()
}

impl Stage {
    /// Returns whether the groups have nothing left to do.
    pub(crate) fn is_read(&self) -> bool {
        let ends = partitions(self);
        let is_behind = |cursor: &Cursor| ends[&cursor.partition].1 > cursor.next;
        !cursors(self).iter().any(is_behind)
            && self.rows("queue_range") == 0
            && self.rows("queue_passed") == 0
    }

    /// Returns how many messages the groups have finished. It never falls while no group is reset.
    pub(crate) fn read_so_far(&self) -> u64 {
        let claimed: u64 = ranges(self).iter().map(|range| range.hi - range.mark).sum();
        let reached: u64 = cursors(self).iter().map(|cursor| cursor.next).sum();
        reached.saturating_sub(claimed)
    }

    /// Checks what must hold of ranges, cursors and the log at every moment.
    pub(crate) fn check_groups(&self) {
        if let Some(wrong) = self.wrong_of_groups() {
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    fn wrong_of_groups(&self) -> Option<String> {
        let (ranges, ends) = (ranges(self), partitions(self));
        for cursor in cursors(self) {
            let is_here =
                |range: &&Range| (range.group, range.partition) == (cursor.group, cursor.partition);
            let mut here: Vec<_> = ranges.iter().filter(is_here).collect();
            here.sort_by_key(|range| range.mark);
            if here.windows(2).any(|pair| pair[0].hi > pair[1].mark) {
                return Some(format!("two ranges have one offset: {here:?}"));
            }
            if here.last().is_some_and(|last| last.hi > cursor.next) {
                return Some(format!("a range lies before the cursor {cursor:?}: {here:?}"));
            }
            let held = here.iter().filter(|range| range.worker != 0).count();
            if self.is_ordered(cursor.group) && held > 1 {
                return Some(format!("an ordered group has two claims: {here:?}"));
            }
            let (first, next) = ends[&cursor.partition];
            let mark = here.first().map_or(cursor.next, |range| range.mark.min(cursor.next));
            if mark < first || cursor.next > next || cursor.lost > 0 {
                return Some(format!(
                    "of {first}..{next} the group with {cursor:?} is through up to {mark}"
                ));
            }
        }
        let logged = read(self, "queue_log", |of| {
            let end = of("offset_no") as u64 + 1;
            (of("partition_no") as u32, end - of("messages") as u64..end)
        });
        for (partition, (first, next)) in ends {
            let here = logged.iter().filter(|(no, _)| *no == partition);
            // Retention leaves a page while one of its messages is kept.
            let offsets =
                here.flat_map(|(_, offsets)| offsets.clone()).skip_while(|at| *at < first);
            if !offsets.eq(first..next) {
                return Some(format!("partition {partition} has not {first}..{next}"));
            }
        }
        None
    }

    fn is_ordered(&self, group: TopicId) -> bool {
        let readers = self.readers.borrow();
        let found = readers.iter().find(|reader| reader.id == group);
        found.and_then(|reader| reader.group()).is_some_and(|group| group.ordered)
    }

    /// Returns where the ordered group of a delivery is, if the delivery is still the worker's own.
    fn generation(&self, worker: &Worker, delivery: &Delivery) -> Option<(TopicId, u32, i128)> {
        let Position { partition, offset } = delivery.position?;
        let is_own = |range: &Range| {
            (range.worker, range.claim) == (worker.id().0, delivery.claim_no.0)
                && (range.mark..range.hi).contains(&offset.0)
        };
        ranges(self).iter().find(|range| is_own(range))?;
        let is_its =
            |cursor: &Cursor| (cursor.group, cursor.partition) == (delivery.topic_id, partition.0);
        let cursor = cursors(self).into_iter().find(is_its)?;
        Some((cursor.group, cursor.partition, cursor.generation))
    }

    /// Records that a handler of an ordered group begins: everything before it in its partition
    /// must have ended.
    pub(crate) fn begin_in_order(&self, worker: &Worker, delivery: &Delivery) -> Option<Turn> {
        let place = self.generation(worker, delivery)?;
        let at = delivery.position?;
        let start = if place.2 == 0 { 0 } else { at.offset.0 };
        let frontier = *self.frontiers.borrow_mut().entry(place).or_insert(start);
        let is_over =
            |offset: u64| self.is_dead_there(place, offset) || self.is_acked_there(place, offset);
        let missing = (frontier..at.offset.0).find(|offset| !is_over(*offset));
        if let Some(missing) = missing {
            let wrong = format!("offset {} of {place:?} overtakes {missing}", at.offset);
            self.recorder.borrow_mut().fail(wrong);
        }
        self.frontiers.borrow_mut().insert(place, frontier.max(at.offset.0));
        Some(Turn { place, offset: at.offset.0 })
    }

    /// Records that it has ended.
    pub(crate) fn end_in_order(&self, turn: Turn) {
        if let Some(frontier) = self.frontiers.borrow_mut().get_mut(&turn.place)
            && *frontier == turn.offset
        {
            *frontier += 1;
        }
    }

    /// Returns whether the message at an offset was dead-lettered for the crashes of its workers.
    fn is_dead_there(&self, place: (TopicId, u32, i128), offset: u64) -> bool {
        let log = self.log();
        let id = log.get(&(place.1, offset)).copied();
        let dead = self.places().into_iter().filter(|(_, place)| place.is_dead());
        id.is_some_and(|id| dead.into_iter().any(|(share, _)| share == (place.0, id)))
    }

    /// Returns whether a separate transaction acked the message at an offset, even if its answer
    /// was lost.
    fn is_acked_there(&self, place: (TopicId, u32, i128), offset: u64) -> bool {
        let engine = self.server.engine.borrow();
        let rows = |name: &str| {
            let at = engine.table(name);
            let table = &engine.tables[at];
            let changes = engine.changes.iter().filter(move |change| change.table == at);
            changes.filter_map(move |change| Some((table, change.after.as_ref()?)))
        };
        let of_place: BTreeSet<i128> = rows("queue_range")
            .filter(|(table, row)| {
                number(table, row, "group_id") == i128::from(place.0.0)
                    && number(table, row, "partition_no") == i128::from(place.1)
            })
            .map(|(table, row)| number(table, row, "id"))
            .collect();
        rows("queue_passed").any(|(table, row)| {
            number(table, row, "offset_no") == i128::from(offset)
                && of_place.contains(&number(table, row, "range_id"))
        })
    }

    /// Returns every message that has got an offset, even if it is gone from the log.
    fn log(&self) -> BTreeMap<(u32, u64), MsgId> {
        let engine = self.server.engine.borrow();
        let number_of_table = engine.table("queue_log");
        let table = &engine.tables[number_of_table];
        let [id, entries] =
            ["msg_id", "entries"].map(|name| table.definition.place(name).expect("a column"));
        let mut log = BTreeMap::new();
        for change in engine.changes.iter().filter(|change| change.table == number_of_table) {
            let Some(row) = &change.after else { continue };
            let last = number(table, row, "offset_no") as u64;
            let partition = number(table, row, "partition_no") as u32;
            let ids = match (&row[entries], &row[id]) {
                (Value::Bytes(entries), _) => store::stream::log::ids(entries),
                (_, Value::Bytes(id)) => MsgId::from_bytes(id).into_iter().collect(),
                _ => Vec::new(),
            };
            let first = last + 1 - ids.len() as u64;
            log.extend((first..).map(|offset| (partition, offset)).zip(ids));
        }
        log
    }

    /// Checks the offsets when everything is over: dense, one message each, in the order of
    /// commits, and handled by every group.
    pub(crate) fn judge_log(&self) {
        if let Some(wrong) = self.wrong_of_log() {
            self.recorder.borrow_mut().fail(wrong);
        }
        if !self.is_read() {
            let (ranges, cursors) = (ranges(self), cursors(self));
            let wrong = format!("groups are not through: {ranges:?}, {cursors:?}");
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    fn wrong_of_log(&self) -> Option<String> {
        let log = self.log();
        // Looking for them may find a violation, which is reported to the recorder.
        let places = self.places();
        let recorder = self.recorder.borrow();
        for (partition, (_, next)) in partitions(self) {
            let mut latest_sent = 0;
            for offset in 0..next {
                let Some(id) = log.get(&(partition, offset)) else {
                    return Some(format!("partition {partition} has nothing at {offset}"));
                };
                for reader in &recorder.readers {
                    let share = (*reader, *id);
                    let there = places.iter().any(|(other, _)| *other == share);
                    if !recorder.is_over(share) && !there {
                        return Some(format!("group {reader:?} has not handled {id}"));
                    }
                }
                let (sending, stored) = recorder.sending_and_stored((recorder.readers[0], *id))?;
                if self.delayed.borrow().contains(id) {
                    continue;
                }
                if stored < latest_sent {
                    return Some(format!(
                        "message {id} comes behind one that was sent after it was stored"
                    ));
                }
                latest_sent = latest_sent.max(sending);
            }
        }
        let mut ids: Vec<_> = log.values().collect();
        ids.sort();
        let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
        twice.map(|pair| format!("message {} has two offsets", pair[0]))
    }

    /// Returns the offset below which the group has finished every partition.
    fn lowest_mark(&self, group: TopicId) -> u64 {
        let of_ranges = ranges(self).into_iter().filter(|range| range.group == group);
        let marks = of_ranges.map(|range| range.mark);
        let of_cursors = cursors(self).into_iter().filter(|cursor| cursor.group == group);
        marks.chain(of_cursors.map(|cursor| cursor.next)).min().unwrap_or(0)
    }
}

/// Resets a group to an earlier offset, or has it handle a stretch again.
pub(crate) async fn rewind(stage: &Rc<Stage>) {
    let Some(group) = stage.reader().group() else { return };
    let mark = stage.lowest_mark(group.id);
    let lo = u64::from(stage.below(mark as u32 + 1));
    let hi = lo + u64::from(stage.below((mark - lo) as u32 + 1));
    let once_more = stage.below(2) == 0;
    let hi_told = if once_more { hi } else { u64::MAX };
    let note_rewound = || {
        let log = stage.log();
        let is_of = |((_, offset), _): &(&(u32, u64), &MsgId)| (lo..hi_told).contains(offset);
        for (_, id) in log.iter().filter(is_of) {
            stage.recorder.borrow_mut().rewound((group.id, *id));
        }
    };
    note_rewound();
    let kind = SessionKind::Leased(stage.settings.lease);
    let session = Session::open(&stage.url("admin"), kind, stage.settings.lease).await;
    let Ok(mut session) = session else { return };
    let put = async |conn: &mut Link| {
        let Some(topic) = store::topic::by_id(conn, group.id).await? else { return Ok(()) };
        let (from, to) = (OffsetSpec::Offset(Offset(lo)), OffsetSpec::Offset(Offset(hi)));
        match once_more {
            true => replay(conn, &topic, from, to).await.map(|_| ()),
            false => reset_group(conn, &topic, from).await,
        }
    };
    stage.recorder.borrow_mut().rewinding(group.id, !once_more);
    let done = session.transaction("put a group back", put).await;
    stage.recorder.borrow_mut().rewinding(group.id, false);
    // Including what has got its offset in the meantime.
    note_rewound();
    stage.server.note(&format!("{group:?} handles {lo}..{hi_told} again: {done:?}"));
}
