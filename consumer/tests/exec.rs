//! The exec handler with real programs, run directly and under the supervisor.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmq_consumer::exec::{ExecError, ExecHandler, ExecOptions};
use rowmq_core::TraceParent;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::Headers;
use tempfile::TempDir;

use crate::message::{all_bytes, context, context_with};

/// Long enough for a busy machine; a test waits this long only if it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// Names the directory for [`a_consumer_that_runs_until_it_is_killed`].
const ROLE: &str = "EXEC_TEST_DIRECTORY";
/// The same for [`a_consumer_that_its_program_stops`].
const STOPPED: &str = "EXEC_TEST_STOPPED";

/// Returns a shell script as a program; its `$1` is the directory.
pub(crate) fn script(text: &str, directory: &Path) -> ExecOptions {
    let argv: [OsString; 5] =
        ["sh".into(), "-c".into(), text.into(), "sh".into(), directory.into()];
    ExecOptions::new(argv)
}

pub(crate) fn supervised(options: ExecOptions) -> ExecOptions {
    ExecOptions { supervisor: Some(env!("CARGO_BIN_EXE_rowmq-consumer").into()), ..options }
}

/// Returns handlers for the same program, run both ways.
fn both_ways(options: ExecOptions) -> [ExecHandler; 2] {
    [options.clone(), supervised(options)].map(|options| ExecHandler::new(options).unwrap())
}

async fn run(text: &str) -> Result<(), HandlerError> {
    ExecHandler::new(script(text, Path::new("/"))).unwrap().handle(&context("")).await
}

#[tokio::test]
async fn a_program_and_what_it_starts_cannot_read_what_is_hidden() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("secrets")).unwrap();
    for file in ["secrets/url", "secrets/public"] {
        std::fs::write(at(file), "text").unwrap();
    }
    std::os::unix::fs::symlink(at("secrets/url"), at("link")).unwrap();
    let text = r#"
        cd "$1" && cat secrets/public || exit 65
        for file in secrets/url link /proc/self/root"$1"/secrets/url; do
            sh -c 'cat "$1"' sh "$file" && exit 65
        done
        exit 79"#;
    let hidden = vec![at("secrets/url")];
    let options = ExecOptions { hidden, ..script(text, directory.path()) };
    for handler in both_ways(options) {
        let handled = handler.handle(&context("")).await;
        assert!(matches!(handled, Err(HandlerError::Discard(_))), "{handled:?}");
    }
    // A file hidden from the program is not hidden from this process.
    assert_eq!(std::fs::read_to_string(at("secrets/url")).unwrap(), "text");
}

/// Returns the text of an error that requests a retry.
fn retry_text(result: Result<(), HandlerError>) -> String {
    match result {
        Err(HandlerError::Retry(error)) => error.to_string(),
        other => panic!("expected a retry, got {other:?}"),
    }
}

/// Polls until `found` returns a value.
async fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the process id that a script writes to a file, once it is there.
pub(crate) async fn pid_in(file: PathBuf) -> u32 {
    eventually("a process id", || std::fs::read_to_string(&file).ok()?.trim().parse().ok()).await
}

/// Returns whether the process still runs; an unreaped zombie does not.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X'))
}

pub(crate) async fn gone(pid: u32) {
    eventually("the end of a process", || (!is_running(pid)).then_some(())).await;
}

/// Handles the message in a task, so that the test can watch it.
fn start(
    handler: ExecHandler,
    context: Context,
) -> tokio::task::JoinHandle<Result<(), HandlerError>> {
    tokio::spawn(async move { handler.handle(&context).await })
}

