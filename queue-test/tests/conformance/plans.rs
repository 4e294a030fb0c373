//! H13: the plans of the statements that run all the time, on both servers. EXPLAIN gets the same
//! statements with the same values that a worker, a rescue and a promotion sent.

use std::time::Duration;

use chrono::DateTime;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Params, Row};
use rowmq_core::connection::{ServerUrl, transaction};
use rowmq_core::find::{Query, find};
use rowmq_core::model::found::{Filter, StateWord};
use rowmq_core::model::{
    ClaimNo, DeadCause, MsgId, OnDone, RowId, Settlement, TopicId, TopicSettings, WorkerId,
};
use rowmq_core::rescue::{Why, take_back};
use rowmq_core::store::claim::{self, Fence};
use rowmq_core::store::dead::{self, DeadFilter};
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::find::Bodies;
use rowmq_core::store::lane::{self, LaneKind};
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::scheduled::{self, Reach, Scheduled};
use rowmq_core::store::share::{self, Share};
use rowmq_core::store::{audit, backlog, floor, ledger, limit, lookup, prune, rescue, unique};
use rowmq_core::worker::{ClaimStrategy, Settled};
use rowmq_core::{
    AsyncMysqlConnection, Moment, NewMessage, Topic, Unique, cancel, enqueue, enqueue_to,
    reschedule,
};
use rowmq_test::{connected, session_at};

use crate::rescue::claims_of;
use crate::scene::{STRATEGIES, Scene, all, claim_n, claim_one_suspect, retry, settle};
use crate::wire::{Recorder, Run};

const ROWS: usize = 20_000;

/// The tables that grow, by the aliases in the statements, and the keys that reads of them use.
const KEYS: Keys = &[
    ("queue_message", &["PRIMARY", "queue_message_id"]),
    ("m", &["PRIMARY", "queue_message_id"]),
    ("queue_claim", &["PRIMARY", "queue_claim_frontier"]),
    ("queue_share", &["PRIMARY"]),
    ("c", &["PRIMARY"]),
    (
        "queue_scheduled",
        &["PRIMARY", "queue_scheduled_id", "queue_scheduled_msg", "queue_scheduled_topic"],
    ),
    ("s", &["queue_scheduled_id", "queue_scheduled_msg"]),
    ("queue_archive", &["queue_archive_keep_until", "queue_archive_topic"]),
    ("queue_ledger", &["PRIMARY", "queue_ledger_keep_until"]),
    ("l", &["PRIMARY", "queue_lookup_time"]),
    ("queue_lookup", &["PRIMARY", "queue_lookup_biz", "queue_lookup_key", "queue_lookup_time"]),
    (
        "f",
        &[
            "PRIMARY",
            "queue_message_id",
            "queue_scheduled_id",
            "queue_scheduled_msg",
            "queue_dead_msg",
            "queue_archive_msg",
        ],
    ),
    ("a", &["queue_archive_msg"]),
    ("queue_dedupe", &["PRIMARY", "queue_dedupe_keep_until"]),
    ("queue_unique", &["PRIMARY", "queue_unique_keep_until"]),
    ("u", &["PRIMARY"]),
    ("queue_dead", &["PRIMARY", "queue_dead_topic"]),
    ("queue_audit", &["PRIMARY", "queue_audit_at"]),
    ("d", &["PRIMARY", "queue_dead_msg"]),
];

/// The tables that grow, by the aliases in the statements, and the keys that reads of them may use.
pub(crate) type Keys = &'static [(&'static str, &'static [&'static str])];

/// One row of a plan.
#[derive(Debug)]
struct Step {
    kind: String,
    table: String,
    access: String,
    key: String,
    extra: String,
}

async fn plan(conn: &mut Conn, run: &Run) -> Vec<Step> {
    let explain = format!("EXPLAIN FORMAT=TRADITIONAL {}", run.sql);
    let values =
        if run.values.is_empty() { Params::Empty } else { Params::Positional(run.values.clone()) };
    let rows: Vec<Row> =
        conn.exec(explain, values).await.unwrap_or_else(|error| panic!("{}: {error}", run.sql));
    let text = |row: &Row, name: &str| {
        row.get_opt::<String, _>(name).and_then(Result::ok).unwrap_or_default()
    };
    rows.iter()
        .map(|row| Step {
            kind: text(row, "select_type"),
            table: text(row, "table"),
            access: text(row, "type"),
            key: text(row, "key"),
            extra: text(row, "Extra"),
        })
        .collect()
}

