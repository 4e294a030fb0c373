//! Where a history is played: the server, those who use it, and what they agree on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use queue_core::connection::ServerUrl;
use queue_core::message::MsgId;
use queue_core::simulation::{StandIn, World};
use queue_core::topic::TopicId;
use queue_core::{Error, NewMessage, Priority, Topic, TopicName, Unique};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::model::{Row, Table, Value};
use crate::recorder::{Place, Recorder};
use crate::server::{Connect, Server};
use crate::settings::{Settings, Weather};
use crate::stream::Frontiers;

/// The reason that the archive has for a message that was cancelled.
const CANCELLED: &[u8] = b"it was cancelled";

/// A message as one of those has it who consume it. The first is the topic, or the group.
pub(crate) type Share = (TopicId, MsgId);

/// A played history's surroundings.
pub(crate) struct Stage {
    pub(crate) server: Rc<Server>,
    pub(crate) recorder: RefCell<Recorder>,
    pub(crate) settings: Settings,
    pub(crate) topic: TopicName,
    pub(crate) topic_id: Cell<TopicId>,
    /// Where dead letters are, if they are enqueued.
    pub(crate) dead_topic: TopicName,
    pub(crate) dead_topic_id: Cell<TopicId>,
    connects: mpsc::UnboundedSender<Connect>,
    /// Names of processes that kill themselves.
    pub(crate) crashes: mpsc::UnboundedSender<String>,
    /// The faults are over: what is sent now is handled once.
    pub(crate) strict: Cell<bool>,
    /// Poison does no harm any more.
    pub(crate) cured: Cell<bool>,
    messages: Cell<u32>,
    /// Where messages are consumed from: the queue, or the groups of the stream.
    pub(crate) readers: RefCell<Vec<Rc<Topic>>>,
    pub(crate) frontiers: RefCell<Frontiers>,
    /// Messages that join the stream later than they were sent.
    pub(crate) delayed: RefCell<HashSet<MsgId>>,
}

impl Stage {
    pub(crate) fn new(
        server: Rc<Server>,
        settings: Settings,
        connects: mpsc::UnboundedSender<Connect>,
        crashes: mpsc::UnboundedSender<String>,
    ) -> Rc<Self> {
        Rc::new(Self {
            server,
            recorder: RefCell::new(Recorder::new(&settings)),
            strict: Cell::new(settings.weather != Weather::Wild && settings.poison == 0),
            settings,
            topic: TopicName::new("work").expect("a name"),
            topic_id: Cell::new(TopicId(0)),
            dead_topic: TopicName::new("dead").expect("a name"),
            dead_topic_id: Cell::new(TopicId(0)),
            connects,
            crashes,
            cured: Cell::new(false),
            messages: Cell::new(0),
            readers: RefCell::default(),
            frontiers: RefCell::default(),
            delayed: RefCell::default(),
        })
    }

    /// The server as the process `host` names it.
    pub(crate) fn url(&self, host: &str) -> ServerUrl {
        ServerUrl::new(&format!("mysql://queue:queue@{host}:3306/queue")).expect("a URL")
    }

    pub(crate) fn below(&self, n: u32) -> u32 {
        self.server.below(n)
    }

    /// Sleeps for up to `most` milliseconds.
    pub(crate) async fn doze(&self, most: u32) {
        tokio::time::sleep(Duration::from_millis(self.below(most).into())).await;
    }

    /// A time of the server's, up to 400 ms before or after now.
    pub(crate) fn time_near_now(&self) -> DateTime<Utc> {
        let now = self.server.engine.borrow().facts.now;
        let micros = now - 400_000 + i64::from(self.below(800_000));
        DateTime::from_timestamp_micros(micros).expect("a time of this century")
    }

