//! `rowmq-consumer --check`: every kind of error it finds without a server, each with one sentence.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn check(folder: &Path, toml: &str, arguments: &[&str]) -> (Option<i32>, String) {
    std::fs::write(folder.join("rowmq.toml"), toml).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"));
    for name in ["ROWMQ_URL_FILE", "CREDENTIALS_DIRECTORY", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .envs([("ROWMQ_CONFIG", "rowmq.toml"), ("ROWMQ_URL", "mysql://u:geheim@127.0.0.1/q")])
        .stdin(Stdio::null())
        .args(["--check"])
        .args(arguments);
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    (status.code(), String::from_utf8([stdout, stderr].concat()).expect("text"))
}

#[test]
fn what_is_wrong_is_one_sentence_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let exec = ["exec", "mail", "--", "true"];
    let webhook = ["webhook", "mail", "https://example.com/"];
    let cases: [(&str, &[&str], &str); 11] = [
        ("beat = '9s'", &exec, "rowmq.toml:2: beat is 9000 ms: use at most a quarter of the lease"),
        ("safety_poll = '0s'", &exec, "rowmq.toml:2: safety_poll is 0 ms: use more than nothing"),
        ("concurrency = 0", &exec, "rowmq.toml:2: concurrency is 0: use 1 or more"),
        ("max_batch = 0", &exec, "rowmq.toml:2: max_batch is 0: use 1 or more"),
        ("pause_for = '0s'", &exec, "rowmq.toml:2: pause_for is 0 ms: use more than nothing"),
        (
            "pause_on_errors = '50'",
            &exec,
            "rowmq.toml:2: 'pause_on_errors' is '50': an error rate is",
        ),
        ("decoded_limit = 0", &exec, "rowmq.toml:2: 'decoded_limit' is '0'"),
        ("claim_strategy = 'x'", &exec, "use one of skip-locked, update-then-select, update-limit"),
        ("member = 'a b'", &exec, "rowmq.toml:2: 'member' is 'a b'"),
        ("secret_file = 'none'", &webhook, "Cannot read the secret from none"),
        ("allow = ['10.0.0.0/99']", &webhook, "rowmq.toml:2: 'allow' is '10.0.0.0/99'"),
    ];
    for (setting, arguments, sentence) in cases {
        let (code, said) = check(folder.path(), &format!("[consumer]\n{setting}\n"), arguments);
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(sentence) && !said.contains("geheim"), "{said}");
    }
}

#[test]
fn what_is_right_is_shown_for_the_command_that_would_run() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("secret"), "streng geheim").expect("written");
    let toml = "[consumer]\nconcurrency = 2\nsecret_file = 'secret'\nauto_create_topics = true\n";
    let (code, said) = check(folder.path(), toml, &["webhook", "mail", "https://example.com/t0k"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("geheim") && !said.contains("t0k"), "{said}");
    for (name, value, place) in [
        ("concurrency", "2", "rowmq.toml:2"),
        ("secret_file", "secret", "rowmq.toml:3"),
        ("auto_create_topics", "true", "rowmq.toml:4"),
        ("timeout", "60s", "default"),
        ("server", "q", "ROWMQ_URL"),
    ] {
        let shown = said.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words[..2] == [name, value] && words.last() == Some(&place)
        });
        assert!(shown, "{name} in {said}");
    }
}