/// Returns what is wrong with a plan.
fn faults(run: &Run, steps: &[Step], keys: Keys, may_sort: fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for step in steps {
        let Some((_, keys)) = keys.iter().find(|(table, _)| *table == step.table) else { continue };
        // An INSERT … SELECT does not read the table that it writes to.
        let written = step.kind == "INSERT";
        let by_key =
            keys.contains(&step.key.as_str()) && !matches!(step.access.as_str(), "ALL" | "index");
        if !by_key && !written {
            faults.push(format!("reads {} by {} ({})", step.table, step.key, step.access));
        }
        if sorts(step) && !may_sort(&run.sql) {
            faults.push(format!("sorts {}: {}", step.table, step.extra));
        }
    }
    faults.into_iter().map(|fault| format!("{fault}\n    {}\n    {steps:?}", run.sql)).collect()
}

/// Returns what is wrong with the recorded statements' plans, and how many statements were
/// explained.
pub(crate) async fn wrong_plans(
    url: &ServerUrl,
    recorder: &Recorder,
    keys: Keys,
    may_sort: fn(&str) -> bool,
) -> (Vec<String>, usize) {
    let opts = Opts::from_url(url.expose()).unwrap();
    let mut conn = Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await.unwrap();
    let (mut wrong, mut explained) = (Vec::new(), 0);
    for run in recorder.distinct() {
        let word = run.sql.split_whitespace().next().unwrap_or_default().to_uppercase();
        let reads = run.sql.contains("queue_")
            && (word != "INSERT" || run.sql.contains("SELECT"))
            && ["SELECT", "(SELECT", "UPDATE", "DELETE", "INSERT"].contains(&word.as_str());
        if reads {
            let steps = plan(&mut conn, &run).await;
            wrong.extend(faults(&run, &steps, keys, may_sort));
            explained += 1;
        }
    }
    (wrong, explained)
}

fn sorts(step: &Step) -> bool {
    step.extra.contains("filesort") || step.extra.contains("temporary")
}

/// A promotion sorts the batch it has locked, at most 512 rows, by due time. A rescue that isolates
/// rows, and a change of a message's time, change the key, so they note the rows' keys first; so
/// does an UPDATE with a LIMIT. The newest dead letters are read in the order of their key, and
/// then grouped. No other statement sorts or stores anything in a temporary table.
fn may_sort(sql: &str) -> bool {
    let moves_back = sql.starts_with("INSERT INTO queue_message")
        && (sql.contains("queue_scheduled") || sql.contains("queue_dead"));
    // From the hot table into itself: the server buffers the rows on their way.
    let moves_on =
        sql.starts_with("INSERT INTO queue_message") && sql.contains("CASE WHEN headers");
    let groups = sql.starts_with("SELECT cause, error, COUNT(*)");
    moves_back
        || groups
        || sql.starts_with("UPDATE queue_scheduled")
        || moves_on
        || (sql.starts_with("UPDATE queue_message") && sql.ends_with("LIMIT ?"))
        || (sql.starts_with("UPDATE queue_message") && sql.contains("priority = ?, suspicions"))
}