    /// A message that nobody has sent before.
    pub(crate) fn message(&self) -> NewMessage {
        let n = self.messages.get() + 1;
        self.messages.set(n);
        let streams = self.settings.stream.is_some();
        let priority = match self.below(4) {
            0 if !streams => Priority::FIRST,
            _ => Priority::default(),
        };
        let poison = self.settings.poison > 0 && n.is_multiple_of(self.settings.poison);
        let body = if poison && !self.cured.get() { "poison" } else { "" };
        let message = NewMessage::new(body)
            .with_msg_id(MsgId(Uuid::from_u128(n.into())))
            .with_priority(priority);
        let message = match self.below(8) {
            0 => message.with_delay(Duration::from_millis(self.below(3000).into())),
            _ => message,
        };
        if streams {
            if message.deliver.is_some() {
                self.delayed.borrow_mut().insert(message.msg_id);
            }
            let key = self.below(6);
            return if key == 0 { message } else { message.with_key(format!("k{key}")) };
        }
        let message = match self.settings.limits.max_running_per_key {
            Some(_) => message.with_key(format!("k{}", self.below(3))),
            None => message,
        };
        // Seldom: a batch without any is one statement, and that way is to be broken too.
        match self.below(12) {
            0 if !self.settings.dedupe => {
                message.with_unique(Unique::until_done(format!("k{}", self.below(3))))
            }
            _ => message,
        }
    }

    /// One of the messages that were made last, by lot.
    pub(crate) fn recent_message(&self) -> Option<MsgId> {
        let made = self.messages.get();
        let n = made.checked_sub(self.below(made.min(15)))?;
        (n > 0).then(|| MsgId(Uuid::from_u128(n.into())))
    }

    /// How often the message was claimed so far, as far as it is committed.
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

    /// Looks at what is committed: a key is held if and only if its message lives.
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

    /// Looks at what is committed: no more is claimed than the topic's limits allow.
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

    /// A message of the topic whose trace is not what was committed of it: it was stored once, and
    /// each claim of it came to one end. One that is cancelled while it is ready has one end more,
    /// after its last claim. Asked when everything is over.
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
        let right = |of: &(Value, i128), events: &[u32; 3]| match of.1 {
            0 => *events == [1, 0, u32::from(cancelled.contains(of))],
            _ if *events == [0, 1, 2] => cancelled.contains(of),
            _ => *events == [0, 1, 1],
        };
        let (wrong, events) = told.iter().find(|(of, events)| !right(of, events))?;
        Some(format!("the trace of delivery {} of {:?} has {events:?}", wrong.1, wrong.0))
    }

    /// The messages that have a checkpoint.
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

    /// A connection without a queue: for strangers.
    pub(crate) async fn connect(&self, host: &str) -> queue_core::Result<Box<dyn StandIn>> {
        connect(&self.connects, host).await
    }

    /// Somebody who consumes messages, by lot.
    pub(crate) fn reader(&self) -> Rc<Topic> {
        let readers = self.readers.borrow();
        match readers.as_slice() {
            [one] => Rc::clone(one),
            several => Rc::clone(&several[self.below(several.len() as u32) as usize]),
        }
    }

    /// Whose the message of a row is: each group's, while it has no offset.
    fn shares(&self, topic: &Value, id: MsgId) -> Vec<Share> {
        let readers = self.readers.borrow();
        let of = |reader: &Rc<Topic>| (reader.id, id);
        let own = |reader: &&Rc<Topic>| *topic == Value::Number(reader.id.0.into());
        match readers.iter().find(own) {
            Some(reader) => vec![of(reader)],
            None => readers.iter().map(of).collect(),
        }
    }

    /// Where each message is now, and whether it still has to be handled.
    pub(crate) fn places(&self) -> Vec<(Share, Place)> {
        let engine = self.server.engine.borrow();
        let mut places = Vec::new();
        for (name, place) in [
            ("queue_message", Place::Waiting),
            ("queue_scheduled", Place::Waiting),
            ("queue_dead", Place::Dead { crashes: false }),
            ("queue_archive", Place::Archive { cancelled: false }),
        ] {
            let table = &engine.tables[engine.table(name)];
            let id = table.definition.place("msg_id").expect("a column");
            let cause = table.definition.place("cause");
            let reason = table.definition.place("reason");
            let headers = table.definition.place("headers").expect("a column");
            for row in messages(table) {
                let Value::Bytes(bytes) = &row[id] else { continue };
                let Some(id) = MsgId::from_bytes(bytes) else { continue };
                let place = if self.is_dead(table, row) {
                    // Senders give no headers: these were written on its way.
                    let told =
                        |word: &str| String::from_utf8_lossy(&row[headers].text()).contains(word);
                    Place::Dead { crashes: told("crashes") }
                } else if let Place::Dead { .. } = place {
                    let crashes = cause.is_some_and(|cause| row[cause] == Value::bytes(b"crashes"));
                    Place::Dead { crashes }
                } else if let Place::Archive { .. } = place {
                    let told = Value::bytes(CANCELLED);
                    Place::Archive { cancelled: reason.is_some_and(|reason| row[reason] == told) }
                } else {
                    place
                };
                self.check_history(id, table, row);
                let topic = table.definition.place("topic_id").expect("a column");
                places.extend(self.shares(&row[topic], id).into_iter().map(|it| (it, place)));
            }
        }
        places
    }

    /// Whether it is a dead letter that was enqueued.
    fn is_dead(&self, table: &Table, row: &Row) -> bool {
        let topic = table.definition.place("topic_id");
        let dead = Value::Number(self.dead_topic_id.get().0.into());
        topic.is_some_and(|topic| row[topic] == dead)
    }

    /// What a message was charged with is what its history tells of; where it begins anew, the
    /// history does not.
    fn check_history(&self, id: MsgId, table: &Table, row: &Row) {
        let value = |column: &str| &row[table.definition.place(column).expect("a column")];
        let charged = value("failures").number() + value("crashes").number();
        let told = match value("history") {
            Value::Bytes(lines) => lines.iter().filter(|byte| **byte == b'\n').count(),
            _ => 0,
        };
        let right = match self.is_dead(table, row) {
            true => charged == 0 && told > 0,
            false => charged == told as i128,
        };
        if !right {
            let wrong =
                format!("message {id} is charged {charged} times and its history has {told}");
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    /// Every committed change of a message's rows.
    pub(crate) fn changes(&self, id: MsgId) -> Vec<String> {
        let engine = self.server.engine.borrow();
        let bytes = Value::bytes(id.as_bytes());
        let changes = engine.changes.iter().filter_map(|change| {
            let definition = &engine.tables[change.table].definition;
            let place = definition.place("msg_id")?;
            let is_its = |row: &Option<Row>| row.as_ref().is_some_and(|row| row[place] == bytes);
            let show = |row: &Option<Row>| match row {
                Some(row) => ["priority", "id", "worker_id", "claim_no", "delivery_no", "crashes"]
                    .iter()
                    .filter_map(|name| {
                        Some(format!("{name} {}", row[definition.place(name)?].number()))
                    })
                    .collect::<Vec<_>>()
                    .join(" "),
                None => "nothing".to_owned(),
            };
            (is_its(&change.before) || is_its(&change.after)).then(|| {
                let at = change.at % 3_600_000_000;
                format!(
                    "{:>8.3} conn {}: {}: {} -> {}",
                    at as f64 / 1e6,
                    change.session,
                    definition.name,
                    show(&change.before),
                    show(&change.after)
                )
            })
        });
        changes.collect()
    }

    /// Committed rows of a table, without dead letters.
    /// A message in the hot table whose row the lookup does not have. What a transaction does is
    /// seen as one, so this holds at every moment.
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

    pub(crate) fn rows(&self, name: &str) -> usize {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table(name)];
        messages(table).filter(|row| !self.is_dead(table, row)).count()
    }
}

