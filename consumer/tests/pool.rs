//! Pools of real programs, run directly and under the supervisor.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rowmq_consumer::exec::{ExecOptions, PoolHandler};
use rowmq_core::TraceParent;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::Headers;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exec::{gone, nothing_outlives, pid_in, script, supervised};
use crate::message::{all_bytes, context, context_with};

/// Names the directory for [`a_consumer_with_a_pool_that_runs_until_it_is_killed`].
const ROLE: &str = "POOL_TEST_DIRECTORY";

/// Returns a pool of a shell script that is ready at once and runs `text` for each message; its
/// `$1` is the directory, `$line` the frame and `$n` its number.
fn pool(text: &str, directory: &Path) -> PoolHandler {
    PoolHandler::new(options(text, directory)).unwrap()
}

fn options(text: &str, directory: &Path) -> ExecOptions {
    let text = format!(
        r#"answer() {{ printf '{{"frame":%d,%s}}\n' $n "$1"; }}
        echo '{{"rowmq_pool":1}}'; n=0
        while read -r line; do n=$((n + 1)); {text}
        done
        echo ended >> "$1/ended""#
    );
    script(&text, directory)
}

fn both_ways(text: &str, directory: &Path) -> [PoolHandler; 2] {
    let options = options(text, directory);
    [options.clone(), supervised(options)].map(|options| PoolHandler::new(options).unwrap())
}

fn lines(directory: &TempDir, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the outcome of one message whose answer ends with `fields`.
async fn answered(fields: &str) -> Result<(), HandlerError> {
    let pool = pool(&format!("answer '{fields}'"), Path::new("/"));
    pool.handle(&context("")).await
}

fn retry_text(result: Result<(), HandlerError>) -> String {
    match result {
        Err(HandlerError::Retry(error)) => error.to_string(),
        other => panic!("expected a retry, got {other:?}"),
    }
}

#[tokio::test]
async fn one_program_takes_one_message_after_another() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ >> "$1/pids"; answer '"verdict":"ack"'"#;
    for pool in both_ways(text, directory.path()) {
        std::fs::write(directory.path().join("pids"), "").unwrap();
        for _ in 0..20 {
            pool.handle(&context("x")).await.unwrap();
        }
        let pids = lines(&directory, "pids");
        assert_eq!(pids.len(), 20);
        assert_eq!(HashSet::<String>::from_iter(pids).len(), 1);
    }
}

#[tokio::test]
async fn there_are_as_many_programs_as_messages_at_once() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ >> "$1/pids"
        while [ $(sort -u "$1/pids" | wc -l) -lt 4 ]; do sleep 0.01; done
        answer '"verdict":"ack"'"#;
    let pool = pool(text, directory.path());
    let messages: Vec<Context> = (0..4).map(|_| context("x")).collect();
    for _ in 0..3 {
        let runs = messages.iter().map(|message| pool.handle(message));
        for handled in futures_util::future::join_all(runs).await {
            handled.unwrap();
        }
    }
    let pids = lines(&directory, "pids");
    assert_eq!((pids.len(), HashSet::<String>::from_iter(pids).len()), (12, 4));
}

#[tokio::test]
async fn a_frame_holds_the_whole_message() {
    let directory = TempDir::new().unwrap();
    let text = r#"printf '%s\n' "$line" >> "$1/frames"; answer '"verdict":"ack"'"#;
    let pool = pool(text, directory.path());
    let parent = TraceParent::start();
    let first = context_with("Zeile 1\nline 2 ü\u{2028}", |delivery| {
        delivery.key = Some(b"ada".to_vec());
        delivery.biz_id = Some(vec![0, 255]);
        delivery.headers = Headers::from_iter([("traceparent", parent.to_string())]);
    });
    let second = context(all_bytes());
    pool.handle(&first).await.unwrap();
    pool.handle(&second).await.unwrap();
    let frames: Vec<Value> =
        lines(&directory, "frames").iter().map(|it| serde_json::from_str(it).unwrap()).collect();
    let expected = json!({
        "frame": 1, "msg_id": first.delivery.msg_id.to_string(), "topic": "mail", "delivery_no": 3,
        "failures": 2, "enqueued_at": first.delivery.enqueued_at, "key": "ada", "biz_id_base64": "AP8=",
        "body": "Zeile 1\nline 2 ü\u{2028}", "headers": {"traceparent": parent.to_string()},
        "traceparent": first.traceparent().unwrap().to_string(),
    });
    assert_eq!(frames[0], expected);
    assert_eq!(frames[1]["frame"], 2);
    assert!(frames[1]["body_base64"].as_str().unwrap().starts_with("AAECAwQ"));
    assert_eq!(frames[1].get("body").or(frames[1].get("key")).or(frames[1].get("headers")), None);
}