#[tokio::test]
async fn the_body_arrives_byte_for_byte() {
    let directory = TempDir::new().unwrap();
    let large = all_bytes().repeat(16 * 1024);
    for body in [Vec::new(), all_bytes(), large] {
        for handler in both_ways(script(r#"cat > "$1/body""#, directory.path())) {
            handler.handle(&context(body.clone())).await.unwrap();
            assert!(std::fs::read(directory.path().join("body")).unwrap() == body);
        }
    }
}

#[tokio::test]
async fn the_exit_code_decides() {
    for handler_code in [0, 1, 2, 64, 65, 66, 75, 78, 79, 80, 126, 127, 137, 255] {
        for handler in both_ways(script(&format!("exit {handler_code}"), Path::new("/"))) {
            let result = handler.handle(&context("")).await;
            let as_documented = match handler_code {
                0 => result.is_ok(),
                65 => matches!(result, Err(HandlerError::Dead(_))),
                79 => matches!(result, Err(HandlerError::Discard(_))),
                _ => matches!(result, Err(HandlerError::Retry(_))),
            };
            assert!(as_documented, "{handler_code}: {result:?}");
        }
    }
}

#[tokio::test]
async fn the_last_line_of_errors_is_the_time_of_a_snooze_or_a_retry() {
    let result = run("echo not yet >&2; echo 10m >&2; exit 80").await;
    let time = Duration::from_secs(600);
    assert!(matches!(result, Err(HandlerError::Snooze(wait)) if wait == time), "{result:?}");
    let result = run("echo 1h 30m >&2; exit 81").await;
    let wait = Duration::from_secs(5400);
    assert!(matches!(result, Err(HandlerError::RetryAfter(time, _)) if time == wait), "{result:?}");
    match run("echo closed >&2; echo 2031-02-03T06:05:06.5+02:00 >&2; exit 81").await {
        Err(HandlerError::RetryAt(at, error)) => {
            assert_eq!(at.to_rfc3339(), "2031-02-03T04:05:06.500+00:00");
            assert!(error.to_string().contains("exit code 81: closed"), "{error}");
        }
        other => panic!("expected a time, got {other:?}"),
    }
    for (code, last) in [(80, "soon"), (80, "2031-02-03T06:05:06Z"), (81, "tomorrow"), (81, "")] {
        let text = retry_text(run(&format!("echo '{last}' >&2; exit {code}")).await);
        assert!(text.contains("last line on standard error is no time such as 10m"), "{text}");
    }
}

#[tokio::test]
async fn a_signal_is_a_failure_and_named() {
    let [direct, under_supervisor] = both_ways(script("kill -9 $$", Path::new("/")));
    let text = retry_text(direct.handle(&context("")).await);
    assert_eq!(text, "the program was ended by signal 9");
    let text = retry_text(under_supervisor.handle(&context("")).await);
    assert_eq!(text, "the program ended with exit code 137 (as after signal 9)");
}

#[tokio::test]
async fn the_error_carries_the_end_of_what_the_program_said() {
    let text = retry_text(run("echo working; echo first >&2; echo last >&2; exit 3").await);
    assert_eq!(text, "the program ended with exit code 3: first\nlast");
    let text = retry_text(run("echo only on standard output; exit 3").await);
    assert_eq!(text, "the program ended with exit code 3: only on standard output");
    let text =
        retry_text(run("head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 3").await);
    assert!(text.ends_with("xxend") && text.contains(": …x"), "{text}");
    assert!(text.len() < 2048 + 100, "{}", text.len());
}

#[tokio::test]
async fn the_last_line_of_errors_is_the_reason_of_a_discard() {
    let reason = |result| match result {
        Err(HandlerError::Discard(reason)) => reason,
        other => panic!("expected a discard, got {other:?}"),
    };
    assert_eq!(reason(run("echo noise >&2; echo too old >&2; exit 79").await), "too old");
    assert_eq!(reason(run("exit 79").await), "the program gave no reason");
}

#[tokio::test]
async fn the_program_sees_the_message_and_nothing_else_of_the_consumer() {
    let directory = TempDir::new().unwrap();
    // The environment that the shell was started with: for its children it adds variables.
    let mut options = script(r#"cat /proc/$$/environ > "$1/environment""#, directory.path());
    options.environment.set.push(("GREETING".into(), "hello there".into()));
    let message = context_with("", |delivery| {
        delivery.key = Some(b"customer \xff".to_vec());
        delivery.biz_id = Some(b"zero\0byte".to_vec());
        delivery.headers = Headers::from_iter([("trace", "a\"b\0\u{e9}")]);
    });
    for handler in both_ways(options) {
        handler.handle(&message).await.unwrap();
        let found = std::fs::read(directory.path().join("environment")).unwrap();
        let mut found: Vec<&[u8]> =
            found.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).collect();
        found.retain(|entry| {
            !["PATH=", "LANG=", "HOME="].iter().any(|name| entry.starts_with(name.as_bytes()))
        });
        found.sort_unstable();
        let msg_id = format!("ROWMQ_MSG_ID={}", message.delivery.msg_id);
        let expected: [&[u8]; 7] = [
            b"GREETING=hello there",
            b"ROWMQ_DELIVERY_NO=3",
            b"ROWMQ_FAILURES=2",
            "ROWMQ_HEADERS={\"trace\":\"a\\\"b\\u0000\u{e9}\"}".as_bytes(),
            b"ROWMQ_KEY=customer \xff",
            msg_id.as_bytes(),
            b"ROWMQ_TOPIC=mail",
        ];
        assert_eq!(found, expected, "{}", String::from_utf8_lossy(&found.join(&b'\n')));
    }
}

#[tokio::test]
async fn a_program_that_reads_nothing_and_writes_much_does_not_hang() {
    let body = vec![b'x'; 4 * 1024 * 1024];
    let flood = "head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2; exit 0";
    for text in ["exit 0", "exec <&-; exit 0", flood] {
        for handler in both_ways(script(text, Path::new("/"))) {
            handler.handle(&context(body.clone())).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_timeout_ends_the_children_of_the_program_too() {
    let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let text = r#"sleep 600 & echo $! > "$1/pid"; echo slow >&2; wait"#;
    // Long enough for a busy machine to start a shell.
    let timeout = Duration::from_secs(15);
    let [direct, under_supervisor] = directories
        .each_ref()
        .map(|directory| ExecOptions { timeout, ..script(text, directory.path()) });
    let runs = [direct, supervised(under_supervisor)]
        .map(|options| start(ExecHandler::new(options).unwrap(), context("")));
    for (run, directory) in runs.into_iter().zip(&directories) {
        let text = retry_text(run.await.unwrap());
        assert_eq!(text, "the program ran longer than 15000 ms and was ended: slow");
        gone(pid_in(directory.path().join("pid")).await).await;
    }
}

#[tokio::test]
async fn a_program_that_ignores_term_is_killed_after_the_grace() {
    let directory = TempDir::new().unwrap();
    let text = r#"trap "" TERM; sleep 600 & echo $! > "$1/pid"; while :; do wait; done"#;
    let options =
        ExecOptions { kill_grace: Duration::from_millis(50), ..script(text, directory.path()) };
    for handler in both_ways(options) {
        let message = context("");
        let cancelled = message.cancelled.clone();
        let handling = start(handler, message);
        let pid = pid_in(directory.path().join("pid")).await;
        cancelled.cancel();
        assert!(matches!(handling.await.unwrap(), Err(HandlerError::Release)));
        gone(pid).await;
        std::fs::remove_file(directory.path().join("pid")).unwrap();
    }
}

#[tokio::test]
async fn a_cancelled_program_may_clean_up_and_its_message_is_released() {
    let directory = TempDir::new().unwrap();
    // Many programs exit with 0 on TERM: this does not mean that the message was handled.
    let text = r#"trap 'echo cleaned > "$1/cleaned"; exit 0' TERM; echo $$ > "$1/pid"; while :; do sleep 0.01; done"#;
    let options = ExecOptions { kill_grace: PATIENCE, ..script(text, directory.path()) };
    for handler in both_ways(options) {
        let message = context("");
        let cancelled = message.cancelled.clone();
        let handling = start(handler, message);
        pid_in(directory.path().join("pid")).await;
        cancelled.cancel();
        assert!(matches!(handling.await.unwrap(), Err(HandlerError::Release)));
        for file in ["pid", "cleaned"] {
            std::fs::remove_file(directory.path().join(file)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_program_cancelled_at_its_deadline_has_failed() {
    let message = Context { deadline: Some(Instant::now()), ..context("") };
    message.cancelled.cancel();
    let handler = ExecHandler::new(ExecOptions::new(["sleep", "600"])).unwrap();
    let text = retry_text(handler.handle(&message).await);
    assert!(text.contains("when the message's time was up"), "{text}");
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let directory = TempDir::new().unwrap();
    for handler in both_ways(script(r#"sleep 600 & echo $! > "$1/pid""#, directory.path())) {
        handler.handle(&context("")).await.unwrap();
        gone(pid_in(directory.path().join("pid")).await).await;
        std::fs::remove_file(directory.path().join("pid")).unwrap();
    }
}

#[tokio::test]
async fn a_process_that_left_the_group_cannot_hold_the_run_open() {
    let directory = TempDir::new().unwrap();
    let text = r#"setsid sleep 600 & echo $! > "$1/pid"; while ! grep -q "^Name:.sleep" /proc/$!/status; do :; done"#;
    let handler = ExecHandler::new(script(text, directory.path())).unwrap();
    handler.handle(&context("")).await.unwrap();
    let escaped = pid_in(directory.path().join("pid")).await;
    assert!(is_running(escaped), "it has left the group");
    assert!(Command::new("kill").arg(escaped.to_string()).status().unwrap().success());
}

#[tokio::test]
async fn a_run_that_is_dropped_kills_the_program() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ > "$1/pid"; exec sleep 600"#;
    for handler in both_ways(script(text, directory.path())) {
        let handling = start(handler, context(""));
        let pid = pid_in(directory.path().join("pid")).await;
        handling.abort();
        gone(pid).await;
        std::fs::remove_file(directory.path().join("pid")).unwrap();
    }
}

#[tokio::test]
async fn a_program_whose_supervisor_is_killed_ends_with_it() {
    let directory = TempDir::new().unwrap();
    let text = r#"echo $$ > "$1/pid"; kill -9 $PPID; exec sleep 600"#;
    let handler = ExecHandler::new(supervised(script(text, directory.path()))).unwrap();
    let text = retry_text(handler.handle(&context("")).await);
    assert_eq!(text, "the program was ended by signal 9");
    gone(pid_in(directory.path().join("pid")).await).await;
}

#[tokio::test]
async fn many_programs_run_at_once() {
    let handler = Arc::new(ExecHandler::new(supervised(ExecOptions::new(["cat"]))).unwrap());
    let runs: Vec<_> = (0..64)
        .map(|_| {
            let handler = Arc::clone(&handler);
            tokio::spawn(async move { handler.handle(&context(all_bytes())).await })
        })
        .collect();
    for run in runs {
        run.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_program_that_has_gone_away_is_a_failure_with_its_name() {
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("handler");
    std::fs::copy("/bin/true", &program).unwrap();
    let [direct, under_supervisor] = both_ways(ExecOptions::new([&program]));
    std::fs::remove_file(&program).unwrap();
    let text = retry_text(direct.handle(&context("")).await);
    assert_eq!(text, format!("the program {} could not be started", program.display()));
    let text = retry_text(under_supervisor.handle(&context("")).await);
    assert!(text.contains(&format!("the program {} could not be started", program.display())));
}

#[test]
fn a_program_that_cannot_run_is_refused_at_the_start() {
    let refused = |argv: &[&str]| ExecHandler::new(ExecOptions::new(argv)).unwrap_err();
    assert!(matches!(refused(&[]), ExecError::NoProgram));
    assert!(matches!(refused(&[""]), ExecError::NoProgram));
    assert!(matches!(refused(&["no-such-program"]), ExecError::NotFound { .. }));
    assert!(matches!(refused(&["/etc/passwd"]), ExecError::NotExecutable { .. }));
    assert!(matches!(refused(&["sh", "a\0b"]), ExecError::Unsayable { .. }));
    let mut options = ExecOptions::new(["sh"]);
    options.environment.set.push(("A=B".into(), "".into()));
    assert!(matches!(ExecHandler::new(options), Err(ExecError::Unsayable { .. })));
}

#[test]
fn a_supervisor_started_by_hand_refuses() {
    for args in [&["1", "true"][..], &["x"], &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"))
            .arg("exec-child")
            .args(args)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(127));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text, "exec-child is run by a consumer with an exec handler, never by hand\n");
    }
}

/// The other half of the next test, which starts it; otherwise it does nothing.
#[tokio::test]
async fn a_consumer_that_runs_until_it_is_killed() {
    let Some(directory) = std::env::var_os(ROLE) else { return };
    let text =
        r#"trap "" TERM; sleep 600 & echo $! > "$1/child"; echo $$ > "$1/program"; wait; wait"#;
    let handler = ExecHandler::new(supervised(script(text, Path::new(&directory)))).unwrap();
    drop(handler.handle(&context("")).await);
}

/// History H23.
#[tokio::test]
async fn no_child_outlives_a_consumer_killed_with_kill_9() {
    nothing_outlives("exec::a_consumer_that_runs_until_it_is_killed", ROLE).await;
}

/// Starts this program again as a consumer: the test of this name, whose program writes two process
/// ids to the directory that the variable `role` names. Then kills it.
pub(crate) async fn nothing_outlives(test: &str, role: &str) {
    let directory = TempDir::new().unwrap();
    let mut consumer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(role, directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = pid_in(directory.path().join("child")).await;
    let program = pid_in(directory.path().join("program")).await;
    assert!(is_running(child) && is_running(program));
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    gone(program).await;
    gone(child).await;
}

/// Not a test but a process for the next one, which starts this program again. Its program stops
/// the process first, and then reads the body.
#[tokio::test]
async fn a_consumer_that_its_program_stops() {
    let Some(directory) = std::env::var_os(STOPPED) else { return };
    let text = r#"kill -STOP $PPID; cat > "$1/part"; mv "$1/part" "$1/body""#;
    let handler = ExecHandler::new(script(text, Path::new(&directory))).unwrap();
    drop(handler.handle(&context(all_bytes().repeat(4 * 1024))).await);
}

/// A dying consumer must not let a program take a partial body for a whole one.
#[tokio::test]
async fn a_program_has_the_whole_body_whatever_becomes_of_its_consumer() {
    let directory = TempDir::new().unwrap();
    let mut consumer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exec::a_consumer_that_its_program_stops"])
        .env(STOPPED, directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let body = directory.path().join("body");
    let read = eventually("the end of the body", || std::fs::read(&body).ok()).await;
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    assert!(read == all_bytes().repeat(4 * 1024));
}

#[tokio::test]
async fn a_program_goes_on_with_the_trace_of_its_message() {
    let parent = TraceParent::start();
    let message = context_with("", |delivery| {
        let headers = [("traceparent", parent.to_string()), ("tracestate", "a=1,b=2".to_owned())];
        delivery.headers = Headers::from_iter(headers);
    });
    let here = message.traceparent().unwrap();
    assert_eq!(here.trace_id(), parent.trace_id());
    let directory = TempDir::new().unwrap();
    let text = r#"printf '%s %s' "$TRACEPARENT" "$TRACESTATE" > "$1/trace""#;
    for handler in both_ways(script(text, directory.path())) {
        handler.handle(&message).await.unwrap();
        let trace = std::fs::read_to_string(directory.path().join("trace")).unwrap();
        assert_eq!(trace, format!("{here} a=1,b=2"));
        handler.handle(&context("")).await.unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("trace")).unwrap(), " ");
    }
    // The next delivery has another span.
    let mut next = (*message.delivery).clone();
    next.delivery_no.0 += 1;
    assert_ne!(next.traceparent().unwrap().span_id(), here.span_id());
}
