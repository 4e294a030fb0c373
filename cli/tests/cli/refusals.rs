use std::net::TcpListener;

use rowmq_test::TestDatabase;

use crate::run::{Ended, Rowmq};

#[tokio::test]
async fn an_unknown_topic_is_named_with_how_to_create_it() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
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
        let sentence = rowmq.refuse(command);
        let expected = "There is no topic 'Mail': create it with `rowmq topic create Mail`.";
        assert_eq!(sentence, expected, "{command:?}");
    }
}

#[tokio::test]
async fn an_oversized_body_is_refused_before_it_is_sent() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail", "--body-limit", "10"]);
    let sentence = rowmq.refuse(&["enqueue", "mail", "12345678901"]);
    assert!(sentence.starts_with("A body of 11 bytes is too large"), "{sentence}");
    assert!(sentence.contains("--body-limit"), "{sentence}");
    let sentence = rowmq.run_with(&["enqueue", "mail", "-"], &[0; 1 << 20]).refused(1);
    assert!(sentence.contains("standard input is too large"), "{sentence}");
    rowmq.say(&["enqueue", "mail", "1234567890"]);
    assert_eq!(rowmq.json(&["stats", "mail"])[0]["unsettled"], 1);
}

#[tokio::test]
async fn a_body_limit_beyond_the_servers_packet_is_refused() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let create = ["topic", "create", "mail", "--body-limit", "1GiB"];
    let sentence = rowmq.refuse(&create);
    assert!(sentence.contains("max_allowed_packet"), "{sentence}");
    rowmq.say(&["topic", "create", "mail"]);
    let sentence = rowmq.refuse(&["topic", "set", "mail", "--body-limit", "1GiB"]);
    assert!(sentence.contains("max_allowed_packet"), "{sentence}");
}

#[tokio::test]
async fn a_paused_topic_says_how_to_open_it() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["topic", "pause", "mail", "--enqueue"]);
    let sentence = rowmq.refuse(&["enqueue", "mail", "x"]);
    assert!(sentence.contains("takes no messages now"), "{sentence}");
    assert!(sentence.contains("`rowmq topic resume mail`"), "{sentence}");
    rowmq.say(&["topic", "resume", "mail"]);
    rowmq.say(&["enqueue", "mail", "x"]);
}

#[tokio::test]
async fn a_topic_that_exists_is_not_created_again() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    let sentence = rowmq.refuse(&["topic", "create", "mail"]);
    assert!(sentence.contains("`rowmq topic set mail`"), "{sentence}");
}

#[test]
fn wrong_values_are_usage_errors_of_one_sentence() {
    let rowmq = Rowmq::at_text("mysql://u:p@127.0.0.1:1/q");
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
        let sentence = rowmq.run(command).refused(2);
        assert!(sentence.contains(part), "{command:?}: {sentence}");
    }
}

#[tokio::test]
async fn what_can_be_switched_off_is_off_by_none_and_by_off() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let on = ["--max-run-time", "1h", "--max-depth", "9", "--rate", "9/1s", "--trace", "all"];
    rowmq.say(&[&["topic", "create", "mail"][..], &on].concat());
    for word in ["none", "off"] {
        let flags = ["--max-run-time", "--max-depth", "--rate", "--trace", "--dead-letter-topic"];
        let options: Vec<_> = flags.iter().flat_map(|flag| [*flag, word]).collect();
        let topic = rowmq.json(&[&["topic", "set", "mail"][..], &options].concat());
        for name in ["max_run_time_ms", "max_depth", "rate", "dead_letter_topic"] {
            assert!(topic[name].is_null(), "{word}: {name} of {topic}");
        }
        assert_eq!(topic["trace"], "off", "{word}");
        rowmq.say(&[&["topic", "set", "mail"][..], &on].concat());
    }
}

