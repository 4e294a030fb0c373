//! The model that the simulation runs its histories on behaves like the server: random sequences of
//! the store's statements, over three sessions, with the same outcome on both.

use std::time::Duration;

use chrono::DateTime;
use diesel::QueryableByName;
use diesel::sql_types::Text;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rowmq_core::connection::{Connection, Link};
use rowmq_core::model::{
    Checkpoint, ClaimNo, DeadCause, OnDone, RowId, TopicId, TopicName, TopicSettings, WorkerId,
};
use rowmq_core::rescue::{Why, take_back};
use rowmq_core::store::claim::{self, Fence, Marks};
use rowmq_core::store::lane::{self, LaneId, LaneKind};
use rowmq_core::store::moves::{self, Outcome};
use rowmq_core::store::scheduled::{self, Reach};
use rowmq_core::store::settle::{self, ClaimedRows};
use rowmq_core::store::worker::{self, Incarnation, Registration, Role};
use rowmq_core::store::{cancel, checkpoint, enqueue, floor, ledger, unique};
use rowmq_core::{AsyncMysqlConnection, Delivery, Error, Moment, NewMessage, Priority, store};
use simulation::Model;
use uuid::Uuid;

use crate::scene::{Scene, wait_for_locks};

const SESSIONS: usize = 3;
const SEQUENCES: u64 = 12;
const STEPS: usize = 40;
const TOPIC: TopicId = TopicId(1);

/// A step of a sequence, by one of the sessions.
#[derive(Debug, Clone)]
enum Step {
    Begin,
    Commit,
    Rollback,
    Enqueue(u64, u8),
    /// Locks up to this many ready rows, claims them and records the claim.
    Claim(u32),
    /// Settles every second row, or all, of a session's last claim, as that session or as another.
    Settle {
        kind: u8,
        of: usize,
        every: usize,
        as_own: bool,
    },
    LockOwn {
        of: usize,
        wait: bool,
    },
    TakeBack {
        of: usize,
        crashed: bool,
    },
    Promote,
    Walk,
    Publish(u64),
    /// Enqueues one message in the lane.
    Advance(u64),
    /// Finds out the outcome of the lane's batch after this one.
    Fence(u64),
    Beat(u64),
    Adopt(u64),
    DeclareDead(u64),
    /// Cancels the first message of a session's last claim, if it waits for its time by now.
    CancelWaiting(usize),
    /// Checks whether the same message can be locked in its row.
    LockToCancel(usize),
    /// Saves its checkpoint, as that session or as another.
    Save {
        of: usize,
        as_own: bool,
    },
    ReadCheckpoint(usize),
}

fn step(rng: &mut StdRng) -> Step {
    let of = rng.random_range(0..SESSIONS);
    match rng.random_range(0..31) {
        0..3 => Step::Begin,
        3..6 => Step::Commit,
        6 => Step::Rollback,
        7..10 => Step::Enqueue(rng.random_range(1..4), rng.random_range(4..6)),
        10..14 => Step::Claim(rng.random_range(1..5)),
        14..17 => Step::Settle {
            kind: rng.random_range(0..10),
            of,
            every: rng.random_range(1..3),
            as_own: rng.random_range(0..4) > 0,
        },
        17 => Step::LockOwn { of, wait: rng.random() },
        18 => Step::TakeBack { of, crashed: rng.random() },
        19 => Step::Promote,
        20 => Step::Walk,
        21 => Step::Publish(rng.random_range(1..9)),
        22 => Step::Fence(rng.random_range(0..4)),
        23..26 => Step::Advance(rng.random_range(1..6)),
        26 => Step::CancelWaiting(of),
        27 => Step::LockToCancel(of),
        28 => Step::Save { of, as_own: rng.random_range(0..4) > 0 },
        29 => Step::ReadCheckpoint(of),
        _ => match rng.random_range(0..3) {
            0 => Step::Beat(rng.random_range(1..4)),
            1 => Step::Adopt(rng.random_range(1..4)),
            _ => Step::DeclareDead(rng.random_range(1..4)),
        },
    }
}

