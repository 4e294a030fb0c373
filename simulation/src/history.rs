//! A history from its seed to its verdict.

mod drawn;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::{ServerUrl, Session, SessionKind};
use rowmq_core::model::{Sampling, TopicSettings};
use rowmq_core::worker::{Phase, Worker, WorkerOptions};
use rowmq_core::{Topic, store};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout_at};

use self::drawn::settings;
use crate::chaos::{kill, storm};
use crate::effects::written;
use crate::recorder::{Cancelled, EndState};
use crate::rules::{Rule, Subject};
use crate::server::{Server, WakeUps};
use crate::settings::{SEARCHABLE, Weather};
use crate::stage::{Stage, Way};
use crate::stream::create;
use crate::troupe::{Part, Troupe};

/// Everything must be handled this long after the last fault, or after the last message that a
/// group finished: an ordered group handles one message at a time, and one consumer can take
/// minutes for what the senders have left. A producer that found a foreign lock waits two leases at
/// most, and a row below a mark is found after 30 s at the latest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a history.
#[derive(Debug)]
pub struct Played {
    /// A hash of the log: the same for every run of a seed.
    pub trace: u64,
    /// The first violation, with the story of its message.
    pub violation: Option<String>,
    /// Statements that the server received.
    pub statements: u64,
    /// Runs of handlers.
    pub deliveries: usize,
    /// Settles that were refused because the claim had been taken back.
    pub fenced: usize,
    /// Runs that a fault repeated.
    pub repeated: usize,
    /// Deliveries that were acked together with an effect.
    pub effects: usize,
    /// Messages that were cancelled.
    pub cancelled: Cancelled,
    /// Runs that continued from a checkpoint of an earlier run.
    pub resumed: usize,
    /// What became of the wake-ups by the doorbell.
    pub wake_ups: WakeUps,
    /// Everything that happened, if asked for.
    pub log: Vec<String>,
}

/// The choices that are not left to the seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cast {
    /// What may go wrong.
    pub weather: Option<Weather>,
    /// What the history is about.
    pub subject: Option<Subject>,
    /// The rule that is switched off.
    pub without: Option<Rule>,
    /// Whether the server often executes statements after their connection broke.
    pub late: bool,
    /// Whether the consumers of every queue are receivers that wait for their bells.
    pub bells: bool,
    /// Whether a process cancels many messages.
    pub cancels: bool,
}

/// Plays the history of `seed`, and keeps its log if `logged`.
#[must_use]
pub fn play(seed: u64, cast: Cast, logged: bool) -> Played {
    on_paused_time(async {
        let server = Server::new(seed, cast.without);
        if logged {
            server.log.replace(Some(Vec::new()));
        }
        let (connects, connecting) = mpsc::unbounded_channel();
        let (crashes, mut crashing) = mpsc::unbounded_channel();
        tokio::task::spawn_local(Rc::clone(&server).listen(connecting));
        let way = Way { server: Rc::clone(&server), connects: connects.clone() };
        let entered = rowmq_core::connection::simulation::enter(Rc::new(way));
        let settings = settings(seed, cast);
        let stage = Stage::new(Rc::clone(&server), settings, connects, crashes);
        server.note(&format!("{:?}", stage.settings));
        server.ring_fates.set(stage.settings.bells.map(|bells| bells.fates).unwrap_or_default());
        prepare(&stage).await;
        let mut troupe = Troupe::new(Rc::clone(&stage));
        let watching = tokio::task::spawn_local(watch_keys(Rc::clone(&stage)));
        storm(&stage, &mut troupe, &mut crashing).await;
        recover(&stage, &mut troupe, &mut crashing).await;
        watching.abort();
        judge(&stage);
        drop(entered);
        let recorder = stage.recorder.borrow();
        assert!(!server.broken.get(), "the model met what it does not know in seed {seed}");
        let verdict = recorder.verdict().map(|((topic, id), what, events)| {
            let (events, changes) = (events.join("\n  "), stage.changes(id).join("\n  "));
            format!("message {id} of topic {}: {what}\n  {events}\nits rows:\n  {changes}", topic.0)
        });
        Played {
            trace: server.trace_hash(),
            violation: verdict,
            statements: server.statements.get(),
            deliveries: recorder.deliveries,
            fenced: recorder.fenced,
            repeated: recorder.repeated,
            effects: recorder.effects,
            cancelled: recorder.cancelled,
            resumed: recorder.resumed,
            wake_ups: server.wake_ups.get(),
            log: server.log.take().unwrap_or_default(),
        }
    })
}

