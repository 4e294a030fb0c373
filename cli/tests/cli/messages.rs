use rowmq_core::codec::{Encoding, Gzip};
use rowmq_core::{NewMessage, store};
use rowmq_test::TestDatabase;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn a_message_that_is_there_already_is_told_with_its_id() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail", "--dedupe-window", "24h"]);
    let shown = rowmq.say(&["topic", "show", "mail"]);
    assert!(cells(&shown).iter().flatten().any(|cell| *cell == "1day"), "{shown}");
    let given = ["enqueue", "mail", "m", "--msg-id", "019fc0de-0000-7000-8000-000000000001"];
    let unique = ["enqueue", "mail", "m", "--unique", "k", "--unique-for", "1h"];
    let replaced = ["enqueue", "mail", "m", "--unique", "r", "--on-conflict", "replace"];
    for (command, word) in
        [(&given[..], "duplicate"), (&unique[..], "duplicate"), (&replaced[..], "replaced")]
    {
        let id = rowmq.say(command);
        assert_eq!(rowmq.say(command), format!("{} {word}\n", id.trim()));
    }
    rowmq.say(&["topic", "set", "mail", "--dedupe-window", "none"]);
    assert_eq!(rowmq.say(&given), format!("{}\n", given[4]));
    rowmq.say(&["topic", "delete", "mail", "--purge", "--yes"]);
    // A topic with the same name does not have them.
    rowmq.say(&["topic", "create", "mail", "--dedupe-window", "24h"]);
    for command in [&given[..], &unique[..], &replaced[..]] {
        assert!(!rowmq.say(command).contains(' '), "{command:?}");
    }
}

#[tokio::test]
async fn a_message_arrives_with_all_that_was_given() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    let msg_id = "019fc0de-0000-7000-8000-000000000001";
    let printed = rowmq.say(&[
        "enqueue",
        "mail",
        "hello",
        "--priority",
        "2",
        "--key",
        "k",
        "--biz-id",
        "b",
        "--header",
        "a=1=2",
        "--header",
        "b=",
        "--retry",
        "ladder 90s 2h",
        "--max-attempts",
        "5",
        "--msg-id",
        msg_id,
    ]);
    assert_eq!(printed, format!("{msg_id}\n"));
    let mut conn = database.connect().await;
    let messages = store::inspect::peek(&mut conn, topic.id, 10).await.expect("read");
    let [message] = &messages[..] else { panic!("one message: {messages:?}") };
    assert_eq!(message.msg_id.to_string(), msg_id);
    assert_eq!(message.body, b"hello");
    assert_eq!(message.priority.level(), 2);
    assert_eq!(message.key.as_deref(), Some("k"));
    assert_eq!(message.biz_id.as_deref(), Some("b"));
    assert_eq!(message.headers.get("a"), Some("1=2"));
    assert_eq!(message.headers.get("b"), Some(""));
    assert_eq!(message.headers.get("queue-retry"), Some("ladder 90s 2h"));
    assert_eq!(message.headers.get("queue-max-attempts"), Some("5"));
}

#[tokio::test]
async fn bodies_from_files_and_standard_input_arrive_byte_for_byte() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("body");
    std::fs::write(&file, &bytes).expect("written");
    let file = file.to_str().expect("a path");
    let first = rowmq.json(&["enqueue", "mail", "--file", file]);
    let second = rowmq.run_with(&["enqueue", "mail", "-"], &bytes).succeeded();
    rowmq.say(&["enqueue", "mail", ""]);
    let mut conn = database.connect().await;
    let messages = store::inspect::peek(&mut conn, topic.id, 10).await.expect("read");
    assert!(messages[0].body == bytes && messages[1].body == bytes);
    assert_eq!(messages[2].body, b"");
    assert_eq!(first["msg_id"], messages[0].msg_id.to_string());
    assert_eq!(second.trim(), messages[1].msg_id.to_string());
}

#[tokio::test]
async fn peek_shows_messages_in_order_of_handling_and_bodies_only_when_asked() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.say(&["peek", "mail"]).contains("holds no message"));
    rowmq.say(&["enqueue", "mail", "second", "--header", "h=\u{1b}[31m"]);
    rowmq.say(&["enqueue", "mail", "first", "--priority", "0"]);
    rowmq.run_with(&["enqueue", "mail", "-"], b"\x1b\xff").succeeded();

    let table = rowmq.say(&["peek", "mail", "--body"]);
    assert!(!table.contains('\u{1b}'), "nothing steers the terminal: {table}");
    let bodies: Vec<_> = cells(&table).iter().map(|row| *row.last().expect("cells")).collect();
    assert_eq!(bodies, ["first", "second", "0x1bff"]);
    let plain = rowmq.say(&["peek", "mail", "-n", "1"]);
    assert!(!plain.contains("first") && !plain.contains("BODY"), "{plain}");
    assert_eq!(plain.lines().count(), 2);

    let messages = rowmq.json(&["peek", "mail", "--body"]);
    assert_eq!(messages[0]["body"], "first");
    assert_eq!(messages[0]["priority"], 0);
    assert_eq!(messages[1]["headers"]["h"], "\u{1b}[31m");
    assert_eq!(messages[2]["body_hex"], "1bff");
    let messages = rowmq.json(&["peek", "mail"]);
    assert_eq!(messages[0]["body_bytes"], 5);
    assert_eq!(messages[0].get("body"), None);
}

#[tokio::test]
async fn a_long_body_is_cut_in_the_table_and_whole_for_scripts() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    let long = "é".repeat(500);
    rowmq.say(&["enqueue", "mail", &long]);
    let table = rowmq.say(&["peek", "mail", "--body"]);
    assert!(table.contains(&format!("{}…", "é".repeat(120))), "{table}");
    assert_eq!(rowmq.json(&["peek", "mail", "--body"])[0]["body"], long);
}

#[tokio::test]
async fn a_compressed_body_is_shown_decoded_and_one_of_an_unknown_codec_as_it_is_stored() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let text = "again and again, ".repeat(100);
    let gzip = Encoding::none().then(Gzip::default());
    let compressed = NewMessage::new(text.clone()).encoded(&gzip).expect("encoded");
    let sealed = NewMessage::new(b"\xff\x00".as_slice()).with_header("content-encoding", "vault");
    let mut conn = database.connect().await;
    let messages = [compressed.clone(), sealed];
    rowmq_core::enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    let rowmq = Rowmq::on(&database);
    let shown = rowmq.say(&["peek", "mail", "--body"]);
    assert!(shown.contains("again and again, again") && shown.contains("0xff00"), "{shown}");
    let json = rowmq.json(&["peek", "mail", "--body"]);
    assert_eq!(json[0]["body"], text);
    assert_eq!(json[0]["body_bytes"], compressed.body.len());
    assert_eq!(json[1]["body_hex"], "ff00");
    let id = compressed.msg_id.to_string();
    let found = rowmq.say(&["find", "mail", &id, "--body"]);
    assert!(found.contains("again and again"), "{found}");
}