#[test]
fn the_help_lists_the_commands_in_groups() {
    let help = Rowmq::at_text("").run(&["--help"]).succeeded();
    let headings = ["\nSet up:\n", "\nTopics:\n", "\nMessages:\n", "\nWatch:\n", "\nOptions:\n"];
    let places: Vec<_> = headings.iter().map(|heading| help.find(heading)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{help}");
    assert!(help.contains("  scheduled    List and reschedule") && help.contains("--url-file"));
}

#[test]
fn missing_arguments_are_usage_errors() {
    let rowmq = Rowmq::at_text("mysql://u:p@127.0.0.1:1/q");
    let commands: [&[&str]; 5] =
        [&[], &["enqueue", "mail"], &["topic", "set", "mail"], &["nothing"], &["stats", "--url=x"]];
    for command in commands {
        let ended = rowmq.run(command);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{command:?}");
        assert!(ended.err.contains("Usage: rowmq"), "{command:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn a_key_longer_than_its_column_is_refused() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    let key = "k".repeat(256);
    let sentence = rowmq.refuse(&["enqueue", "mail", "x", "--key", &key]);
    assert_eq!(sentence, "The key has 256 bytes, at most 255 fit.");
    let sentence = rowmq.refuse(&["enqueue", "mail", "--file", "/no/such/file"]);
    assert!(sentence.starts_with("Cannot read /no/such/file: "), "{sentence}");
}

#[tokio::test]
async fn a_wrong_account_or_database_is_told_apart_and_the_password_never_shown() {
    let database = TestDatabase::new().await;
    let account = database.account(&["ALL ON {}.*"]).await;
    let wrong_password = account.expose().replace(":test@", ":geheim@");
    assert_ne!(wrong_password, account.expose());
    let accounts =
        [Rowmq::at_text(&wrong_password), Rowmq::at(&database.url_as("nobody", "geheim"))];
    let commands: [&[&str]; 4] = [&["stats"], &["doctor"], &["migrate"], &["enqueue", "mail", "x"]];
    for rowmq in accounts {
        for command in commands {
            let sentence = rowmq.refuse(command);
            assert!(sentence.starts_with("Cannot connect to "), "{sentence}");
            assert!(sentence.contains("check the account and its password"), "{sentence}");
            assert!(!sentence.contains("geheim"), "{sentence}");
        }
    }
    let missing = database.url().with_database("queue_test_none").expect("a URL");
    let sentence = Rowmq::at(&missing).refuse(&["stats"]);
    assert!(sentence.contains("create the database or correct the URL"), "{sentence}");
}

#[tokio::test]
async fn an_account_that_may_only_read_is_told_what_to_grant() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let rowmq = Rowmq::at(&database.account(&["SELECT ON {}.*"]).await);
    rowmq.say(&["stats"]);
    let sentence = rowmq.refuse(&["enqueue", topic.name.as_str(), "x"]);
    assert!(sentence.contains("command denied to user"), "{sentence}");
    assert!(sentence.contains("; grant the account what it needs"), "{sentence}");
}

#[test]
fn a_server_that_does_not_listen_is_named() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("an address").port()
    };
    let sentence = Rowmq::at_text(&format!("mysql://u:geheim@127.0.0.1:{port}/q"));
    let sentence = sentence.refuse(&["stats"]);
    assert!(sentence.starts_with(&format!("Cannot connect to 127.0.0.1:{port}: ")), "{sentence}");
    assert!(sentence.contains("check that the server runs"), "{sentence}");
    assert!(!sentence.contains("geheim"), "{sentence}");
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let rowmq = Rowmq::at_text(&format!("mysql://u:p@127.0.0.1:{port}/q"));
    assert!(rowmq.refuse(&["stats"]).contains("no answer within 5 s"));
}

#[test]
fn a_url_that_is_none_is_told_with_an_example_and_never_shown() {
    for url in ["postgres://u:geheim@h/q", "mysql://u:geheim@h", "u:geheim@h/q", "geheim"] {
        let sentence = Rowmq::at_text(url).refuse(&["stats"]);
        assert!(sentence.starts_with("The database URL is not usable: "), "{sentence}");
        assert!(sentence.contains("mysql://user:password@host:3306/database"), "{sentence}");
        assert!(!sentence.contains("geheim"), "{sentence}");
    }
    let none = Rowmq::at_text("").refuse(&["stats"]);
    assert!(none.starts_with("No server is named: set ROWMQ_URL="), "{none}");
}

#[test]
fn a_variable_of_before_the_name_is_refused_with_its_new_one() {
    let rowmq = Rowmq::at_text("");
    let refused = |variable: &str, value: &str| {
        let mut command = rowmq.command(&["stats"]);
        Ended::of(command.env(variable, value)).refused(1)
    };
    let former = refused("QUEUE_URL", "mysql://u:geheim@h/q");
    assert_eq!(former, "QUEUE_URL is not read, it may be another program's: call it ROWMQ_URL");
    let former = refused("QUEUE_CONFIG", "/etc/queue/queue.toml");
    assert_eq!(former, "QUEUE_CONFIG is called ROWMQ_CONFIG now: rename it");
}

#[tokio::test]
async fn the_url_is_found_in_a_file_a_credential_and_the_configuration() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let rowmq = Rowmq::at_text("");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("rowmq-url"), format!("{}\n", database.url().expose())).expect("written");
    std::fs::write(path("rowmq.toml"), "url_file = 'rowmq-url'\n[consumer]\n").expect("written");
    let lists = |mut command: std::process::Command| {
        let output = command.output().expect("rowmq runs");
        String::from_utf8_lossy(&output.stdout).contains("mail")
    };
    let list = ["topic", "list"];
    let mut credential = rowmq.command(&list);
    credential.env("CREDENTIALS_DIRECTORY", folder.path());
    assert!(lists(credential));
    for (option, variable, name) in
        [("--url-file", "ROWMQ_URL_FILE", "rowmq-url"), ("--config", "ROWMQ_CONFIG", "rowmq.toml")]
    {
        let mut by_option = rowmq.command(&list);
        by_option.arg(option).arg(path(name));
        assert!(lists(by_option), "{option}");
        let mut by_variable = rowmq.command(&list);
        by_variable.env(variable, path(name));
        assert!(lists(by_variable), "{variable}");
    }
}