/// The server or the model, and what its sessions hold.
struct Side<C> {
    conns: Vec<Option<C>>,
    held: Vec<(Fence, Vec<Delivery>)>,
    claims: u64,
    lane: Option<LaneId>,
}

fn instance(n: u64) -> Uuid {
    Uuid::from_u128(n.into())
}

fn shown<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        // The name of the counted rows makes no difference.
        Err(Error::Counts { .. }) => "counts".to_owned(),
        Err(error) => format!("{:?}", error.fault()),
    }
}

impl<C: Connection> Side<C> {
    async fn new(conns: Vec<C>) -> Self {
        let fence = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };
        let held = vec![(fence, Vec::new()); SESSIONS];
        let mut side =
            Self { conns: conns.into_iter().map(Some).collect(), held, claims: 0, lane: None };
        let conn = side.conns[0].as_mut().unwrap();
        let incarnation = Incarnation { server_uid: "same".into(), started_at: 1 };
        for n in 1..=SESSIONS as u64 {
            let who = Registration {
                instance: instance(n),
                client_id: "c".into(),
                version: "1".into(),
                lease: Duration::from_secs(10),
            };
            worker::register(conn, &who, &incarnation).await.unwrap();
        }
        side.lane = Some(lane::open(conn, LaneKind::Passing, instance(9)).await.unwrap());
        side
    }

    /// Performs a step on a connection that is taken out for it.
    async fn perform(&mut self, at: usize, step: &Step, messages: &[NewMessage]) -> (C, String)
    where
        C: 'static,
    {
        let mut conn = self.conns[at].take().unwrap();
        let own = Fence { worker: WorkerId(at as u64 + 1), claim_no: ClaimNo(self.claims + 1) };
        let said = match (step, self.lane) {
            (Step::Advance(seq), Some(lane)) => {
                shown(enqueue::insert_in_lane(&mut conn, TOPIC, messages, lane, *seq).await)
            }
            (Step::Fence(seq), Some(lane)) => shown(lane::fence(&mut conn, lane, *seq).await),
            _ => perform(&mut conn, at, step, messages, own, &mut self.held).await,
        };
        if matches!(step, Step::Claim(_)) {
            self.claims += 1;
        }
        (conn, said)
    }
}

