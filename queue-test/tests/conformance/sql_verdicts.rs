//! A verdict has the same effect from every client: a worker of the library settles in one
//! database, `CALL queue_settle(…)` in another, and both have the same rows afterwards.

use std::num::NonZeroU32;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use rowmq_core::connection::transaction;
use rowmq_core::handler::{HandlerError, RunOutcome, settlement_for};
use rowmq_core::model::{Headers, OnDone, RetryPolicy, Sampling, TopicSettings};
use rowmq_core::worker::Settled;
use rowmq_core::{MsgId, NewMessage, Priority, Unique, enqueue, procedures};

use crate::scene::{Scene, claim_n, settle};
use crate::sql_consumer::{SqlConsumer, deliveries};
use crate::sql_contract::client;

const HOUR: Duration = Duration::from_secs(3600);

const VERDICTS: [&str; 6] = ["ack", "retry", "snooze", "dead-letter", "discard", "release"];

/// Everything that a settle may leave, except what differs each time: connections, and times, which
/// are compared by the hour.
const LEFT: [(&str, &str, &str); 10] = [
    (
        "queue_message",
        "topic_id, priority, msg_id, worker_id, claim_no, delivery_no, failures, crashes, suspicions, ordering_key, biz_id, unique_key, headers, body",
        "history",
    ),
    ("queue_claim", "worker_id, claim_no, topic_id, priority, lo, hi, n", "NULL"),
    (
        "queue_scheduled",
        "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, ordering_key, biz_id, unique_key, headers, body, last_error, TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at + INTERVAL 30 SECOND)",
        "history",
    ),
    (
        "queue_dead",
        "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, ordering_key, biz_id, unique_key, headers, body, cause, last_error",
        "history",
    ),
    (
        "queue_archive",
        "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, ordering_key, biz_id, headers, body, outcome, reason, TIMESTAMPDIFF(SECOND, settled_at, keep_until)",
        "history",
    ),
    (
        "queue_ledger",
        "topic_id, group_id, biz_id, msg_id, TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), keep_until + INTERVAL 30 SECOND)",
        "NULL",
    ),
    ("queue_unique", "topic_id, unique_key, msg_id", "NULL"),
    ("queue_lookup", "topic_id, msg_id, row_id, biz_id, ordering_key", "NULL"),
    ("queue_floor", "topic_id, priority, floor, seq", "NULL"),
    ("queue_trace", "topic_id, msg_id, event, delivery_no, worker_id, outcome, error", "NULL"),
];

/// Returns the rows of all tables, each column in hexadecimal, so that no server converts any byte.
async fn left(scene: &mut Scene) -> Vec<String> {
    let mut all = Vec::new();
    scene.sql("SET SESSION group_concat_max_len = 1000000").await;
    for (table, columns, history) in LEFT {
        let columns: Vec<_> =
            split(columns).map(|column| format!("COALESCE(HEX({column}), '-')")).collect();
        let history = format!(
            "HEX(REGEXP_REPLACE(CONVERT({history} USING latin1), '\"at\":\"[0-9TZ:.-]*\"', ''))"
        );
        let row = format!("CONCAT_WS(' ', {}, {history})", columns.join(", "));
        let rows = format!("SELECT GROUP_CONCAT({row} ORDER BY {row} SEPARATOR '\n') FROM {table}");
        all.push(format!("{table}:\n{}", scene.text(&rows).await));
    }
    all
}

/// Splits columns at commas outside parentheses.
fn split(columns: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    columns.split(move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
}

fn messages() -> Vec<NewMessage> {
    let full = NewMessage::new(vec![0, 255, b'\'', b'\\'])
        .with_key("k")
        .with_biz_id("z")
        .with_header("trace", "å{}")
        .with_priority(Priority::new(3).unwrap())
        .with_expiry(HOUR)
        .with_unique(Unique::until_done("u"));
    let own = NewMessage::new("own")
        .with_retry(&RetryPolicy::Fixed(2 * HOUR))
        .with_max_attempts(NonZeroU32::MIN);
    // It requests more than its topic allows.
    let eager = NewMessage::new("eager")
        .with_retry(&RetryPolicy::Fixed(Duration::from_millis(1)))
        .with_max_attempts(NonZeroU32::MAX);
    [NewMessage::new("plain"), full, own, eager]
        .map(|message| message.with_msg_id(MsgId::new()))
        .into()
}

/// Returns what a handler of the library returns in place of the verdict.
fn said(verdict: &str, error: &str) -> RunOutcome {
    let error = error.to_owned();
    RunOutcome::Returned(match verdict {
        "ack" => Ok(()),
        "retry" => Err(HandlerError::retry(error)),
        "snooze" => Err(HandlerError::Snooze(HOUR)),
        "dead-letter" => Err(HandlerError::dead(error)),
        "discard" => Err(HandlerError::discard(error)),
        _ => Err(HandlerError::Release),
    })
}

/// How the messages are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Library,
    /// One call for each message.
    Calls,
    /// One call for all.
    OneCall,
}

