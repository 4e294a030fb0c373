//! Committed rows, and what must hold of them at every moment or when everything is over.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZeroU32;

use rowmq_core::cancellation::Was;
use rowmq_core::model::{MsgId, TopicId, WorkerId};
use rowmq_core::{Delivery, NewMessage};

use super::{CANCELLED, Share, Stage, messages};
use crate::model::{Row, Table, Value};

impl Stage {
    /// Returns how often the message was claimed so far, counting what is committed.
    pub(crate) fn deliveries_of(&self, (topic, id): Share) -> u32 {
        let engine = self.server.engine.borrow();
        let tables = ["queue_message", "queue_scheduled"].map(|name| engine.table(name));
        let (topic, id) = (Value::Number(topic.0.into()), Value::bytes(id.as_bytes()));
        let rows = engine.changes.iter().filter(|change| tables.contains(&change.table));
        let numbers = rows.filter_map(|change| {
            let definition = &engine.tables[change.table].definition;
            let row = change.after.as_ref()?;
            let value = |column: &str| &row[definition.place(column).expect("a column")];
            let is_its = *value("topic_id") == topic && *value("msg_id") == id;
            is_its.then(|| value("delivery_no").number() as u32)
        });
        numbers.max().unwrap_or(0)
    }

    /// Returns the worker that has claimed a delivery of a queue, if its claim still stands.
    pub(crate) fn claimant(&self, delivery: &Delivery) -> Option<WorkerId> {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table("queue_message")];
        let place = |column| table.definition.place(column).expect("a column");
        let [id, no, claim] = ["id", "delivery_no", "claim_no"].map(place);
        let is_its = |row: &&Row| {
            row[id].number() == i128::from(delivery.row.0)
                && row[no].number() == i128::from(delivery.delivery_no.0)
                && row[claim].number() == i128::from(delivery.claim_no.0)
        };
        let worker = messages(table).find(is_its)?[place("worker_id")].number() as u64;
        (worker != 0).then_some(WorkerId(worker))
    }

    /// Returns the deliveries of a queue that were charged with a crash of their worker. In a
    /// stream, the range is charged first and its message later, even if the message is over by
    /// then.
    pub(crate) fn charges(&self) -> Vec<(Share, u32)> {
        if self.settings.stream.is_some() {
            return Vec::new();
        }
        let engine = self.server.engine.borrow();
        let tables = ["queue_message", "queue_scheduled", "queue_dead"];
        let tables = tables.map(|name| engine.table(name));
        let (mut crashes, mut charges) = (BTreeMap::new(), Vec::new());
        for change in engine.changes.iter().filter(|change| tables.contains(&change.table)) {
            let definition = &engine.tables[change.table].definition;
            let Some(row) = &change.after else { continue };
            let value = |column: &str| &row[definition.place(column).expect("a column")];
            let Some(id) = MsgId::from_bytes(&value("msg_id").text()) else { continue };
            let share = (TopicId(value("topic_id").number() as u32), id);
            let now = value("crashes").number();
            if crashes.insert(share, now).unwrap_or(0) < now {
                charges.push((share, value("delivery_no").number() as u32));
            }
        }
        charges
    }

    /// Checks the committed rows: a key is held if and only if its message lives.
    pub(crate) fn check_keys(&self) {
        let engine = self.server.engine.borrow();
        let pairs = |name: &str| -> BTreeSet<(Value, Value)> {
            let table = &engine.tables[engine.table(name)];
            let place = |column| table.definition.place(column).expect("a column");
            let (key, id) = (place("unique_key"), place("msg_id"));
            let rows = messages(table).filter(|row| row[key] != Value::Null);
            rows.map(|row| (row[key].clone(), row[id].clone())).collect()
        };
        let mut living = pairs("queue_message");
        living.extend(pairs("queue_scheduled"));
        let held = pairs("queue_unique");
        if living != held {
            let wrong = format!("keys are held for {held:?}, and their messages are {living:?}");
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    /// Checks the committed rows: every message has a topic.
    pub(crate) fn check_topics(&self) {
        if let Some(id) = self.without_topic() {
            self.recorder.borrow_mut().fail(format!("message {id} has lost its topic"));
        }
    }

    fn without_topic(&self) -> Option<MsgId> {
        let engine = self.server.engine.borrow();
        let column = |table: &Table, column| table.definition.place(column).expect("a column");
        let topics = &engine.tables[engine.table("queue_topic")];
        let number = column(topics, "id");
        let known: HashSet<_> = messages(topics).map(|row| row[number].clone()).collect();
        ["queue_message", "queue_scheduled", "queue_dead"].into_iter().find_map(|name| {
            let table = &engine.tables[engine.table(name)];
            let [topic, id] = ["topic_id", "msg_id"].map(|name| column(table, name));
            let lost = messages(table).find(|row| !known.contains(&row[topic]))?;
            MsgId::from_bytes(&lost[id].text())
        })
    }

    /// Looks for messages of a topic without consumers whose COMMIT has just been acknowledged.
    pub(crate) fn check_acknowledged(&self, messages: &[NewMessage]) {
        let stored: HashSet<_> = self.places().into_iter().map(|((_, id), _)| id).collect();
        let lost = messages.iter().find(|message| !stored.contains(&message.msg_id));
        if let Some(NewMessage { msg_id, .. }) = lost {
            self.recorder
                .borrow_mut()
                .fail(format!("message {msg_id} was acknowledged and is lost"));
        }
        self.check_topics();
    }

    /// Checks the committed rows: no more is claimed than the topic's limits allow.
    pub(crate) fn check_limits(&self) {
        let limits = self.settings.limits;
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table("queue_message")];
        let place = |column| table.definition.place(column).expect("a column");
        let [topic, worker, key] = ["topic_id", "worker_id", "ordering_key"].map(place);
        let of_topic = Value::Number(self.topic_id.get().0.into());
        let is_claimed = |row: &&Row| row[topic] == of_topic && row[worker] != Value::Number(0);
        let claimed: Vec<_> = messages(table).filter(is_claimed).map(|row| &row[key]).collect();
        let exceeds = |n: usize, limit: Option<NonZeroU32>| {
            limit.is_some_and(|limit| n > limit.get() as usize)
        };
        let of_key = |key: &Value| claimed.iter().filter(|other| **other == key).count();
        let keys = claimed.iter().filter(|key| ***key != Value::Null);
        let of_one = keys.map(|key| of_key(key)).max().unwrap_or(0);
        if exceeds(claimed.len(), limits.max_running) || exceeds(of_one, limits.max_running_per_key)
        {
            let n = claimed.len();
            let wrong = format!("{n} are claimed, of a key {of_one}, beyond {limits:?}");
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    /// Finds a message of the topic whose trace differs from what was committed: it was stored
    /// once, and each claim of it ended once. One that is cancelled while it is ready has one end
    /// more, after its last claim; taking a claim away ends that claim. Called when everything is
    /// over.
    pub(crate) fn untold(&self) -> Option<String> {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table("queue_trace")];
        let place = |column| table.definition.place(column).expect("a column");
        let [topic, id, event, no] = ["topic_id", "msg_id", "event", "delivery_no"].map(place);
        let of_topic = Value::Number(self.topic_id.get().0.into());
        let mut told: BTreeMap<(Value, i128), [u32; 3]> = BTreeMap::new();
        for row in messages(table).filter(|row| row[topic] == of_topic) {
            let events = told.entry((row[id].clone(), row[no].number())).or_default();
            let nth = match &row[event].text()[..] {
                b"enqueued" => 0,
                b"claimed" => 1,
                _ => 2,
            };
            events[nth] += 1;
        }
        let archive = &engine.tables[engine.table("queue_archive")];
        let place = |column| archive.definition.place(column).expect("a column");
        let [id, no, reason] = ["msg_id", "delivery_no", "reason"].map(place);
        let cancelled: BTreeSet<_> = messages(archive)
            .filter(|row| row[reason] == Value::bytes(CANCELLED))
            .map(|row| (row[id].clone(), row[no].number()))
            .collect();
        let recorder = self.recorder.borrow();
        let how = |id: &Value| {
            let id = MsgId::from_bytes(&id.text())?;
            recorder.how_cancelled((self.topic_id.get(), id))
        };
        let right = |of: &(Value, i128), events: &[u32; 3]| match (of.1, cancelled.contains(of)) {
            (0, cancelled) => *events == [1, 0, u32::from(cancelled)],
            (_, false) => *events == [0, 1, 1],
            (_, true) => match how(&of.0) {
                Some(Was::Ready) => *events == [0, 1, 2],
                Some(_) => *events == [0, 1, 1],
                // No answer said what it was doing.
                None => matches!(events, [0, 1, 1 | 2]),
            },
        };
        let (wrong, events) = told.iter().find(|(of, events)| !right(of, events))?;
        Some(format!("the trace of delivery {} of {:?} has {events:?}", wrong.1, wrong.0))
    }

    /// Returns the messages that have a checkpoint.
    pub(crate) fn checkpoints(&self) -> Vec<Share> {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table("queue_checkpoint")];
        let place = |column| table.definition.place(column).expect("a column");
        let [topic, id] = ["topic_id", "msg_id"].map(place);
        let of = |row: &Row| {
            Some((TopicId(row[topic].number() as u32), MsgId::from_bytes(&row[id].text())?))
        };
        messages(table).filter_map(of).collect()
    }

    /// Finds a message of the hot table whose row is missing in the lookup. A transaction's changes
    /// are seen as one, so this holds at every moment.
    pub(crate) fn astray(&self) -> Option<MsgId> {
        let engine = self.server.engine.borrow();
        let (hot, lookup) = (
            &engine.tables[engine.table("queue_message")],
            &engine.tables[engine.table("queue_lookup")],
        );
        let places = |table: &Table, columns: [&str; 3]| {
            columns.map(|column| table.definition.place(column).expect("a column"))
        };
        let of_hot = places(hot, ["topic_id", "msg_id", "id"]);
        let of_lookup = places(lookup, ["topic_id", "msg_id", "row_id"]);
        let known: HashSet<_> =
            messages(lookup).map(|row| of_lookup.map(|place| row[place].clone())).collect();
        let mut rows = messages(hot).map(|row| of_hot.map(|place| row[place].clone()));
        let [_, id, _] = rows.find(|row| !known.contains(row))?;
        MsgId::from_bytes(&id.text())
    }
}