async fn perform(
    conn: &mut impl Connection,
    at: usize,
    step: &Step,
    messages: &[NewMessage],
    own: Fence,
    held: &mut [(Fence, Vec<Delivery>)],
) -> String {
    match step {
        Step::Begin => format!("{:?}", conn.batch("BEGIN").await.is_ok()),
        Step::Commit => format!("{:?}", conn.batch("COMMIT").await.is_ok()),
        Step::Rollback => format!("{:?}", conn.batch("ROLLBACK").await.is_ok()),
        Step::Enqueue(..) => shown(enqueue::insert(conn, TOPIC, messages).await),
        Step::Claim(limit) => {
            let start = Marks::START.position(Priority::FIRST);
            let place = match claim::next_ready(conn, TOPIC, start).await {
                Ok(place) => place.unwrap_or(start),
                Err(error) => return shown::<()>(Err(error)),
            };
            let found = match claim::lock_ready(conn, TOPIC, place, *limit, own.claim_no).await {
                Ok(found) => found,
                Err(error) => return shown::<()>(Err(error)),
            };
            let Some(first) = found.first() else { return "nothing".to_owned() };
            let rows = found.iter().map(|delivery| delivery.row).collect();
            let owned = claim::own(conn, own, TOPIC, first.priority, &rows).await;
            let recorded = claim::record(conn, own, TOPIC, first.priority, &rows).await;
            let told: Vec<_> =
                found.iter().map(|one| (one.msg_id, one.delivery_no, one.failures)).collect();
            held[at] = (own, found);
            format!("{told:?} {} {}", shown(owned), shown(recorded))
        }
        Step::Settle { kind, of, every, as_own } => {
            let Some(claimed) = claimed(&held[*of], *every, if *as_own { None } else { Some(own) })
            else {
                return "nothing".to_owned();
            };
            let keep = Duration::from_secs(100);
            match kind {
                0 | 1 => shown(settle::ack(conn, &claimed).await),
                2 => shown(settle::release(conn, &claimed).await),
                3 => {
                    let when = Moment::After(Duration::ZERO);
                    shown(moves::to_scheduled(conn, &claimed, when, Some("e")).await)
                }
                6 => {
                    let when = Moment::At(DateTime::UNIX_EPOCH);
                    shown(moves::to_scheduled(conn, &claimed, when, Some("e")).await)
                }
                7 => {
                    let when = Moment::After(Duration::from_secs(3600));
                    shown(moves::to_scheduled(conn, &claimed, when, None).await)
                }
                4 => shown(moves::to_dead(conn, &claimed, DeadCause::Handler, "e").await),
                5 => shown(ledger::enter(conn, &claimed, keep).await),
                8 => shown(ledger::enter_once(conn, &claimed, keep).await),
                _ => shown(
                    moves::to_archive(conn, &claimed, Outcome::Done, OnDone::Keep(keep)).await,
                ),
            }
        }
        Step::LockOwn { of, wait } => {
            let Some(claimed) = claimed(&held[*of], 1, None) else { return "nothing".to_owned() };
            let found = if *wait {
                settle::wait_for_own(conn, &claimed).await
            } else {
                settle::lock_own(conn, &claimed).await
            };
            shown(found.map(|rows| rows.len()))
        }
        Step::TakeBack { of, crashed } => {
            let claims =
                claim::of_worker(conn, WorkerId(*of as u64 + 1), ClaimNo(0)).await.unwrap();
            let Some(claim) = claims.last() else { return "nothing".to_owned() };
            let why = if *crashed { Why::Crashed { rows_held: 9 } } else { Why::NotNeeded };
            shown(take_back(conn, claim, why).await)
        }
        Step::Promote => match scheduled::lock_due(conn, Reach::All, 100).await {
            Ok(due) if due.is_empty() => {
                let waits = scheduled::next_due(conn, Reach::All).await;
                shown(waits.map(|wait| wait.is_some()))
            }
            Ok(due) => {
                let rows = due.iter().map(|due| due.row).collect();
                let moved = scheduled::promote(conn, &rows).await.map(|_| due.len());
                shown(moved)
            }
            Err(error) => shown::<()>(Err(error)),
        },
        Step::Walk => {
            let walk = claim::walk(conn, TOPIC).await;
            let urgent = claim::urgent(conn, TOPIC, Priority::LAST).await;
            let walk = walk.map(|walk| (walk.first.map(|place| place.priority), walk.suspect));
            format!("{} {}", shown(walk), shown(urgent))
        }
        Step::Publish(row) => {
            shown(floor::publish(conn, TOPIC, Priority::default(), RowId(*row)).await)
        }
        Step::Advance(_) | Step::Fence(_) => unreachable!("the lane is the side's"),
        Step::Beat(n) => shown(worker::beat(conn, WorkerId(*n), instance(*n)).await),
        Step::Adopt(n) => {
            let incarnation = Incarnation { server_uid: "same".into(), started_at: 1 };
            shown(worker::adopt(conn, WorkerId(*n), instance(*n), Role::Work, &incarnation).await)
        }
        Step::CancelWaiting(of) => {
            let Some(first) = held[*of].1.first() else { return "nothing".to_owned() };
            match scheduled::find(conn, TOPIC, first.msg_id).await {
                Ok(rows) if rows.is_empty() => "does not wait".to_owned(),
                Ok(rows) => shown(unique::drop_of_scheduled(conn, &rows).await),
                Err(error) => shown::<()>(Err(error)),
            }
        }
        Step::LockToCancel(of) => {
            let Some(first) = held[*of].1.first() else { return "nothing".to_owned() };
            let found = cancel::lock(conn, TOPIC, first.row, first.msg_id).await;
            let there = cancel::is_there(conn, TOPIC, first.row, first.msg_id).await;
            format!("{} {}", shown(found), shown(there))
        }
        Step::Save { of, as_own } => {
            let (fence, deliveries) = &held[*of];
            let Some(first) = deliveries.first() else { return "nothing".to_owned() };
            let worker = if *as_own { fence.worker } else { own.worker };
            let state = Checkpoint::new(worker.0.to_be_bytes());
            let saved = checkpoint::save(conn, worker, first, &state).await;
            // The server does not count an unchanged row; the model does.
            shown(saved.map(|rows| rows > 0))
        }
        Step::ReadCheckpoint(of) => {
            let Some(first) = held[*of].1.first() else { return "nothing".to_owned() };
            let found = checkpoint::read(conn, first).await;
            shown(found.map(|found| found.map(|one| (one.checkpoint, one.delivery_no))))
        }
        Step::DeclareDead(n) => {
            let seen = worker::find(conn, WorkerId(*n)).await.unwrap().unwrap();
            shown(worker::declare_dead(conn, &seen, "test").await)
        }
    }
}