/// Runs everything that runs all the time, through the recorder.
pub(crate) async fn do_everything(scene: &mut Scene, recorder: &Recorder, strategy: ClaimStrategy) {
    let worker = scene.worker_with(|options| {
        options.url = recorder.url().clone();
        options.strategy = strategy;
    });
    let worker = worker.await;
    let topic = scene.topic.id;
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: String::new() };
    let discard = Settlement::Discard { reason: String::new() };
    let ends = [
        Settlement::Ack,
        retry(Duration::ZERO),
        Settlement::RetryAt { at: DateTime::UNIX_EPOCH, error: String::new() },
        Settlement::Snooze { delay: Duration::ZERO },
        dead,
        discard,
        Settlement::Release,
    ];
    for end in ends {
        let got = claim_n(&worker, topic, 30).await;
        // One row, a range, and a list.
        settle(&worker, all(&got[..1], &end)).await;
        settle(&worker, all(&got[1..10], &end)).await;
        settle(&worker, all(got[10..].iter().step_by(2), &end)).await;
        // Partly taken back, so that the worker locks the rest first.
        let taken = format!("UPDATE queue_message SET worker_id = 0 WHERE id = {}", got[13].row);
        scene.sql(&taken).await;
        worker.settle(all(got[11..].iter().step_by(2), &end)).await.unwrap();
    }
    // To another topic: in fact this one, which no setting allows, but no statement checks.
    scene.sql("UPDATE queue_topic SET dead_letter_topic_id = id").await;
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: String::new() };
    let got = claim_n(&worker, topic, 30).await;
    settle(&worker, all(&got[..1], &dead)).await;
    settle(&worker, all(&got[1..10], &dead)).await;
    settle(&worker, all(got[10..].iter().step_by(2), &dead)).await;
    settle(&worker, all(got[11..].iter().step_by(2), &dead)).await;
    scene.sql("UPDATE queue_topic SET dead_letter_topic_id = NULL").await;
    let keep = OnDone::Keep(Duration::ZERO);
    let got = claim_n(&worker, topic, 5).await;
    let kept = got.iter().map(|d| Settled::new(d, Settlement::Ack, keep));
    settle(&worker, kept.collect()).await;
    scene.sql("UPDATE queue_message SET biz_id = CONCAT('new', id) WHERE worker_id = 0 ORDER BY topic_id, priority, id LIMIT 2000").await;
    let remembered =
        TopicSettings { ledger_window: Some(Duration::from_secs(60)), ..Default::default() };
    scene.sql("UPDATE queue_message SET unique_key = CONCAT('k', id) WHERE worker_id = 0 ORDER BY topic_id, priority, id LIMIT 200").await;
    for settlement in [Settlement::Ack, dead.clone()] {
        let got = claim_n(&worker, topic, 20).await;
        settle(&worker, all(&got[..10], &settlement)).await;
        settle(&worker, all(got[10..].iter().step_by(2), &settlement)).await;
        settle(&worker, all(got[11..].iter().step_by(2), &settlement)).await;
    }
    let got = claim_n(&worker, topic, 5).await;
    let remember = |d| Settled::in_topic(d, Settlement::Ack, &remembered);
    settle(&worker, got.iter().map(remember).collect()).await;
    scene
        .sql("UPDATE queue_message SET priority = 105 ORDER BY topic_id, priority, id LIMIT 3")
        .await;
    claim_one_suspect(&worker, topic).await;
    claim_n(&worker, topic, 20).await;
    sweep(scene, recorder, worker.id()).await;
}

