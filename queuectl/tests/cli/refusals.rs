use std::net::TcpListener;

use queue_test::TestDatabase;

use crate::run::Queuectl;

#[tokio::test]
async fn an_unknown_topic_is_named_with_how_to_create_it() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    let commands: [&[&str]; 8] = [
        &["topic", "show", "Mail"],
        &["topic", "set", "Mail", "--max-attempts", "2"],
        &["topic", "pause", "Mail"],
        &["topic", "resume", "Mail"],
        &["topic", "delete", "Mail"],
        &["enqueue", "Mail", "x"],
        &["peek", "Mail"],
        &["stats", "Mail"],
    ];
    database.topic("mail").await;
    for command in commands {
        let sentence = queuectl.refuse(command);
        let expected = "There is no topic 'Mail': create it with `queuectl topic create Mail`.";
        assert_eq!(sentence, expected, "{command:?}");
    }
}

#[tokio::test]
async fn an_oversized_body_is_refused_before_it_is_sent() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail", "--body-limit", "10"]);
    let sentence = queuectl.refuse(&["enqueue", "mail", "12345678901"]);
    assert!(sentence.starts_with("A body of 11 bytes is too large"), "{sentence}");
    assert!(sentence.contains("--body-limit"), "{sentence}");
    let sentence = queuectl.run_with(&["enqueue", "mail", "-"], &[0; 1 << 20]).refused(1);
    assert!(sentence.contains("standard input is too large"), "{sentence}");
    queuectl.say(&["enqueue", "mail", "1234567890"]);
    assert_eq!(queuectl.json(&["stats", "mail"])[0]["unsettled"], 1);
}

#[tokio::test]
async fn a_body_limit_beyond_the_servers_packet_is_refused() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    let create = ["topic", "create", "mail", "--body-limit", "1GiB"];
    let sentence = queuectl.refuse(&create);
    assert!(sentence.contains("max_allowed_packet"), "{sentence}");
    queuectl.say(&["topic", "create", "mail"]);
    let sentence = queuectl.refuse(&["topic", "set", "mail", "--body-limit", "1GiB"]);
    assert!(sentence.contains("max_allowed_packet"), "{sentence}");
}

#[tokio::test]
async fn a_paused_topic_says_how_to_open_it() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    queuectl.say(&["topic", "pause", "mail", "--enqueue"]);
    let sentence = queuectl.refuse(&["enqueue", "mail", "x"]);
    assert!(sentence.contains("takes no messages now"), "{sentence}");
    assert!(sentence.contains("`queuectl topic resume mail`"), "{sentence}");
    queuectl.say(&["topic", "resume", "mail"]);
    queuectl.say(&["enqueue", "mail", "x"]);
}

#[tokio::test]
async fn a_topic_that_exists_is_not_created_again() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    let sentence = queuectl.refuse(&["topic", "create", "mail"]);
    assert!(sentence.contains("`queuectl topic set mail`"), "{sentence}");
}

#[test]
fn wrong_values_are_usage_errors_of_one_sentence() {
    let queuectl = Queuectl::at_text("mysql://u:p@127.0.0.1:1/q");
    let long = "k".repeat(65);
    let cases: [(&[&str], &str); 11] = [
        (&["topic", "create", "a b"], "'a b' is not a name: use 1 to 64 of the characters"),
        (&["topic", "create", ""], "is not a name"),
        (&["enqueue", &long, "x"], "is not a name"),
        (&["enqueue", "mail", "x", "--priority", "10"], "use 0 (first) to 9 (last)"),
        (&["enqueue", "mail", "x", "--header", "a"], "a header looks like NAME=VALUE"),
        (&["enqueue", "mail", "x", "--msg-id", "7"], "--msg-id"),
        (&["topic", "create", "a", "--body-limit", "4MB"], "KiB, MiB or GiB"),
        (&["topic", "create", "a", "--max-attempts", "0"], "--max-attempts"),
        (&["topic", "create", "a", "--retry", "ladder"], "the ladder has no steps; write"),
        (&["topic", "create", "a", "--max-run-time", "0s"], "500ms, 90s, 1h 30m"),
        (&["peek", "mail", "-n", "0"], "1..=1000"),
    ];
    for (command, part) in cases {
        let sentence = queuectl.run(command).refused(2);
        assert!(sentence.contains(part), "{command:?}: {sentence}");
    }
}