fn claimed(held: &(Fence, Vec<Delivery>), every: usize, own: Option<Fence>) -> Option<ClaimedRows> {
    let (fence, deliveries) = held;
    let first = deliveries.first()?;
    Some(ClaimedRows {
        fence: own.unwrap_or(*fence),
        topic: TOPIC,
        priority: first.priority,
        rows: deliveries.iter().step_by(every).map(|delivery| delivery.row).collect(),
    })
}

/// Performs a step; if it waits for a row, the others commit first.
async fn take<C: Connection + 'static>(
    side: &mut Side<C>,
    at: usize,
    step: &Step,
    messages: &[NewMessage],
    mut waits: impl AsyncFnMut() -> bool,
) -> String {
    let mut others: Vec<_> =
        (0..SESSIONS).filter(|other| *other != at).map(|other| (other, None)).collect();
    for (other, conn) in &mut others {
        *conn = side.conns[*other].take();
    }
    let mut blocked = false;
    let (conn, said) = {
        let mut performing = Box::pin(side.perform(at, step, messages));
        loop {
            let pause = Duration::from_millis(100);
            if let Ok(done) = tokio::time::timeout(pause, &mut performing).await {
                break done;
            }
            if !blocked && waits().await {
                blocked = true;
                for (_, conn) in &mut others {
                    conn.as_mut().unwrap().batch("COMMIT").await.unwrap();
                }
            }
        }
    };
    side.conns[at] = Some(conn);
    for (other, conn) in others {
        side.conns[other] = conn;
    }
    format!("{said}{}", if blocked { " after a wait" } else { "" })
}

const TABLES: [(&str, &[&str]); 8] = [
    (
        "queue_message",
        &[
            "topic_id",
            "priority",
            "body",
            "worker_id",
            "claim_no",
            "delivery_no",
            "failures",
            "suspicions",
        ],
    ),
    ("queue_scheduled", &["priority", "body", "delivery_no", "failures", "crashes"]),
    ("queue_dead", &["priority", "body", "failures", "cause"]),
    ("queue_archive", &["priority", "body", "failures", "outcome"]),
    ("queue_ledger", &["biz_id"]),
    ("queue_checkpoint", &["topic_id", "delivery_no"]),
    ("queue_claim", &["worker_id", "claim_no", "n"]),
    ("queue_worker", &["id", "state", "beat_no"]),
];