/// Runs what a janitor and a producer run all the time, through the recorder.
async fn sweep(scene: &mut Scene, recorder: &Recorder, worker: WorkerId) {
    let mut conn = connected(recorder.url()).await;
    let topic = scene.topic.id;
    share::set(&mut conn, topic, worker, Share { n: 1, of: 1 }).await.unwrap();
    share::lock(&mut conn, topic, worker).await.unwrap();
    share::all(&mut conn, topic).await.unwrap();
    share::lock_unused(&mut conn, topic).await.unwrap();
    let claims = claim::of_topic(&mut conn, topic).await.unwrap();
    share::running(&mut conn, &claims).await.unwrap();
    limit::forget_shares(&mut conn, topic).await.unwrap();
    let start = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };
    rescue::zombie_claims(&mut conn, start, 100).await.unwrap();
    rescue::timed_claims(&mut conn, start, 100).await.unwrap();
    for claim in claims_of(&mut conn, worker).await {
        for why in [Why::Crashed { rows_held: 1 }, Why::Crashed { rows_held: 9 }, Why::NotNeeded] {
            let taken = transaction(&mut conn, "rescue", async |c| take_back(c, &claim, why).await);
            taken.await.unwrap();
        }
    }
    for (reach, limit) in
        [(Reach::Recent, 1), (Reach::All, 1), (Reach::All, 10), (Reach::All, 1000)]
    {
        scheduled::next_due(&mut conn, reach).await.unwrap();
        let due = transaction(&mut conn, "promote", async |conn| {
            let due = scheduled::lock_due(conn, reach, limit).await?;
            let rows: RowSet = due.iter().map(|due| due.row).take(512).collect();
            if !rows.is_empty() {
                scheduled::promote(conn, &rows).await?;
            }
            Ok(due)
        });
        due.await.unwrap();
    }
    let topic = &scene.topic.name;
    let later = NewMessage::new("m").with_delay(Duration::from_secs(3600));
    enqueue(&mut conn, topic, &later).await.unwrap();
    let soon = Moment::After(Duration::from_secs(1800));
    assert!(reschedule(&mut conn, topic, later.msg_id, soon).await.unwrap());
    assert!(cancel(&mut conn, topic, later.msg_id).await.unwrap());
    scheduled::list(&mut conn, scene.topic.id, 10).await.unwrap();
    let page = scheduled::read(&mut conn, scene.topic.id, None, 10).await.unwrap();
    let after = page.last().map(Scheduled::position);
    assert_eq!(scheduled::read(&mut conn, scene.topic.id, after, 10).await.unwrap().len(), 10);
    redrive(&mut conn, scene.topic.id).await;
    look_up(scene, recorder).await;
    floor::pulse(&mut conn).await.unwrap();
    prune::archive(&mut conn, 10).await.unwrap();
    prune::ledger(&mut conn, 10).await.unwrap();
    dead::kept_for(&mut conn).await.unwrap();
    let id = scene.topic.id;
    let prune = async |conn: &mut _| dead::prune(conn, id, Duration::ZERO, 10).await;
    assert!(transaction(&mut conn, "prune", prune).await.unwrap().removed > 0);
    ledger::look(&mut conn, scene.topic.id, &[b"b1", b"b2", b"none"]).await.unwrap();
    ledger::drop_expired(&mut conn, scene.topic.id, b"b1").await.unwrap();
    for older_than in [Duration::ZERO, Duration::from_secs(86_400)] {
        audit::prune(&mut conn, older_than, 10).await.unwrap();
    }
    let newest = audit::latest(&mut conn, None, 10).await.unwrap();
    audit::latest(&mut conn, Some(newest[9].no), 10).await.unwrap();
    audit::add(&mut conn, newest[0].no, 1).await.unwrap();
    prune::dedupe(&mut conn, 10).await.unwrap();
    prune::unique(&mut conn, 10).await.unwrap();
    once(&mut conn, &scene.topic).await;
    prune::lanes(&mut conn, LaneKind::Passing, Duration::from_secs(3600), 10).await.unwrap();
    let lane = lane::open(&mut conn, LaneKind::Passing, uuid::Uuid::new_v4()).await.unwrap();
    let messages = [NewMessage::new("m")];
    insert_in_lane(&mut conn, scene.topic.id, &messages, lane, 1).await.unwrap();
    lane::seq(&mut conn, lane).await.unwrap();
    lane::fence(&mut conn, lane, 1).await.unwrap();
    prune::lanes(&mut conn, LaneKind::Passing, Duration::ZERO, 10).await.unwrap();
    lane::close(&mut conn, lane).await.unwrap();
    enqueue(&mut conn, &scene.topic.name, &NewMessage::new("m")).await.unwrap();
    measure(&mut conn, scene.topic.id).await;
}

/// Measures a backlog.
async fn measure(conn: &mut AsyncMysqlConnection, topic: TopicId) {
    let from: Vec<_> = backlog::priorities().map(|priority| (priority, RowId(0))).collect();
    let first = backlog::starts(conn, topic, &from).await.unwrap()[0].first;
    for end in [RowId(first.0 + 5000), RowId(u64::MAX)] {
        backlog::count_rows(conn, topic, 5, (first, end), 1000).await.unwrap();
    }
    backlog::sizes(conn, topic, &[(5, first); 16]).await.unwrap();
}