#[tokio::test]
async fn a_body_of_megabytes_arrives_and_an_early_answer_does_no_harm() {
    let directory = TempDir::new().unwrap();
    let text = r#"printf '%s' "$line" | wc -c > "$1/size"; answer '"verdict":"ack"'"#;
    pool(text, directory.path()).handle(&context("x".repeat(3 << 20))).await.unwrap();
    let size: usize = lines(&directory, "size")[0].trim().parse().unwrap();
    assert!(size > 3 << 20);
    // This one answers before it reads.
    let text = r#"echo '{"rowmq_pool":1}'; echo '{"frame":1,"verdict":"ack"}'; cat > /dev/null"#;
    let early = PoolHandler::new(script(text, directory.path())).unwrap();
    early.handle(&context("x".repeat(3 << 20))).await.unwrap();
}

#[tokio::test]
async fn the_verdict_decides() {
    assert!(matches!(answered(r#""verdict":"ack""#).await, Ok(())));
    let text = retry_text(answered(r#""verdict":"retry","reason":"no route""#).await);
    assert_eq!(text, "no route");
    let dead = answered(r#""verdict":"dead-letter","reason":"no such order""#).await;
    assert!(matches!(dead, Err(HandlerError::Dead(why)) if why.to_string() == "no such order"));
    let snoozed = answered(r#""verdict":"snooze","delay":"10m""#).await;
    assert!(matches!(snoozed, Err(HandlerError::Snooze(time)) if time.as_secs() == 600));
}

/// After each of them, the next message is handled by a new program.
#[tokio::test]
async fn a_program_that_answers_something_else_is_replaced_and_its_message_has_failed() {
    let directory = TempDir::new().unwrap();
    for (answer, expected) in [
        ("echo hello", "its line \"hello\" is not what it should be"),
        ("n=7; answer '\"verdict\":\"ack\"'", "it answers frame 7, not 1"),
        ("answer '\"verdict\":\"snooze\"'", "a snooze needs a delay"),
        (
            "head -c 70000 /dev/zero | tr '\\0' x; read -r line",
            "its line has more than 65536 bytes",
        ),
        ("echo oh no >&2; exit 0", "ended (exit status: 0) before it answered: oh no"),
        ("echo $$ > \"$1/pid\"; kill -9 $$", "before it answered"),
    ] {
        let text = format!(
            r#"if [ -e "$1/again" ]; then answer '"verdict":"ack"'; else touch "$1/again"; {answer}; fi"#
        );
        for pool in both_ways(&text, directory.path()) {
            std::fs::remove_file(directory.path().join("again")).unwrap_or_default();
            let said = retry_text(pool.handle(&context("x")).await);
            assert!(said.contains(expected), "{answer}: {said}");
            pool.handle(&context("x")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_error_has_what_was_written_during_this_message_only() {
    let text = r#"echo "message $n" >&2; sleep 0.5; if [ $n = 1 ]; then answer '"verdict":"ack"'; else exit 3; fi"#;
    let pool = pool(text, Path::new("/"));
    pool.handle(&context("")).await.unwrap();
    let said = retry_text(pool.handle(&context("")).await);
    assert_eq!(said, "the program ended (exit status: 3) before it answered: message 2");
}

#[tokio::test]
async fn a_message_whose_time_is_up_ends_its_program_and_what_that_has_started() {
    let directory = TempDir::new().unwrap();
    let text =
        r#"trap '' TERM; sleep 600 & echo $! > "$1/child"; echo $$ > "$1/program"; wait; wait"#;
    for supervise in [false, true] {
        let mut options = options(text, directory.path());
        options.timeout = Duration::from_secs(3);
        options.kill_grace = Duration::from_millis(100);
        if supervise {
            options = supervised(options);
        }
        let pool = PoolHandler::new(options).unwrap();
        let said = retry_text(pool.handle(&context("")).await);
        assert_eq!(said, "the program ran longer than 3000 ms and was ended");
        gone(pid_in(directory.path().join("child")).await).await;
        gone(pid_in(directory.path().join("program")).await).await;
    }
}

#[tokio::test]
async fn a_cancelled_message_is_released_and_at_its_deadline_has_failed() {
    let directory = TempDir::new().unwrap();
    // The first message leaves an idle program, so that the second begins at once.
    let text =
        r#"if [ $n = 1 ]; then answer '"verdict":"ack"'; else echo $$ > "$1/pid"; sleep 600; fi"#;
    for past in [false, true] {
        let pool = pool(text, directory.path());
        pool.handle(&context("")).await.unwrap();
        let mut message = context("");
        message.deadline = past.then(Instant::now);
        let cancelled = message.cancelled.clone();
        let pid = directory.path().join("pid");
        let (handled, pid) = tokio::join!(pool.handle(&message), async {
            let pid = pid_in(pid.clone()).await;
            cancelled.cancel();
            pid
        });
        match handled {
            Err(HandlerError::Release) => assert!(!past),
            other => assert!(past && retry_text(other).contains("time was up")),
        }
        gone(pid).await;
        std::fs::remove_file(directory.path().join("pid")).unwrap();
    }
}

#[tokio::test]
async fn a_program_that_never_becomes_ready_fails_no_message() {
    for text in ["exit 1", "echo '{\"rowmq_pool\":2}'; cat", "echo ready; cat", "sleep 600"] {
        let mut options = script(text, Path::new("/"));
        options.timeout = Duration::from_secs(1);
        let handled = PoolHandler::new(options).unwrap().handle(&context("")).await;
        assert!(matches!(handled, Err(HandlerError::Release)), "{text}: {handled:?}");
    }
}

#[tokio::test]
async fn a_message_whose_time_ends_before_a_program_is_ready_has_not_failed() {
    let mut message = context("");
    message.deadline = Some(Instant::now() + Duration::from_secs(2));
    for text in ["exit 1", "sleep 600"] {
        let pool = PoolHandler::new(script(text, Path::new("/"))).unwrap();
        let handled = pool.handle(&message).await;
        assert!(matches!(handled, Err(HandlerError::Release)), "{text}: {handled:?}");
        assert!(message.deadline.is_some_and(|end| Instant::now() < end));
    }
}

#[tokio::test]
async fn an_idle_program_that_ends_costs_no_message() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ > "$1/pid"; answer '"verdict":"ack"'; exit 1"#;
    let pool = pool(text, directory.path());
    for _ in 0..3 {
        pool.handle(&context("")).await.unwrap();
        gone(pid_in(directory.path().join("pid")).await).await;
        // The thread that waits for the program is a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        std::fs::remove_file(directory.path().join("pid")).unwrap();
    }
}

#[tokio::test]
async fn a_program_may_say_that_it_takes_no_other_message() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ >> "$1/pids"; answer '"verdict":"ack","last":true'"#;
    let pool = pool(text, directory.path());
    for _ in 0..3 {
        pool.handle(&context("")).await.unwrap();
    }
    assert_eq!(HashSet::<String>::from_iter(lines(&directory, "pids")).len(), 3);
    // They have time to end by themselves.
    pool.close().await;
    assert_eq!(lines(&directory, "ended").len(), 3);
}

#[tokio::test]
async fn closing_lets_programs_end_and_kills_those_that_do_not() {
    let directory = TempDir::new().unwrap();
    let pool = pool(r#"answer '"verdict":"ack"'"#, directory.path());
    pool.handle(&context("")).await.unwrap();
    pool.close().await;
    assert_eq!(lines(&directory, "ended"), ["ended"]);
    let text = r#"echo $$ > "$1/pid"; answer '"verdict":"ack"'; exec sleep 600"#;
    let mut options = options(text, directory.path());
    options.kill_grace = Duration::from_millis(100);
    let stubborn = PoolHandler::new(options).unwrap();
    stubborn.handle(&context("")).await.unwrap();
    stubborn.close().await;
    gone(pid_in(directory.path().join("pid")).await).await;
}

#[tokio::test]
async fn the_program_sees_nothing_of_the_consumer_but_the_version() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("url"), "secret").unwrap();
    let text = r#"env > "$1/env"; cat "$1/url" > "$1/read"; answer '"verdict":"ack"'"#;
    for supervise in [false, true] {
        let mut options = options(text, directory.path());
        options.hidden = vec![directory.path().join("url")];
        // Beside a hidden file none can be made; these exist before the start.
        for name in ["env", "read"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        if supervise {
            options = supervised(options);
        }
        PoolHandler::new(options).unwrap().handle(&context("")).await.unwrap();
        let names = lines(&directory, "env").into_iter();
        let names = names.map(|it| it.split('=').next().unwrap().to_owned());
        let known = ["PATH", "LANG", "HOME", "ROWMQ_POOL", "PWD", "SHLVL", "_", "OLDPWD"];
        for name in names {
            assert!(known.contains(&name.as_str()), "{name}");
        }
        assert!(lines(&directory, "env").contains(&"ROWMQ_POOL=1".to_owned()));
        assert_eq!(lines(&directory, "read"), [""; 0]);
    }
}

/// The other half of the next test, which starts it; otherwise it does nothing.
#[tokio::test]
async fn a_consumer_with_a_pool_that_runs_until_it_is_killed() {
    let Some(directory) = std::env::var_os(ROLE) else { return };
    let text =
        r#"trap "" TERM; sleep 600 & echo $! > "$1/child"; echo $$ > "$1/program"; wait; wait"#;
    let pool = PoolHandler::new(supervised(options(text, Path::new(&directory)))).unwrap();
    drop(pool.handle(&context("")).await);
}

#[tokio::test]
async fn no_program_of_a_pool_outlives_a_consumer_killed_with_kill_9() {
    nothing_outlives("pool::a_consumer_with_a_pool_that_runs_until_it_is_killed", ROLE).await;
}
