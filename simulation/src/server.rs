//! The server as clients see it: connections, latencies, lost replies, crashes.

mod client;
mod hole;
mod rings;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rowmq_core::connection::simulation::{Answer, StandIn};
use rowmq_core::{Error, Fault};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use self::client::Client;
use self::hole::Hole;
pub(crate) use self::rings::RingFates;
pub use self::rings::WakeUps;
pub(crate) use self::session::Fate;
use crate::model::{Engine, Facts, Failure, Outcome};
use crate::rules::Rule;
use crate::sql::{Statement, parse};

/// 2026-01-01, in microseconds since 1970.
const EPOCH: i64 = 1_767_225_600_000_000;

/// How often statements meet each fate, in a thousand.
pub(crate) type Fates = Vec<(Fate, u32)>;

/// A request to connect.
pub(crate) struct Connect {
    pub(crate) host: String,
    pub(crate) reply: oneshot::Sender<rowmq_core::Result<Box<dyn StandIn>>>,
}

/// What the engine's side of a connection is notified of.
#[derive(Default)]
pub(crate) struct Handle {
    host: String,
    signal: Notify,
    killed: Cell<bool>,
    /// The server that it belonged to has crashed.
    dead: Cell<bool>,
}

/// The server and its network.
pub(crate) struct Server {
    pub(crate) engine: RefCell<Engine>,
    rng: RefCell<SmallRng>,
    handles: RefCell<BTreeMap<u64, Rc<Handle>>>,
    /// Hosts that have lost power.
    lost: RefCell<BTreeSet<String>>,
    /// For each host, whether its packets are swallowed.
    holes: RefCell<BTreeMap<String, Rc<Hole>>>,
    up: Cell<bool>,
    pub(crate) limit: Cell<usize>,
    pub(crate) fates: RefCell<Fates>,
    pub(crate) ring_fates: Cell<RingFates>,
    pub(crate) wake_ups: Cell<WakeUps>,
    origin: Instant,
    started: Cell<Instant>,
    /// How far the clock is wrong, in microseconds.
    pub(crate) skew: Cell<i64>,
    trace: RefCell<DefaultHasher>,
    pub(crate) statements: Cell<u64>,
    rule: Option<Rule>,
    parsed: RefCell<HashMap<String, Rc<Statement>>>,
    pub(crate) log: RefCell<Option<Vec<String>>>,
    /// The model met something that it does not know.
    pub(crate) broken: Cell<bool>,
}

/// Notices a panic of the model, which would otherwise only end a task.
struct Witness<'a>(&'a Server);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        self.0.broken.set(self.0.broken.get() || std::thread::panicking());
    }
}

impl Server {
    pub(crate) fn new(seed: u64, rule: Option<Rule>) -> Rc<Self> {
        let facts = Facts { now: EPOCH, uptime: 0, uid: "model".to_owned(), read_only: false };
        let now = Instant::now();
        Rc::new(Self {
            engine: RefCell::new(Engine::new(facts)),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            handles: RefCell::default(),
            lost: RefCell::default(),
            holes: RefCell::default(),
            up: Cell::new(true),
            limit: Cell::new(150),
            fates: RefCell::default(),
            ring_fates: Cell::default(),
            wake_ups: Cell::default(),
            origin: now,
            started: Cell::new(now),
            skew: Cell::new(0),
            trace: RefCell::new(DefaultHasher::new()),
            statements: Cell::new(0),
            rule,
            parsed: RefCell::default(),
            log: RefCell::default(),
            broken: Cell::new(false),
        })
    }

    /// Accepts connections until no client can connect any more.
    pub(crate) async fn listen(self: Rc<Self>, mut connects: mpsc::UnboundedReceiver<Connect>) {
        while let Some(Connect { host, reply }) = connects.recv().await {
            let server = Rc::clone(&self);
            tokio::task::spawn_local(async move {
                server.hole(&host).passed().await;
                server.latency(2).await;
                drop(reply.send(server.accept(host)));
            });
        }
    }

    fn accept(self: &Rc<Self>, host: String) -> rowmq_core::Result<Box<dyn StandIn>> {
        let refused = |fault, reason: &str| Error::Connect {
            server: "model:3306".to_owned(),
            fault,
            reason: reason.to_owned(),
        };
        if !self.up.get() {
            return Err(refused(Fault::Gone, "Connection refused (os error 111)"));
        }
        if self.engine.borrow().connections() >= self.limit.get() {
            return Err(refused(Fault::Busy, "Too many connections (1040)"));
        }
        let id = self.engine.borrow_mut().open();
        self.note(&format!("conn {id} of {host} opens"));
        let handle = Rc::new(Handle { host: host.clone(), ..Handle::default() });
        self.handles.borrow_mut().insert(id, Rc::clone(&handle));
        let (sender, requests) = mpsc::unbounded_channel();
        let hole = self.hole(&host);
        let server = Rc::clone(self);
        tokio::task::spawn_local(
            session::Session {
                server,
                id,
                handle,
                hole,
                requests,
                hushed: None,
                killed: false,
                echo: None,
            }
            .serve(),
        );
        Ok(Box::new(Client::new(sender)))
    }