/// Every message of each scene ends by `verdict`: in the first through the library, in the others
/// through SQL.
async fn settle_all_ways(
    settings: &TopicSettings,
    dead_to: Option<&str>,
    verdict: &str,
    error: &str,
) {
    let messages = messages();
    let mut told = Vec::new();
    for by in [By::Library, By::Calls, By::OneCall] {
        let mut scene = Scene::with(settings).await;
        if let Some(settings) = dead_to {
            scene.db.topic("dead").await;
            scene.sql("UPDATE queue_topic SET dead_letter_topic_id = 2 WHERE name = 't'").await;
            scene.sql(&format!("UPDATE queue_topic SET {settings} WHERE name = 'dead'")).await;
        }
        for message in &messages {
            let name = &scene.topic.name;
            let send = async |conn: &mut _| enqueue(conn, name, message).await;
            transaction(&mut scene.conn, "send", send).await.unwrap();
        }
        scene.sql("DELETE FROM queue_trace").await;
        if by == By::Library {
            let worker = scene.worker().await;
            let mut settled = Vec::new();
            for _ in &messages {
                let claimed = claim_n(&worker, scene.topic.id, 1).await.remove(0);
                let settlement = settlement_for(said(verdict, error), &claimed, settings);
                settled.push(Settled::in_topic(&claimed, settlement, settings));
            }
            settle(&worker, settled).await;
        } else {
            let mut consumer = SqlConsumer::new(scene.db.url()).await;
            let mut held = Vec::new();
            for _ in &messages {
                held.extend(consumer.claim_n(1).await);
            }
            let delay = (verdict == "snooze").then_some(3600);
            for held in held.chunks(if by == By::OneCall { held.len() } else { 1 }) {
                let values = (deliveries(held), verdict, error, delay);
                consumer.conn.exec_drop("CALL queue_settle(?, ?, ?, ?)", values).await.unwrap();
            }
        }
        scene.sql("DELETE FROM queue_trace WHERE event <> 'settled'").await;
        told.push(left(&mut scene).await);
    }
    for (by, told_by) in [(By::Calls, &told[1]), (By::OneCall, &told[2])] {
        for ((table, ..), (by_library, by_sql)) in LEFT.iter().zip(told[0].iter().zip(told_by)) {
            // Each call publishes its own floor.
            if (by, *table) != (By::Calls, "queue_floor") {
                assert_eq!(by_library, by_sql, "{by:?}: {verdict}, {dead_to:?}, {settings:?}");
            }
        }
    }
}

fn settings() -> TopicSettings {
    TopicSettings { retry: RetryPolicy::Fixed(HOUR), ..TopicSettings::default() }
}

#[tokio::test]
async fn every_verdict_leaves_what_the_library_leaves() {
    for verdict in VERDICTS {
        settle_all_ways(&settings(), None, verdict, "no: \"å\" \\ \n \u{1} 🦀").await;
    }
}

#[tokio::test]
async fn every_verdict_leaves_it_where_the_topic_keeps_remembers_and_traces_all() {
    let settings = TopicSettings {
        on_done: OnDone::Keep(Duration::from_millis(90_500)),
        ledger_window: Some(HOUR),
        searchable: Some(HOUR),
        trace: Sampling::ALL,
        max_attempts: 1,
        ..settings()
    };
    for verdict in VERDICTS {
        settle_all_ways(&settings, None, verdict, &"é".repeat(6000)).await;
    }
}

#[tokio::test]
async fn a_dead_letter_goes_to_the_topic_of_dead_letters_as_the_librarys_does() {
    for searchable in [None, Some(HOUR)] {
        let settings = TopicSettings { searchable, ..settings() };
        for other in ["max_attempts = 16", "kind = 'stream', searchable_ms = 1000"] {
            settle_all_ways(&settings, Some(other), "dead-letter", "never").await;
        }
    }
}