/// Returns the phases that a worker goes through when its packets are swallowed for `hole`, up to
/// two seconds later.
#[must_use]
pub fn phases_around(hole: Duration, lease: Duration) -> Vec<Phase> {
    on_paused_time(async {
        let server = Server::new(1, None);
        let (connects, connecting) = mpsc::unbounded_channel();
        tokio::task::spawn_local(Rc::clone(&server).listen(connecting));
        let way = Way { server: Rc::clone(&server), connects };
        let _entered = rowmq_core::connection::simulation::enter(Rc::new(way));
        let url = ServerUrl::new("mysql://queue:queue@worker:3306/queue").expect("a URL");
        let mut options = WorkerOptions::new(url, "worker");
        (options.lease, options.beat) = (lease, lease / 4);
        let worker = Worker::start(options).await.expect("no fault yet");
        sleep(lease).await;
        server.hole("worker").set(true);
        let mut phases = vec![worker.life().borrow().phase.clone()];
        let end = Instant::now() + hole + Duration::from_secs(2);
        let heal = Instant::now() + hole;
        while Instant::now() < end {
            if Instant::now() >= heal {
                server.heal();
            }
            let phase = worker.life().borrow().phase.clone();
            if phases.last() != Some(&phase) {
                phases.push(phase);
            }
            sleep(Duration::from_millis(5)).await;
        }
        phases
    })
}

/// Runs a future on one thread with a paused clock, so that no wait takes real time.
fn on_paused_time<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

/// Creates the topic, and the one for its dead letters.
async fn prepare(stage: &Rc<Stage>) {
    let deadline = Duration::from_secs(5);
    let session = Session::open(&stage.url("admin"), SessionKind::Plain, deadline).await;
    let made = session
        .expect("a session")
        .call("make the topic", async |conn| {
            store::installation::keep_secret(conn, [7; 16]).await?;
            let max_run_time = stage.settings.max_run_time;
            let searchable = stage.settings.searchable.then_some(SEARCHABLE);
            let plain = TopicSettings { searchable, ..TopicSettings::default() };
            store::topic::create(conn, &stage.dead_topic, &plain).await?;
            // Longer than any history, even if clocks are ahead.
            let dedupe_window = stage.settings.dedupe.then(|| Duration::from_secs(9_000_000));
            let trace = if stage.settings.traced { Sampling::ALL } else { Sampling::OFF };
            let limits = stage.settings.limits;
            let on_done = stage.settings.on_done;
            let mut settings =
                TopicSettings { max_run_time, dedupe_window, trace, limits, on_done, ..plain };
            if stage.settings.dead_letter_topic {
                settings.dead_letter_topic = Some(stage.dead_topic.clone());
            }
            if let Some(streamed) = &stage.settings.stream {
                create(conn, stage, streamed, &settings).await?;
            } else {
                store::topic::create(conn, &stage.topic, &settings).await?;
            }
            let id = |topic: Option<Topic>| topic.expect("the topic just made").id;
            let topic = store::topic::existing(conn, &stage.topic).await?;
            stage.topic_id.set(topic.id);
            if stage.settings.stream.is_none() {
                stage.readers.borrow_mut().push(Rc::new(topic));
            }
            stage.dead_topic_id.set(id(store::topic::find(conn, &stage.dead_topic).await?));
            Ok(())
        })
        .await;
    made.expect("no fault yet");
    let readers = stage.readers.borrow().iter().map(|reader| reader.id).collect();
    stage.recorder.borrow_mut().readers = readers;
}