    /// Returns whether the packets of `host` are swallowed.
    pub(crate) fn hole(&self, host: &str) -> Rc<Hole> {
        let mut holes = self.holes.borrow_mut();
        Rc::clone(holes.entry(host.to_owned()).or_default())
    }

    /// Lets every host's packets pass, except those of hosts that are lost.
    pub(crate) fn heal(&self) {
        let lost = self.lost.borrow();
        for (_, hole) in self.holes.borrow().iter().filter(|(host, _)| !lost.contains(*host)) {
            hole.set(false);
        }
    }

    /// Removes a host; the server is not notified.
    pub(crate) fn lose(&self, host: &str) {
        self.lost.borrow_mut().insert(host.to_owned());
        self.hole(host).set(true);
    }

    /// Returns the next random number below `n`.
    pub(crate) fn below(&self, n: u32) -> u32 {
        self.rng.borrow_mut().random_range(0..n.max(1))
    }

    pub(crate) fn random(&self) -> u64 {
        self.rng.borrow_mut().random()
    }

    /// Waits for up to `most` milliseconds; short waits are more frequent.
    async fn latency(&self, most: u32) {
        let ms = self.below(most + 1).min(self.below(most + 2));
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms.into())).await;
        }
    }

    /// Parses a text, as it stands or as a switched-off rule changes it.
    fn parse(&self, text: &str) -> Rc<Statement> {
        if let Some(known) = self.parsed.borrow().get(text) {
            return Rc::clone(known);
        }
        let _witness = Witness(self);
        let changed = self.rule.and_then(|rule| rule.rewrite(text));
        let statement = Rc::new(parse(changed.as_deref().unwrap_or(text)));
        self.parsed.borrow_mut().insert(text.to_owned(), Rc::clone(&statement));
        statement
    }

    /// Sets the engine's clock, runs `act`, and notifies the sessions that it concerns.
    pub(crate) fn act<T>(&self, act: impl FnOnce(&mut Engine) -> T) -> T {
        let _witness = Witness(self);
        let mut engine = self.engine.borrow_mut();
        let running = Instant::now() - self.origin;
        engine.facts.now = EPOCH + running.as_micros() as i64 + self.skew.get();
        engine.facts.uptime = (Instant::now() - self.started.get()).as_secs() as i64;
        let result = act(&mut engine);
        let handles = self.handles.borrow();
        for id in std::mem::take(&mut engine.ready) {
            if let Some(handle) = handles.get(&id) {
                handle.signal.notify_one();
            }
        }
        for id in std::mem::take(&mut engine.killed) {
            if let Some(handle) = handles.get(&id) {
                handle.killed.set(true);
                handle.signal.notify_one();
            }
        }
        result
    }

    /// Returns the connections of a host.
    pub(crate) fn ids_of(&self, host: &str) -> Vec<u64> {
        let handles = self.handles.borrow();
        handles.iter().filter(|(_, handle)| handle.host == host).map(|(id, _)| *id).collect()
    }

    /// Ends a connection from the server's side, as KILL does.
    pub(crate) fn kill(&self, id: u64) {
        self.act(|engine| engine.killed.push(id));
    }

    /// Kills the server's process; it stays away until [`restart`](Self::restart).
    pub(crate) fn crash(&self) {
        self.note("the server crashes");
        self.up.set(false);
        self.engine.borrow_mut().crash();
        for handle in std::mem::take(&mut *self.handles.borrow_mut()).into_values() {
            handle.dead.set(true);
            handle.signal.notify_one();
        }
    }

    pub(crate) fn restart(&self) {
        self.note("the server starts");
        self.up.set(true);
        self.started.set(Instant::now());
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Notes what happens: for the trace's hash, and for people.
    pub(crate) fn note(&self, what: &str) {
        self.note_with(|| what.to_owned());
    }

    /// Like [`note`](Self::note), but the text is only made if the log is kept.
    pub(crate) fn note_with(&self, what: impl FnOnce() -> String) {
        let at = (Instant::now() - self.origin).as_millis() as u64;
        if let Some(log) = self.log.borrow_mut().as_mut() {
            let what = what();
            (at, &what).hash(&mut *self.trace.borrow_mut());
            log.push(format!("{:>8.3} {what}", at as f64 / 1000.0));
        }
    }

    /// Returns whether a repeated statement is answered as before, because that rule is off.
    fn believes_at_once(&self) -> bool {
        self.rule == Some(Rule::GoneIsAskedTwice)
    }

    /// Returns the reply to a killed statement. Without its rule, a killed ROLLBACK reports
    /// success.
    fn killed(&self, statement: &Statement) -> Outcome {
        match statement {
            Statement::Rollback if self.rule == Some(Rule::RollbacksAreRepeated) => {
                Ok(Answer::default())
            }
            _ => Err(Failure::Interrupted),
        }
    }

    /// Returns whether the count of a statement is hidden, because its rule is off.
    fn hides_count(&self, text: &str) -> bool {
        self.rule.is_some_and(|rule| rule.hides_counts(text))
    }

    /// Returns a hash of everything that has happened.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.borrow().finish()
    }
}
