//! What the verdicts of handlers leave behind: retry times, snoozes, the history of failed runs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use rowmq_core::handler::{HandlerError, RunOutcome, settlement_for};
use rowmq_core::model::{
    DeadCause, FailedRun, OnDone, RetryPolicy, RowId, Settlement, TopicSettings,
};
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::{dead, topic};
use rowmq_core::worker::Settled;

use crate::moves::promote;
use crate::rescue::crash_and_rescue;
use crate::scene::{Scene, all, claim_n, claim_one_suspect, retry, settle};

fn snooze(delay: Duration) -> Settlement {
    Settlement::Snooze { delay }
}

fn dead_letter(error: &str) -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: error.to_owned() }
}

impl Scene {
    /// Returns the failed runs in the history of `table`'s only message.
    async fn history(&mut self, table: &str) -> Vec<FailedRun> {
        FailedRun::from_stored(self.text(&format!("SELECT history FROM {table}")).await.as_bytes())
    }

    /// Makes every waiting message ready, due or not.
    async fn promote_all(&mut self) {
        self.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
        promote(&mut self.conn, 100).await;
    }
}

#[tokio::test]
async fn a_retry_at_a_time_is_due_then_by_the_servers_clock() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let at = DateTime::parse_from_rfc3339("2031-02-03T04:05:06.123456Z").unwrap().to_utc();
    let end = Settlement::RetryAt { at, error: "not before".to_owned() };
    settle(&worker, all(&claim_n(&worker, scene.topic.id, 1).await, &end)).await;
    let waits = "SELECT CONCAT_WS('/', due_at, failures, last_error) FROM queue_scheduled";
    assert_eq!(scene.text(waits).await, "2031-02-03 04:05:06.123456/1/not before");
    assert_eq!(promote(&mut scene.conn, 10).await, 0);
}

#[tokio::test]
async fn a_time_that_is_over_is_now_and_one_beyond_the_calendar_is_its_last() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let over = Utc::now() - Duration::from_secs(3600);
    let times = [over, DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC];
    for (delivery, at) in got.iter().zip(times) {
        settle(&worker, all([delivery], &Settlement::RetryAt { at, error: String::new() })).await;
    }
    let now = "SELECT COUNT(*) FROM queue_scheduled WHERE due_at BETWEEN \
         UTC_TIMESTAMP(6) - INTERVAL 60 SECOND AND UTC_TIMESTAMP(6)";
    assert_eq!(scene.number(now).await, 2);
    assert_eq!(promote(&mut scene.conn, 10).await, 2);
    let left = scene.text("SELECT due_at FROM queue_scheduled").await;
    assert_eq!(left, "9999-12-31 23:59:59.999999");
}

#[tokio::test]
async fn a_snoozed_message_comes_back_with_nothing_charged_and_no_line_in_its_history() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    for round in 1..=3 {
        let got = claim_n(&worker, scene.topic.id, 1).await;
        assert_eq!((got[0].failures, got[0].delivery_no.0), (1.min(round - 1), round));
        let hour = Duration::from_secs(3600);
        let end = if round == 1 { retry(hour) } else { snooze(hour) };
        settle(&worker, all(&got, &end)).await;
        let later = "SELECT COUNT(*) FROM queue_scheduled WHERE failures = 1 AND due_at \
             BETWEEN UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE AND UTC_TIMESTAMP(6) + INTERVAL 1 HOUR";
        assert_eq!(scene.number(later).await, 1);
        assert_eq!(scene.history("queue_scheduled").await.len(), 1);
        scene.promote_all().await;
    }
}

#[tokio::test]
async fn a_suspect_that_is_snoozed_is_none_any_more() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    crash_and_rescue(&mut scene, dying).await;
    let worker = scene.worker().await;
    let suspect = claim_one_suspect(&worker, scene.topic.id).await;
    settle(&worker, all([&suspect], &snooze(Duration::ZERO))).await;
    let charges = "SELECT CONCAT_WS('/', priority, failures, crashes, suspicions) \
         FROM queue_scheduled";
    assert_eq!(scene.text(charges).await, "5/0/1/0");
}

