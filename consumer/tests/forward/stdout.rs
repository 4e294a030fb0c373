use std::io::Read;

use rowmq_core::{Headers, NewMessage, enqueue};
use rustix::process::Signal;
use serde_json::json;

use crate::forward::sending::{Scene, at_least_once, ids, parsed};

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_a_line_with_all_it_has() {
    let scene = Scene::new().await;
    let mut text = NewMessage::new("a\n\"b\"").with_key("k").with_biz_id("o-1");
    text.headers = Headers::from_iter([("tenant", "7")]);
    let bytes = NewMessage::new(vec![0xff, 0x00]).with_key(vec![0xfe]);
    let mut conn = scene.database.connect().await;
    for message in [&text, &bytes] {
        enqueue(&mut conn, &scene.topic.name, message).await.expect("enqueued");
    }
    let mut forward = scene.forward(&["stdout", "work"]);
    let (lines, _out) = forward.lines(2).await.expect("lines");
    scene.drained().await;
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    let enqueued_at = first["enqueued_at"].as_str().expect("a time");
    let expected = json!({
        "msg_id": text.msg_id, "topic": "work", "delivery_no": 1, "enqueued_at": enqueued_at,
        "key": "k", "biz_id": "o-1", "headers": { "tenant": "7" }, "body": "a\n\"b\"",
    });
    assert_eq!(*first, expected);
    assert_eq!(second["msg_id"], json!(bytes.msg_id));
    assert_eq!((&second["body_base64"], &second["key_base64"]), (&json!("/wA="), &json!("/g==")));
    assert!(second.get("body").is_none() && second.get("headers").is_none(), "{second}");
    forward.signal(Signal::TERM);
    let (status, said) = forward.ended().await;
    assert!(status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_killed_in_the_middle_loses_nothing_and_repeats_by_id() {
    let scene = Scene::new().await;
    let sent = scene.enqueue((0..5000).map(|n| format!("message {n:0100}"))).await;
    // The test reads no further, so the kill hits it in the middle of a batch.
    let mut killed = scene.forward(&["stdout", "work"]);
    let (mut lines, mut out) = killed.lines(1234).await.expect("lines");
    killed.signal(Signal::KILL);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("read");
    // A partial line has not arrived.
    let whole = rest.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.extend(whole.map(parsed));
    let before = ids(&lines);
    assert!(before.len() < sent.len(), "it was killed too late");
    assert_eq!(before, sent[..before.len()], "in order");
    let mut second = scene.forward(&["stdout", "work"]);
    let reading = second.lines(usize::MAX);
    scene.drained().await;
    second.signal(Signal::TERM);
    let (lines, _) = reading.await.expect("lines");
    let (status, said) = second.ended().await;
    assert!(status.success(), "{said}");
    let again = at_least_once(&sent, &[before, ids(&lines)].concat());
    println!("killed in the middle of 5000: {again} arrived again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_the_forward_and_leaves_the_messages() {
    let scene = Scene::new().await;
    let sent = scene.enqueue((0..3000).map(|n| format!("message {n:0100}"))).await;
    let mut forward = scene.forward(&["stdout", "work"]);
    let (lines, out) = forward.lines(500).await.expect("lines");
    drop(out);
    let (status, said) = forward.ended().await;
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("rowmq-consumer: standard output takes no more"), "{said}");
    assert_eq!(lines.len(), 500);
    let (left, claimed) = scene.left().await;
    assert!(left > 0 && left <= 3000 - 400, "{left} of {} are left", sent.len());
    assert_eq!(claimed, 0, "released");
    let mut conn = scene.database.connect().await;
    let messages = rowmq_core::store::inspect::peek(&mut conn, scene.topic.id, 5000).await;
    assert!(messages.expect("peeked").iter().all(|m| m.failures == 0 && !m.suspect));
}