#[tokio::test]
async fn a_retry_policy_is_read_as_the_library_reads_it() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let procedure = format!("queue_retry_wait__{}", procedures::checksum());
    let ladder = format!("ladder{}", " 1s".repeat(300));
    for text in [
        "exponential 1s..1h",
        "exponential 1500ms..1d",
        "exponential 1500ms..1day",
        "exponential 1s...1h",
        "exponential 1h..1s",
        "exponential 1s",
        "exponential 1s..1h 2s",
        "exponential",
        "fixed 1h30m",
        "fixed 1.5h",
        "fixed 1.1234567s",
        "fixed 1.123s",
        "fixed 0.1h",
        "fixed 1.5ms",
        "fixed 05s",
        "fixed 1e3s",
        "fixed -1s",
        "fixed 90",
        "fixed  1s",
        "fixed 1s ",
        "fixed 1M",
        "fixed 1m",
        "fixed 30",
        "fixed s",
        "fixed 1s 2s",
        "fixed",
        "fixed 10years",
        "fixed 1ms",
        "fixed 999us",
        "fixed 99999999999999999999s",
        "ladder 10s 30s 1m",
        "  ladder \t 90s 1500ms ",
        "ladder 1w 2d 3h 4m 5s 6000ms",
        "ladder 1week 2days 3hours 4mins",
        "ladder 10s soon",
        "ladder 10s 0s",
        "ladder",
        "sometimes 1s",
        "Fixed 1s",
        "",
        "å",
        &ladder,
    ] {
        let policy = Headers::from_iter([("queue-retry", text)]).retry().ok().flatten();
        for failures in [1, 2, 3, 13, 64, 4_000_000_000_u32] {
            let call = format!("CALL {procedure}(?, ?, @queue_wait)");
            conn.exec_drop(&call, (text.as_bytes(), failures)).await.unwrap();
            let wait: Option<u64> = conn.query_first("SELECT @queue_wait").await.unwrap().unwrap();
            let wait = wait.map(Duration::from_micros);
            let Some(policy) = &policy else {
                assert_eq!(wait, None, "{text:?}");
                continue;
            };
            let (wait, ceiling) = (wait.unwrap_or_default(), policy.ceiling(failures));
            let jitter = matches!(policy, RetryPolicy::Exponential { .. });
            let least = if jitter { ceiling / 2 } else { ceiling };
            assert!(least <= wait && wait <= ceiling, "{text:?} {failures}: {wait:?}");
        }
        let call = format!("CALL {procedure}(?, 0, @queue_wait)");
        conn.exec_drop(&call, (text.as_bytes(),)).await.unwrap();
        let shortest: Option<u64> = conn.query_first("SELECT @queue_wait").await.unwrap().unwrap();
        let shortest = shortest.map(Duration::from_micros);
        assert_eq!(shortest, policy.map(|policy| policy.shortest()), "{text:?}");
    }
}

/// Headers may be any bytes, from any client.
#[tokio::test]
async fn headers_that_cannot_be_read_leave_the_topics_policy() {
    let limit = TopicSettings { max_attempts: 2, ..settings() };
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    for (headers, minutes) in [
        ("x'ff7b'", Some(60)),
        ("'no json'", Some(60)),
        ("'[1]'", Some(60)),
        ("'{}'", Some(60)),
        (&*format!("'{deep}'"), Some(60)),
        (r#"'{"queue-retry":"soon","queue-max-attempts":"many"}'"#, Some(60)),
        (r#"'{"queue-max-attempts":"0"}'"#, Some(60)),
        (r#"'{"queue-retry":"fixed 2h"}'"#, Some(120)),
        (r#"'{"queue-max-attempts":" 1 "}'"#, None),
    ] {
        let mut scene = Scene::with(&limit).await;
        scene.enqueue(1).await;
        scene.sql(&format!("UPDATE queue_message SET headers = {headers}")).await;
        let mut consumer = SqlConsumer::new(scene.db.url()).await;
        let claimed = consumer.claim(1).await;
        let outcome = consumer.settle(&claimed[0], "retry").await;
        assert_eq!(outcome, if minutes.is_some() { "retry" } else { "dead-letter" }, "{headers}");
        let due = "SELECT COALESCE(MAX(TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at + INTERVAL 30 SECOND)), 0) FROM queue_scheduled";
        assert_eq!(scene.number(due).await, minutes.unwrap_or(0), "{headers}");
    }
}