#[tokio::test]
async fn each_failed_run_leaves_a_line_that_stays_with_the_message_wherever_it_goes() {
    let keep = OnDone::Keep(Duration::from_secs(3600));
    let mut scene = Scene::with(&TopicSettings { on_done: keep, ..Default::default() }).await;
    scene.enqueue(1).await;
    let before = topic::server_time(&mut scene.conn).await.unwrap().and_utc();
    let worker = scene.worker().await;
    let topic = scene.topic.id;
    let dying = scene.worker().await;
    claim_n(&dying, topic, 1).await;
    let dead_id = dying.id();
    crash_and_rescue(&mut scene, dying).await;
    let suspect = claim_one_suspect(&worker, topic).await;
    let odd = "a \"b\"\n\\ ? \u{0} 漢字";
    let end = Settlement::Retry { delay: Duration::ZERO, error: odd.to_owned() };
    settle(&worker, all([&suspect], &end)).await;
    scene.promote_all().await;
    let got = claim_n(&worker, topic, 1).await;
    settle(&worker, all(&got, &Settlement::Release)).await;
    let got = claim_n(&worker, topic, 1).await;
    settle(&worker, all(&got, &dead_letter("never"))).await;

    let told = scene.history("queue_dead").await;
    let of = |run: &FailedRun| (run.delivery_no, run.worker, run.error.clone());
    let lone = "its worker crashed while it ran alone".to_owned();
    let expected = [
        (1, dead_id.0, lone),
        (2, worker.id().0, odd.to_owned()),
        (4, worker.id().0, "never".to_owned()),
    ];
    assert_eq!(told.iter().map(of).collect::<Vec<_>>(), expected);
    let after = topic::server_time(&mut scene.conn).await.unwrap().and_utc();
    assert!(told.is_sorted_by_key(|run| run.at));
    assert!(told[0].at >= before && told[2].at <= after, "{before} {told:?} {after}");

    let row = RowId(scene.number("SELECT id FROM queue_dead").await.unsigned_abs());
    assert_eq!(dead::history(&mut scene.conn, topic, row).await.unwrap(), told);
    scene.sql("BEGIN").await;
    dead::redrive(&mut scene.conn, &RowSet::new([row])).await.unwrap();
    scene.sql("COMMIT").await;
    assert_eq!(scene.history("queue_message").await, told);
    let got = claim_n(&worker, topic, 1).await;
    settle(&worker, vec![Settled::new(&got[0], Settlement::Ack, keep)]).await;
    assert_eq!(scene.history("queue_archive").await, told);
}

/// From any language: through the headers given to the procedure.
#[tokio::test]
async fn a_message_enqueued_by_sql_may_have_a_policy_and_a_limit_of_its_own() {
    let retry = RetryPolicy::Fixed(Duration::from_secs(7));
    let settings = TopicSettings { retry, max_attempts: 9, ..Default::default() };
    let mut scene = Scene::with(&settings).await;
    let worker = scene.worker().await;
    let cases = [
        ("null", 7, false),
        (r#"{"queue-retry":"ladder 10s 30s","queue-max-attempts":"3"}"#, 30, false),
        (r#"{"queue-retry":"ladder 10s 30s","queue-max-attempts":2}"#, 0, true),
        (r#"{"queue-retry":"ladder","queue-max-attempts":null}"#, 7, false),
    ];
    for (headers, wait, dies) in cases {
        let call = format!(r#"CALL queue_send('t', 'x', '{{"headers":{headers}}}')"#);
        scene.sql(&call).await;
        scene.sql("UPDATE queue_message SET failures = 1").await;
        let got = claim_n(&worker, scene.topic.id, 1).await.remove(0);
        let failed = || RunOutcome::Returned(Err(HandlerError::retry("no")));
        let end = settlement_for(failed(), &got, &scene.topic.settings);
        let (delay, error) = (Duration::from_secs(wait), "no".to_owned());
        let cause = DeadCause::Attempts;
        let expected = match dies {
            true => Settlement::DeadLetter { cause, error },
            false => Settlement::Retry { delay, error },
        };
        assert_eq!(end, expected, "{headers}");
        settle(&worker, all([&got], &end)).await;
    }
}

#[tokio::test]
async fn a_message_that_dies_of_crashes_has_one_line_for_each_that_counted() {
    let mut scene = Scene::with(&TopicSettings { max_crashes: 2, ..Default::default() }).await;
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    crash_and_rescue(&mut scene, dying).await;
    let dying = scene.worker().await;
    claim_one_suspect(&dying, scene.topic.id).await;
    assert_eq!(crash_and_rescue(&mut scene, dying).await.dead_lettered, 1);
    let told = scene.history("queue_dead").await;
    let lines: Vec<_> = told.iter().map(|run| (run.delivery_no, run.error.as_str())).collect();
    let dead = "its worker crashed 2 times while it ran alone";
    assert_eq!(lines, [(1, "its worker crashed while it ran alone"), (2, dead)]);
}

#[tokio::test]
async fn a_history_keeps_its_newest_part_within_its_limit() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let long = "é".repeat(2000);
    for run in 1..=40 {
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let error = format!("{run} {long}");
        settle(&worker, all(&got, &Settlement::Retry { delay: Duration::ZERO, error })).await;
        scene.promote_all().await;
    }
    let bytes = scene.number("SELECT LENGTH(history) FROM queue_message").await;
    assert_eq!(bytes, 32_768);
    // Cut at a byte, so it may not be valid text.
    let hex = scene.text("SELECT HEX(history) FROM queue_message").await;
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let stored: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let told = FailedRun::from_stored(&stored);
    let numbers: Vec<_> = told.iter().map(|run| run.delivery_no).collect();
    assert!(numbers.len() > 25, "{numbers:?}");
    let first = 41 - u32::try_from(numbers.len()).unwrap();
    assert_eq!(numbers, (first..=40).collect::<Vec<_>>());
    assert!(told.iter().all(|run| run.error.starts_with(&format!("{} é", run.delivery_no))));
}
