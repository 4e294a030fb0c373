//! What a session does where the log has lost a message, or cannot be read.

use super::super::Stream;
use super::super::retention::by_time;
use crate::scene::numbers;
use crate::sql_consumer::bodies;

#[tokio::test]
async fn a_damaged_page_is_a_dead_letter_of_the_group_and_stops_no_session() {
    for column in ["entries", "body"] {
        let mut stream = Stream::new(1).await;
        stream.group("g", false).await;
        stream.enqueue(0..130).await;
        stream.sequence().await;
        stream.damage(127, column).await;
        let mut session = stream.session().await;
        let expected: Vec<_> = (0..64).chain(128..130).map(|n| n.to_string()).collect();
        // Few at a time: the page is passed at once all the same.
        assert_eq!(session.drain("s@g", 7).await, expected, "{column}");
        let whole = "SELECT COUNT(*) FROM queue_dead d JOIN queue_log l ON l.offset_no = 127 \
             AND d.body = CONCAT(l.entries, l.body) AND d.headers LIKE '%queue-damaged-page%'";
        assert_eq!(stream.number(whole).await, 1, "{column}");
        assert_eq!(stream.of_group().await, (0, 0, 0, 63));
    }
}

#[tokio::test]
async fn a_page_of_a_newer_release_is_refused_and_nothing_is_passed() {
    let mut stream = Stream::new(1).await;
    stream.group("g", false).await;
    stream.enqueue(0..130).await;
    stream.sequence().await;
    stream.set_format(2).await;
    let mut session = stream.session().await;
    assert_eq!(session.refused("CALL queue_claim('s@g', 100, NULL)").await, 31032);
    let next = "SELECT next_offset FROM queue_cursor";
    assert_eq!((stream.number(next).await, stream.of_group().await), (0, (0, 0, 0, 0)));
    // Programs of that release are there, or the page is put right.
    stream.set_format(1).await;
    assert_eq!(session.drain("s@g", 100).await.len(), 130);
}

#[tokio::test]
async fn what_retention_has_removed_counts_as_lost() {
    let mut stream = Stream::new(1).await;
    stream.group("g", false).await;
    stream.enqueue(0..300).await;
    stream.sequence().await;
    stream.retain(by_time(true)).await;
    stream.age(128).await;
    assert_eq!(stream.prune_log().await, 172);
    let mut session = stream.session().await;
    let expected: Vec<_> = (128..300).map(|n| n.to_string()).collect();
    assert_eq!(session.drain("s@g", 100).await, expected);
    assert_eq!(stream.of_group().await, (0, 0, 0, 128));
    // A range of a replay, most of which is gone: one call finds what is left.
    for ordered in [false, true] {
        let name = if ordered { "o" } else { "u" };
        stream.group(name, ordered).await;
        let replayed = format!(
            "INSERT INTO queue_range (group_id, partition_no, mark, hi) \
             SELECT id, 0, 0, 130 FROM queue_topic WHERE name = 's@{name}'"
        );
        stream.sql(&replayed).await;
        stream.sql("UPDATE queue_cursor SET next_offset = 300 WHERE next_offset < 300").await;
        let mut session = stream.session().await;
        assert_eq!(bodies(&session.claim_of(&format!("s@{name}"), 1).await), ["128"]);
    }
}

#[tokio::test]
async fn what_is_missing_and_was_not_removed_is_not_passed() {
    for ordered in [false, true] {
        let mut stream = Stream::in_rows(1).await;
        stream.group("g", ordered).await;
        stream.enqueue(0..5).await;
        stream.sequence().await;
        stream.sql("CREATE TABLE aside AS SELECT * FROM queue_log WHERE offset_no = 0").await;
        stream.sql("DELETE FROM queue_log WHERE offset_no = 0").await;
        let mut session = stream.session().await;
        let claim = "CALL queue_claim('s@g', 3, NULL)";
        assert_eq!(session.tried(claim).await.unwrap_err(), 1317, "ordered: {ordered}");
        assert_eq!(stream.number("SELECT next_offset FROM queue_cursor").await, 0);
        stream.sql("INSERT INTO queue_log SELECT * FROM aside").await;
        assert_eq!(session.drain("s@g", 3).await, numbers(0..5));
    }
}