#[test]
fn missing_arguments_are_usage_errors() {
    let queuectl = Queuectl::at_text("mysql://u:p@127.0.0.1:1/q");
    let commands: [&[&str]; 5] =
        [&[], &["enqueue", "mail"], &["topic", "set", "mail"], &["nothing"], &["stats", "--url=x"]];
    for command in commands {
        let ended = queuectl.run(command);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{command:?}");
        assert!(ended.err.contains("Usage: queuectl"), "{command:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn a_key_longer_than_its_column_is_refused() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let queuectl = Queuectl::on(&database);
    let key = "k".repeat(256);
    let sentence = queuectl.refuse(&["enqueue", "mail", "x", "--key", &key]);
    assert_eq!(sentence, "The key has 256 bytes, at most 255 fit.");
    let sentence = queuectl.refuse(&["enqueue", "mail", "--file", "/no/such/file"]);
    assert!(sentence.starts_with("Cannot read /no/such/file: "), "{sentence}");
}

#[tokio::test]
async fn a_wrong_account_or_database_is_told_apart_and_the_password_never_shown() {
    let database = TestDatabase::new().await;
    let account = database.account(&["ALL ON {}.*"]).await;
    let wrong_password = account.expose().replace(":test@", ":geheim@");
    assert_ne!(wrong_password, account.expose());
    let accounts =
        [Queuectl::at_text(&wrong_password), Queuectl::at(&database.url_as("nobody", "geheim"))];
    let commands: [&[&str]; 4] = [&["stats"], &["doctor"], &["migrate"], &["enqueue", "mail", "x"]];
    for queuectl in accounts {
        for command in commands {
            let sentence = queuectl.refuse(command);
            assert!(sentence.starts_with("Cannot connect to "), "{sentence}");
            assert!(sentence.contains("check the account and its password"), "{sentence}");
            assert!(!sentence.contains("geheim"), "{sentence}");
        }
    }
    let missing = database.url().with_database("queue_test_none").expect("a URL");
    let sentence = Queuectl::at(&missing).refuse(&["stats"]);
    assert!(sentence.contains("create the database or correct the URL"), "{sentence}");
}

#[tokio::test]
async fn an_account_that_may_only_read_is_told_what_to_grant() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let queuectl = Queuectl::at(&database.account(&["SELECT ON {}.*"]).await);
    queuectl.say(&["stats"]);
    let sentence = queuectl.refuse(&["enqueue", topic.name.as_str(), "x"]);
    assert!(sentence.contains("command denied to user"), "{sentence}");
    assert!(sentence.contains("; grant the account what it needs"), "{sentence}");
}

#[test]
fn a_server_that_does_not_listen_is_named() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("an address").port()
    };
    let sentence = Queuectl::at_text(&format!("mysql://u:geheim@127.0.0.1:{port}/q"));
    let sentence = sentence.refuse(&["stats"]);
    assert!(sentence.starts_with(&format!("Cannot connect to 127.0.0.1:{port}: ")), "{sentence}");
    assert!(sentence.contains("check that the server runs"), "{sentence}");
    assert!(!sentence.contains("geheim"), "{sentence}");
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let queuectl = Queuectl::at_text(&format!("mysql://u:p@127.0.0.1:{port}/q"));
    assert!(queuectl.refuse(&["stats"]).contains("no answer within 5 s"));
}

#[test]
fn a_url_that_is_none_is_told_with_an_example_and_never_shown() {
    for url in ["postgres://u:geheim@h/q", "mysql://u:geheim@h", "u:geheim@h/q", "geheim"] {
        let sentence = Queuectl::at_text(url).refuse(&["stats"]);
        assert!(sentence.starts_with("The database URL is not usable: "), "{sentence}");
        assert!(sentence.contains("mysql://user:password@host:3306/database"), "{sentence}");
        assert!(!sentence.contains("geheim"), "{sentence}");
    }
    let none = Queuectl::at_text("").refuse(&["stats"]);
    assert!(none.starts_with("No server is named: set QUEUE_URL="), "{none}");
}

#[tokio::test]
async fn the_url_is_found_in_a_file_a_credential_and_the_configuration() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let queuectl = Queuectl::at_text("");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("queue-url"), format!("{}\n", database.url().expose())).expect("written");
    std::fs::write(path("queue.toml"), "url_file = 'queue-url'\n[consumer]\n").expect("written");
    let lists = |mut command: std::process::Command| {
        let output = command.output().expect("queuectl runs");
        String::from_utf8_lossy(&output.stdout).contains("mail")
    };
    let list = ["topic", "list"];
    let mut credential = queuectl.command(&list);
    credential.env("CREDENTIALS_DIRECTORY", folder.path());
    assert!(lists(credential));
    for (option, variable, name) in
        [("--url-file", "QUEUE_URL_FILE", "queue-url"), ("--config", "QUEUE_CONFIG", "queue.toml")]
    {
        let mut by_option = queuectl.command(&list);
        by_option.arg(option).arg(path(name));
        assert!(lists(by_option), "{option}");
        let mut by_variable = queuectl.command(&list);
        by_variable.env(variable, path(name));
        assert!(lists(by_variable), "{variable}");
    }
}