/// Finds messages by every filter there is, follows some, and prunes the lookup.
async fn look_up(scene: &mut Scene, recorder: &Recorder) {
    let mut session = session_at(recorder.url(), Duration::from_secs(60)).await;
    let day = Duration::from_secs(86_400);
    let mut topic = scene.topic.clone();
    let since = Some(DateTime::UNIX_EPOCH);
    let some = "SELECT HEX(msg_id) FROM queue_lookup ORDER BY row_id DESC LIMIT 1";
    let some = MsgId(uuid::Uuid::try_parse(&scene.text(some).await).unwrap());
    for searchable in [Some(day), None] {
        topic.settings.searchable = searchable;
        for filter in [
            Filter { msg_id: Some(some), ..Filter::default() },
            Filter { biz_id: Some("new7".into()), ..Filter::default() },
            Filter { key: Some("k".into()), since, ..Filter::default() },
            Filter { since, ..Filter::default() },
            Filter { state: Some(StateWord::Dead), error: Some("n".into()), ..Filter::default() },
        ] {
            let query = Query { filter, after: None, limit: 50, bodies: Bodies::Leave };
            find(&mut session, &topic, &query).await.unwrap();
        }
    }
    let mut conn = connected(recorder.url()).await;
    let id = scene.topic.id;
    lookup::topics(&mut conn).await.unwrap();
    let aged = lookup::aged(&mut conn, id, Duration::ZERO, None, 100).await.unwrap();
    let aged = lookup::aged(&mut conn, id, Duration::ZERO, aged.next, 100).await.unwrap();
    let ids = &aged.ended[..aged.ended.len().min(20)];
    lookup::prune(&mut conn, id, Duration::ZERO, ids).await.unwrap();
    lookup::drop_some(&mut conn, id, 10).await.unwrap();
    let low = scene.number("SELECT MAX(id) - 100 FROM queue_message").await;
    for n in [1, 20] {
        let ids: Vec<_> = (0..n).map(|_| MsgId::new()).collect();
        let low = RowId(low.unsigned_abs());
        lookup::follow(&mut conn, id, id, low, &ids).await.unwrap();
    }
}

/// Sends messages again, with ids and keys that already exist.
async fn once(conn: &mut AsyncMysqlConnection, topic: &Topic) {
    let window = Some(Duration::from_secs(60));
    let settings =
        TopicSettings { dedupe_window: window, searchable: window, ..topic.settings.clone() };
    let topic = Topic { settings, ..topic.clone() };
    let delay = Duration::from_secs(60);
    let messages: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .flat_map(|key| {
            let replacing = NewMessage::new("m").with_unique(Unique::replacing(format!("r{key}")));
            let later = NewMessage::new("m").with_delay(delay);
            [
                NewMessage::new("m").with_msg_id(MsgId::new()),
                NewMessage::new("m").with_unique(Unique::until_done(key)),
                later.with_unique(Unique::debounced(format!("d{key}"), window)),
                replacing,
            ]
        })
        .collect();
    for _ in 0..2 {
        let send = async |conn: &mut _| enqueue_to(conn, &topic, &messages).await;
        transaction(conn, "send", send).await.unwrap();
    }
    let refused = NewMessage::new("m").with_msg_id(MsgId::new());
    let refused = refused.with_unique(Unique::until_done("a"));
    let send = async |conn: &mut _| enqueue_to(conn, &topic, std::slice::from_ref(&refused)).await;
    assert!(!transaction(conn, "send", send).await.unwrap()[0].is_stored());
}

/// Lists dead letters, and redrives some: one, a range, and a list.
async fn redrive(conn: &mut AsyncMysqlConnection, topic: TopicId) {
    let filter = DeadFilter { error: Some("no".to_owned()), ..DeadFilter::default() };
    dead::errors(conn, topic, 10).await.unwrap();
    let mut from = None;
    for take in [1, 10, 50] {
        let window = dead::window(conn, topic, &filter, from).await.unwrap();
        from = window.next;
        let step = if take == 50 { 2 } else { 1 };
        let rows: RowSet = window.wanted.into_iter().step_by(step).take(take).collect();
        dead::read(conn, &rows).await.unwrap();
        let moved = transaction(conn, "redrive", async |conn| {
            assert_eq!(dead::lock(conn, &rows).await?.len(), take);
            unique::take_again(conn, topic, &rows).await?;
            dead::redrive(conn, &rows).await
        });
        moved.await.unwrap();
    }
    let window = dead::window(conn, topic, &filter, from).await.unwrap();
    dead::body(conn, topic, window.wanted[0]).await.unwrap();
    dead::history(conn, topic, window.wanted[0]).await.unwrap();
    dead::purge(conn, &window.wanted.into_iter().take(20).collect()).await.unwrap();
}

