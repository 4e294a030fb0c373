//! Groups with a filter, read by SQL.

use rowmq_core::model::OffsetSpec;
use rowmq_core::{NewMessage, Topic, enqueue_all, store};

use super::super::Stream;
use super::super::filters::wanting;
use crate::sql_consumer::bodies;

#[tokio::test]
async fn a_filter_selects_for_a_session_what_it_selects_for_a_member() {
    let headers = [
        "NULL",
        r#"'{"type":"created"}'"#,
        r#"'{"type":"paid","region":"eu"}'"#,
        r#"'{"type":"created,paid"}'"#,
        r#"'{"type":"Created"}'"#,
        r#"'{"type":"","region":"us"}'"#,
        r#"'{"type":5,"a b!\"c":"x"}'"#,
        r#"'{"type":null}'"#,
        r#"'{"type":["created"]}'"#,
        r#"'["created"]'"#,
        "'no JSON'",
        "0xff",
        "CONCAT(REPEAT('[', 101), REPEAT(']', 101))",
        r#"'{"region":"größe"}'"#,
        r#"'{"region":"gr\\u00f6\\u00dfe"}'"#,
    ];
    let filters: [&[&str]; 9] = [
        &["type"],
        &["type=created"],
        &["type=created,paid"],
        &["type!=created,paid"],
        &["type=5"],
        &["type", "region!=us"],
        &["region=größe"],
        &["malformed-headers"],
        &["type!=null", "type=["],
    ];
    for pages in [true, false] {
        let mut stream = Stream::new(1).await;
        stream.sql(&format!("UPDATE queue_partition SET pages = {pages}")).await;
        for (n, of) in headers.iter().enumerate() {
            stream.enqueue(n..n + 1).await;
            let set = format!("UPDATE queue_message SET headers = {of} WHERE body = '{n}'");
            stream.sql(&set).await;
        }
        stream.sequence().await;
        for (n, filter) in filters.iter().enumerate() {
            let group = |name: &str| format!("{name}{n}");
            let settings = wanting(filter);
            for name in ["l", "s"] {
                stream.group_with(&group(name), false, OffsetSpec::Earliest, &settings).await;
            }
            let name = format!("s@{}", group("l")).parse().unwrap();
            let of_library: Topic = store::topic::existing(&mut stream.conn, &name).await.unwrap();
            let worker = stream.worker().await;
            let mut expected = Vec::new();
            for _ in 0..3 {
                let claimed = worker.claim_range(of_library.group().unwrap(), 20).await.unwrap();
                expected.extend(crate::scene::bodies(&claimed.deliveries));
            }
            let mut session = stream.session().await;
            let got = session.drain(&format!("s@{}", group("s")), 2).await;
            assert_eq!(got, expected, "{filter:?}, pages: {pages}");
            worker.stop().await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_group_does_not_want_is_passed_a_thousand_at_a_time() {
    let mut stream = Stream::new(1).await;
    let settings = wanting(&["type=wanted"]);
    stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
    let kind = |n: usize| if n % 1000 == 999 { "wanted" } else { "other" };
    let message = |n: usize| NewMessage::new(n.to_string()).with_header("type", kind(n));
    let sent: Vec<_> = (0..12_000).map(message).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    while stream.sequence().await > 0 {}
    let mut session = stream.session().await;
    let first = session.claim_of("s@g", 1).await;
    assert_eq!(bodies(&first), ["999"]);
    assert_eq!(stream.number("SELECT next_offset FROM queue_cursor").await, 1000);
    session.settle(&first[0], "ack").await;
    assert_eq!(session.drain("s@g", 3).await.len(), 11);
    assert_eq!(stream.of_group().await, (0, 0, 0, 0));
}