/// Keeps checking the unique keys and the groups.
async fn watch_keys(stage: Rc<Stage>) {
    loop {
        stage.check_keys();
        stage.check_topics();
        stage.check_groups();
        stage.check_limits();
        stage.check_throughput();
        sleep(Duration::from_millis(170)).await;
    }
}

/// Checks that everything completes without faults; messages sent now run once.
async fn recover(
    stage: &Rc<Stage>,
    troupe: &mut Troupe,
    crashing: &mut mpsc::UnboundedReceiver<String>,
) {
    // Everything that was missing or silent at the last fault is decided within three leases.
    let decided = stage.settings.lease * 3;
    look_up(stage);
    if stage.settings.poison > 0 {
        let end = Instant::now() + decided;
        while let Ok(Some(name)) = timeout_at(end, crashing.recv()).await {
            kill(stage, troupe, &name, false).await;
        }
        stage.cured.set(true);
    }
    sleep(decided).await;
    stage.strict.set(true);
    if stage.settings.weather == Weather::Wild {
        (0..2).for_each(|_| troupe.start(Part::Sender));
    }
    let mut end = Instant::now() + PATIENCE;
    let (mut read, mut calm) = (0, 0);
    while Instant::now() < end && calm < 3 {
        while let Ok(name) = crashing.try_recv() {
            kill(stage, troupe, &name, false).await;
        }
        sleep(Duration::from_millis(500)).await;
        look_up(stage);
        stage.check_bells();
        let left = ["queue_message", "queue_scheduled", "queue_claim"];
        let drained = left.iter().all(|table| stage.rows(table) == 0) && stage.is_read();
        let drained = drained && stage.behind().is_none();
        calm = if drained { calm + 1 } else { 0 };
        let read_so_far = stage.read_so_far();
        if read_so_far > read {
            (read, end) = (read_so_far, Instant::now() + PATIENCE);
        }
    }
}

/// Checks that the lookup finds what is in the hot table.
fn look_up(stage: &Rc<Stage>) {
    let Some(id) = stage.astray().filter(|_| stage.settings.searchable) else { return };
    stage.recorder.borrow_mut().fail(format!("message {id} cannot be looked up"));
}

fn judge(stage: &Rc<Stage>) {
    stage.check_keys();
    stage.check_groups();
    stage.judge_log();
    let places = stage.places();
    let effects: BTreeSet<_> = written(stage).into_iter().collect();
    let mut recorder = stage.recorder.borrow_mut();
    // First, because the charges that a dead letter may have depend on them.
    for (id, delivery_no) in stage.charges() {
        recorder.judge_charge(id, delivery_no);
    }
    for id in recorder.ids() {
        let mut found = places.iter().filter(|(other, _)| *other == id).map(|(_, place)| *place);
        let place = found.next().unwrap_or(EndState::Nowhere);
        recorder.judge(id, place, PATIENCE);
        let effect = effects.contains(&id);
        recorder.judge_effect(id, place, effect);
        recorder.judge_cancel(id, place, effect);
        // It died before its group was reset, and once more after that.
        if found.next().is_some() && !recorder.is_rewound(id) {
            recorder.fail(format!("message {} is in two places", id.1));
        }
    }
    for id in stage.checkpoints() {
        recorder.judge_checkpoint(id);
    }
    drop(recorder);
    stage.check_throughput();
    let wrong = stage.untold().or_else(|| stage.behind());
    if let Some(wrong) = wrong {
        stage.recorder.borrow_mut().fail(wrong);
    }
    let claims = stage.rows("queue_claim");
    if claims > 0 {
        stage.recorder.borrow_mut().fail(format!("{claims} claims without a row are left"));
    }
}
