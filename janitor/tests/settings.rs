//! The configuration of a process, as its binary reads it: every kind of error, and HUP.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rowmq_test::TestDatabase;

fn janitor(folder: &Path, toml: &str) -> Command {
    let file = folder.join("rowmq.toml");
    std::fs::write(&file, toml).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-janitor"));
    for name in ["ROWMQ_URL", "ROWMQ_URL_FILE", "CREDENTIALS_DIRECTORY", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.current_dir(folder).env("ROWMQ_CONFIG", "rowmq.toml").stdin(Stdio::null());
    command
}

/// Returns what `--check` reports for a wrong configuration: exit code 2 and one sentence.
fn refused(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.arg("--check").output().expect("it runs");
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(stdout.is_empty());
    assert_eq!(said.lines().count(), 1, "{said}");
    said.trim().strip_prefix("rowmq-janitor: ").expect("its name comes first").to_owned()
}

const URL: &str = "url = 'mysql://u:geheim@127.0.0.1/q'\n";

#[test]
fn wrong_settings_of_each_kind_are_one_sentence_with_the_place_and_the_fix() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = |setting: &str| format!("{URL}[janitor]\n{setting}\n");
    for (setting, sentence) in [
        ("lese = '3s'", "rowmq.toml:3: [janitor] has no setting 'lese'; is 'lease' meant?"),
        (
            "lease = '1s'",
            "rowmq.toml:3: 'lease' is 1000 ms: the server counts whole seconds, use 2s or more",
        ),
        (
            "deaths_per_second = 0",
            "rowmq.toml:3: 'deaths_per_second' is 0: no claim would ever be rescued, use 1 or more",
        ),
        (
            "audit_retention = '500ms'",
            "rowmq.toml:3: 'audit_retention' is 500 ms: the server counts whole seconds, \
             use 1s or more, or none",
        ),
        (
            "audit_retention = 'never'",
            "rowmq.toml:3: 'audit_retention' is 'never': expected number at 0; or `none`",
        ),
        ("sweep = true", "rowmq.toml:3: 'sweep' is 'true': expected number at 0"),
        (
            "metrics = 'all'",
            "rowmq.toml:3: 'metrics' is 'all': it looks like 127.0.0.1:9464, [::1]:9464 or 9464",
        ),
        ("log_format = 'xml'", "rowmq.toml:3: 'log_format' is 'xml': use one of text, json"),
        (
            "log = 'rowmq=loud'",
            "rowmq.toml:3: 'log' is 'rowmq=loud': it looks like info, or info,rowmq_core=debug",
        ),
    ] {
        assert_eq!(refused(&mut janitor(folder.path(), &table(setting))), sentence);
    }
    let misspelt = refused(janitor(folder.path(), URL).env("ROWMQ_JANITOR_LEASSE", "3s"));
    assert_eq!(
        misspelt,
        "The variable ROWMQ_JANITOR_LEASSE is no setting; is 'ROWMQ_JANITOR_LEASE' meant?"
    );
    let wrong = refused(janitor(folder.path(), URL).env("ROWMQ_JANITOR_LEASE", "long"));
    assert_eq!(wrong, "ROWMQ_JANITOR_LEASE: 'lease' is 'long': expected number at 0");
    let range = refused(janitor(folder.path(), URL).env("ROWMQ_JANITOR_LEASE", "1s"));
    assert!(range.starts_with("ROWMQ_JANITOR_LEASE: 'lease' is 1000 ms"), "{range}");
    let former = refused(janitor(folder.path(), URL).env("QUEUE_JANITOR_LEASE", "5s"));
    assert_eq!(former, "QUEUE_JANITOR_LEASE is called ROWMQ_JANITOR_LEASE now: rename it");
    let option = refused(janitor(folder.path(), URL).args(["--lease", "1s"]));
    assert!(option.starts_with("--lease: 'lease' is 1000 ms"), "{option}");
}

#[test]
fn a_wrong_server_of_each_kind_is_one_sentence_without_the_password() {
    let folder = tempfile::tempdir().expect("a folder");
    for (toml, sentence) in [
        ("", "No server is named: set ROWMQ_URL="),
        ("url = 'mysql://u:geheim@h'", "In rowmq.toml:1: "),
        ("\nurl_file = 'none'", "rowmq.toml:2: Cannot read the server's URL from none"),
        ("url = 'x'\nurl_file = 'y'", "rowmq.toml:2: the file has both url and url_file"),
        ("url = mysql://u:geheim@h/q", "rowmq.toml:1: this is not TOML"),
    ] {
        let said = refused(&mut janitor(folder.path(), toml));
        assert!(said.starts_with(sentence) && !said.contains("geheim"), "{said}");
    }
}

#[test]
fn check_shows_what_holds_and_from_where_and_never_the_password() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("url"), "mysql://u:geheim@db.example/q").expect("written");
    let toml = "url_file = 'url'\n[janitor]\nlease = '5s'\nsweep = '1s'\n";
    let mut command = janitor(folder.path(), toml);
    command.env("ROWMQ_JANITOR_SWEEP", "2s").args(["--rescue-grace", "3s", "--check"]);
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = String::from_utf8([stdout, stderr].concat()).expect("text");
    assert!(status.success() && !said.contains("geheim"), "{said}");
    let lines: Vec<String> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "server q on db.example:3306, TLS, verified url",
        "lease 5s rowmq.toml:3",
        "sweep 2s ROWMQ_JANITOR_SWEEP",
        "rescue_grace 3s --rescue-grace",
        "deaths_per_second 10 default",
        "The configuration is right; nothing was started.",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line} in {said}");
    }
}

/// A janitor whose log is read line by line.
struct Running {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    seen: String,
}

impl Running {
    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while self.log.read_line(&mut line).expect("a log") > 0 {
            self.seen.push_str(&line);
            if line.contains(words) {
                return;
            }
            line.clear();
        }
        panic!("it ended without a word of '{words}': {}", self.seen);
    }

    fn hang_up(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-HUP", &id]).status().expect("kill");
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hup_changes_what_is_logged_and_a_wrong_file_changes_nothing() {
    let database = TestDatabase::new().await;
    let folder = tempfile::tempdir().expect("a folder");
    let write = |text: &str| std::fs::write(folder.path().join("rowmq.toml"), text);
    let url = folder.path().join("url");
    std::fs::write(&url, database.url().expose()).expect("written");
    let base = format!("url_file = '{}'\n[janitor]\nlog = ", url.display());
    // At first, the log does not show the lines about the signal.
    let quiet = format!("{base}'error,rowmq_janitor=info'");
    let mut child = janitor(folder.path(), &quiet).stderr(Stdio::piped()).spawn().expect("started");
    let log = BufReader::new(child.stderr.take().expect("piped"));
    let mut running = Running { child, log, seen: String::new() };
    running.wait_for("Sweeping.");
    write(&format!("{base}'loud=='")).expect("written");
    running.hang_up();
    running.wait_for("the old one stays");
    assert!(running.seen.contains("rowmq.toml:3: 'log' is 'loud=='"), "{}", running.seen);
    write(&quiet).expect("written");
    std::fs::write(&url, "mysql://u:geheim@elsewhere.example/q").expect("written");
    running.hang_up();
    running.wait_for("only the account and its password can change");
    std::fs::write(&url, database.url().expose()).expect("written");
    write(&format!("{base}'info'")).expect("written");
    running.hang_up();
    running.wait_for("has been read again");
    assert!(!running.seen.contains("geheim"));
}
