//! The setting of a history: the server, its users, and their shared state.

mod committed;
mod throughput;
mod vigil;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::connection::ServerUrl;
use rowmq_core::connection::simulation::{StandIn, World};
use rowmq_core::model::{MsgId, TopicId};
use rowmq_core::{Delivery, Error, NewMessage, Priority, Topic, TopicName, Unique};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use self::throughput::Sums;
pub(crate) use self::vigil::Vigil;
use crate::model::{Row, Table, Value};
use crate::recorder::{EndState, Recorder, Share};
use crate::server::{Connect, Server};
use crate::settings::{Settings, Weather};

/// The archive's reason for a message that was cancelled.
const CANCELLED: &[u8] = b"it was cancelled";

/// Longer than the deliveries of one claim ever take.
const LONG: Duration = Duration::from_secs(30);

/// How far the ordered groups have come, by group, partition, and number of resets.
pub(crate) type Frontiers = BTreeMap<(TopicId, u32, i128), u64>;

/// The environment of a played history.
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
    /// What the workers had reported at the last check.
    sums: RefCell<Sums>,
    pub(crate) vigil: RefCell<Vigil>,
    /// Unlike that of any other history: consumers of a topic are woken by their database's name,
    /// and threads play histories beside each other.
    database: String,
}

/// Counts histories.
static STAGES: AtomicU64 = AtomicU64::new(0);

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
            sums: RefCell::default(),
            vigil: RefCell::default(),
            database: format!("queue{}", STAGES.fetch_add(1, Ordering::Relaxed)),
        })
    }

    /// Returns the server's URL as the process `host` uses it.
    pub(crate) fn url(&self, host: &str) -> ServerUrl {
        let database = &self.database;
        ServerUrl::new(&format!("mysql://queue:queue@{host}:3306/{database}")).expect("a URL")
    }

    pub(crate) fn below(&self, n: u32) -> u32 {
        self.server.below(n)
    }

    /// Sleeps for up to `most` milliseconds.
    pub(crate) async fn doze(&self, most: u32) {
        tokio::time::sleep(Duration::from_millis(self.below(most).into())).await;
    }

    /// Returns a server time up to 400 ms before or after now.
    pub(crate) fn time_near_now(&self) -> DateTime<Utc> {
        let now = self.server.engine.borrow().facts.now;
        let micros = now - 400_000 + i64::from(self.below(800_000));
        DateTime::from_timestamp_micros(micros).expect("a time of this century")
    }

    /// Returns a message that was not sent before.
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
        // Seldom: a batch without such messages is one statement, and faults must hit that path
        // too.
        match self.below(12) {
            0 if !self.settings.dedupe => {
                message.with_unique(Unique::until_done(format!("k{}", self.below(3))))
            }
            _ => message,
        }
    }

    /// Draws how many milliseconds a handler runs at most: usually few.
    pub(crate) fn run_time(&self) -> u32 {
        let is_long = self.below(6) == 0;
        match self.settings.max_run_time {
            None if is_long => 2500,
            Some(time) if is_long && time > LONG => 2500,
            // Long enough to lose the claim, while that is allowed.
            Some(_) if is_long && !self.strict.get() => 6000,
            _ => 40,
        }
    }

    /// Kills the process `name` if one of these is poison.
    pub(crate) async fn die_of_poison(&self, name: &str, batch: &[Delivery]) {
        if !self.cured.get() && batch.iter().any(|delivery| delivery.body == b"poison") {
            self.server.note(&format!("{name} is poisoned"));
            drop(self.crashes.send(name.to_owned()));
            std::future::pending().await
        }
    }

    /// Draws one of the latest messages.
    pub(crate) fn recent_message(&self) -> Option<MsgId> {
        let made = self.messages.get();
        let n = made.checked_sub(self.below(made.min(15)))?;
        (n > 0).then(|| MsgId(Uuid::from_u128(n.into())))
    }

    /// Opens a connection without a queue, for foreign transactions.
    pub(crate) async fn connect(&self, host: &str) -> rowmq_core::Result<Box<dyn StandIn>> {
        connect(&self.connects, host).await
    }

    /// Draws one of the readers.
    pub(crate) fn reader(&self) -> Rc<Topic> {
        let readers = self.readers.borrow();
        match readers.as_slice() {
            [one] => Rc::clone(one),
            several => Rc::clone(&several[self.below(several.len() as u32) as usize]),
        }
    }

    /// Returns the shares of a row's message: one for each group, while it has no offset.
    fn shares(&self, topic: &Value, id: MsgId) -> Vec<Share> {
        let readers = self.readers.borrow();
        let of = |reader: &Rc<Topic>| (reader.id, id);
        let own = |reader: &&Rc<Topic>| *topic == Value::Number(reader.id.0.into());
        match readers.iter().find(own) {
            Some(reader) => vec![of(reader)],
            None => readers.iter().map(of).collect(),
        }
    }

    /// Returns where each message is now, and whether it still has to be handled.
    pub(crate) fn places(&self) -> Vec<(Share, EndState)> {
        let engine = self.server.engine.borrow();
        let mut places = Vec::new();
        for (name, place) in [
            ("queue_message", EndState::Waiting),
            ("queue_scheduled", EndState::Waiting),
            ("queue_dead", EndState::Dead { crashes: false }),
            ("queue_archive", EndState::Archive { cancelled: false }),
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
                    // Senders set no headers: these were written on the way.
                    let told =
                        |word: &str| String::from_utf8_lossy(&row[headers].text()).contains(word);
                    EndState::Dead { crashes: told("crashes") }
                } else if let EndState::Dead { .. } = place {
                    let crashes = cause.is_some_and(|cause| row[cause] == Value::bytes(b"crashes"));
                    EndState::Dead { crashes }
                } else if let EndState::Archive { .. } = place {
                    let told = Value::bytes(CANCELLED);
                    EndState::Archive {
                        cancelled: reason.is_some_and(|reason| row[reason] == told),
                    }
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

    /// Returns whether it is a dead letter that was enqueued.
    fn is_dead(&self, table: &Table, row: &Row) -> bool {
        let topic = table.definition.place("topic_id");
        let dead = Value::Number(self.dead_topic_id.get().0.into());
        topic.is_some_and(|topic| row[topic] == dead)
    }

    /// Checks that a message's history holds what it was charged with. An enqueued dead letter
    /// starts without charges but keeps its history.
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

    /// Returns every committed change of a message's rows.
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

    /// Returns the number of committed rows of a table, without dead letters.
    pub(crate) fn rows(&self, name: &str) -> usize {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table(name)];
        messages(table).filter(|row| !self.is_dead(table, row)).count()
    }
}

/// Returns the committed rows of a table, without the lanes.
fn messages(table: &Table) -> impl Iterator<Item = &Row> {
    let topic = table.definition.place("topic_id");
    let is_lane = move |row: &Row| topic.is_some_and(|topic| row[topic] == Value::Number(0));
    table.slots.values().filter_map(|slot| slot.committed.as_ref()).filter(move |row| !is_lane(row))
}

/// Connects queue-core to the stage.
pub(crate) struct Way {
    pub(crate) server: Rc<Server>,
    pub(crate) connects: mpsc::UnboundedSender<Connect>,
}

impl World for Way {
    fn connect(&self, url: &ServerUrl) -> BoxFuture<'static, rowmq_core::Result<Box<dyn StandIn>>> {
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
) -> rowmq_core::Result<Box<dyn StandIn>> {
    let (reply, connected) = oneshot::channel();
    let gone = || Error::WorkerStopped;
    connects.send(Connect { host: host.to_owned(), reply }).map_err(|_| gone())?;
    connected.await.map_err(|_| gone())?
}