async fn server_rows(
    conn: &mut AsyncMysqlConnection,
    table: &str,
    columns: &[&str],
) -> Vec<String> {
    #[derive(QueryableByName)]
    struct Shown {
        #[diesel(sql_type = Text)]
        shown: String,
    }
    let columns = columns.join(", ");
    let query = format!("SELECT CAST(CONCAT_WS(' ', {columns}) AS CHAR) AS shown FROM {table}");
    let rows: Vec<Shown> =
        diesel_async::RunQueryDsl::load(diesel::sql_query(query), conn).await.unwrap();
    rows.into_iter().map(|row| row.shown).collect()
}

#[tokio::test]
async fn the_model_does_what_the_server_does() {
    tokio::task::LocalSet::new().run_until(compare()).await;
}

async fn compare() {
    for seed in 0..SEQUENCES {
        let mut scene = Scene::new().await;
        let model = Model::start();
        let name = TopicName::new("t").unwrap();
        let mut link = model.connect().await;
        store::topic::create(&mut link, &name, &TopicSettings::default()).await.unwrap();
        if seed % 2 == 1 {
            lead_dead_letters(&mut link).await;
            lead_dead_letters(&mut scene.conn).await;
        }
        let mut links: Vec<Link> = Vec::new();
        let mut conns = Vec::new();
        for _ in 0..SESSIONS {
            links.push(model.connect().await);
            let mut conn = scene.db.connect().await;
            wait_for_locks(&mut conn).await;
            conns.push(conn);
        }
        let (mut server_side, mut model_side) = (Side::new(conns).await, Side::new(links).await);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut steps = Vec::new();
        for n in 0..STEPS {
            let (at, step) = (rng.random_range(0..SESSIONS), step(&mut rng));
            let messages = messages(&step, n);
            let on_server =
                take(&mut server_side, at, &step, &messages, async || scene.lock_waits().await > 0)
                    .await;
            let on_model =
                take(&mut model_side, at, &step, &messages, async || model.lock_waits() > 0).await;
            steps.push(format!("{at} {step:?}: {on_server}"));
            assert_eq!(on_server, on_model, "sequence {seed}:\n{}", steps.join("\n"));
        }
        for at in 0..SESSIONS {
            take(&mut server_side, at, &Step::Commit, &[], async || false).await;
            take(&mut model_side, at, &Step::Commit, &[], async || false).await;
        }
        for (table, columns) in TABLES {
            let mut on_server = server_rows(&mut scene.conn, table, columns).await;
            let mut on_model = model.rows(table, columns);
            on_server.sort();
            on_model.sort();
            assert_eq!(on_server, on_model, "{table} of {seed}:\n{}", steps.join("\n"));
        }
    }
}

/// Sends the topic's dead letters to another topic from now on.
async fn lead_dead_letters(conn: &mut impl Connection) {
    let (name, dead) = (TopicName::new("t").unwrap(), TopicName::new("dead").unwrap());
    let mut settings = TopicSettings::default();
    store::topic::create(conn, &dead, &settings).await.unwrap();
    settings.dead_letter_topic = Some(dead);
    store::topic::set(conn, &name, &settings).await.unwrap();
}

/// Returns the messages of a step, the same for both.
fn messages(step: &Step, n: usize) -> Vec<NewMessage> {
    let (many, priority) = match step {
        Step::Enqueue(many, priority) => (many, priority),
        Step::Advance(_) => (&1, &5),
        _ => return Vec::new(),
    };
    let message = |at: u64| {
        let id = Uuid::from_u128(u128::from(at) + n as u128 * 10 + 1);
        NewMessage::new(format!("{n}-{at}"))
            .with_msg_id(rowmq_core::MsgId(id))
            .with_priority(Priority::new(*priority).unwrap())
            .with_biz_id(format!("b{}", (n as u64 + at) % 7))
    };
    (0..*many).map(message).collect()
}