/// Fills the other tables, so that a full scan of them would show.
pub(crate) async fn fill(scene: &mut Scene) {
    scene.enqueue(ROWS).await;
    let columns = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, \
         enqueued_at, body";
    let values = "topic_id, priority, msg_id, 1, 1, 0, 0, enqueued_at, body";
    for insert in [
        format!(
            "INSERT INTO queue_scheduled ({columns}, due_at) SELECT {values}, \
             UTC_TIMESTAMP(6) + INTERVAL (CAST(id % 2 AS SIGNED) * 86400 - 10) SECOND FROM queue_message"
        ),
        format!(
            "INSERT INTO queue_archive ({columns}, outcome, settled_at, keep_until) SELECT {values}, \
             'done', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR FROM queue_message"
        ),
        format!(
            "INSERT INTO queue_dead ({columns}, cause, last_error, died_at) SELECT {values}, \
             'handler', 'no', enqueued_at FROM queue_message"
        ),
        "INSERT INTO queue_claim SELECT 900000 + id % 50, id, topic_id, 5, id, id, 1, 1, \
         UTC_TIMESTAMP(6) FROM queue_message LIMIT 2000"
            .to_owned(),
        "INSERT INTO queue_ledger SELECT topic_id, 0, CONCAT('b', id), msg_id, \
         UTC_TIMESTAMP(6) + INTERVAL (CAST(id % 2 AS SIGNED) * 86400 - 10) SECOND FROM queue_message"
            .to_owned(),
        "INSERT INTO queue_lookup SELECT topic_id, msg_id, id, enqueued_at, CONCAT('b', id), 'k' \
         FROM queue_message"
            .to_owned(),
        "INSERT INTO queue_dedupe SELECT topic_id, msg_id, 0, \
         UTC_TIMESTAMP(6) + INTERVAL (CAST(id % 2 AS SIGNED) * 86400 - 10) SECOND \
         FROM queue_message"
            .to_owned(),
        "INSERT INTO queue_unique (topic_id, unique_key, msg_id, repeats, keep_until, priority, \
         ready_id, scheduled_id) SELECT topic_id, CONCAT('k', id), msg_id, 0, \
         UTC_TIMESTAMP(6) + INTERVAL (CAST(id % 2 AS SIGNED) * 86400 - 10) SECOND, \
         NULL, NULL, NULL FROM queue_message"
            .to_owned(),
        "INSERT INTO queue_audit (at, actor, origin, action, target) \
         SELECT UTC_TIMESTAMP(6) - INTERVAL id % 2 DAY, 'ada', 'here', 'purge', 'mail' \
         FROM queue_message"
            .to_owned(),
        "ANALYZE TABLE queue_lookup, queue_message, queue_scheduled, queue_archive, queue_claim, \
         queue_dead, queue_ledger, queue_dedupe, queue_unique, queue_audit"
            .to_owned(),
    ] {
        scene.sql(&insert).await;
    }
}

/// H13.
#[tokio::test]
async fn every_statement_that_runs_all_the_time_reads_by_its_key_and_sorts_nothing() {
    let settings =
        TopicSettings { max_run_time: Some(Duration::from_secs(60)), ..Default::default() };
    let mut scene = Scene::with(&settings).await;
    fill(&mut scene).await;
    let recorder = Recorder::start(scene.db.url()).await;
    for strategy in STRATEGIES {
        do_everything(&mut scene, &recorder, strategy).await;
    }
    let (wrong, explained) = wrong_plans(scene.db.url(), &recorder, KEYS, may_sort).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(explained > 40, "only {explained} statements were recorded");
}