/// The committed rows of a table, without the lanes.
fn messages(table: &Table) -> impl Iterator<Item = &Row> {
    let topic = table.definition.place("topic_id");
    let is_lane = move |row: &Row| topic.is_some_and(|topic| row[topic] == Value::Number(0));
    table.slots.values().filter_map(|slot| slot.committed.as_ref()).filter(move |row| !is_lane(row))
}

/// The way from queue-core to the stage.
pub(crate) struct Way {
    pub(crate) server: Rc<Server>,
    pub(crate) connects: mpsc::UnboundedSender<Connect>,
}

impl World for Way {
    fn connect(&self, url: &ServerUrl) -> BoxFuture<'static, queue_core::Result<Box<dyn StandIn>>> {
        let connects = self.connects.clone();
        let server = url.server();
        async move { connect(&connects, server.split(':').next().unwrap_or_default()).await }
            .boxed()
    }

    fn random(&self) -> u64 {
        self.server.random()
    }
}

pub(crate) async fn connect(
    connects: &mpsc::UnboundedSender<Connect>,
    host: &str,
) -> queue_core::Result<Box<dyn StandIn>> {
    let (reply, connected) = oneshot::channel();
    let gone = || Error::WorkerStopped;
    connects.send(Connect { host: host.to_owned(), reply }).map_err(|_| gone())?;
    connected.await.map_err(|_| gone())?
}
