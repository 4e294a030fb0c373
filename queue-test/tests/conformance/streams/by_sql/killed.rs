//! What KILLs at any moment leave of a group that is read by SQL.

use std::sync::atomic::{AtomicBool, Ordering};

use mysql_async::Row;
use rowmq_core::model::OffsetSpec;
use rowmq_core::stream::group::group_settings;
use rowmq_core::{NewMessage, enqueue_all};

use super::super::Stream;
use crate::scene::text;
use crate::sql_consumer::SqlConsumer;
use crate::sql_faults::kill_often;

/// Rolls back until that is done, as the contract asks for after an error.
async fn roll_back(session: &mut SqlConsumer) {
    while session.tried("ROLLBACK").await.is_err() {}
}

/// Handles what a claim returns: `a…` is booked and acked in one transaction, `r…` is given back
/// once and then acked, `d…` is dead-lettered. Returns how many calls were killed.
async fn handle(session: &mut SqlConsumer, limit: u32) -> u32 {
    let rows = match session.tried(&format!("CALL queue_claim('s@g', {limit}, NULL)")).await {
        Ok(rows) => rows,
        Err(number) => {
            assert_killed(number);
            roll_back(session).await;
            return 1;
        }
    };
    let mut killed = 0;
    for row in &rows {
        while let Err(number) = work(session, row).await {
            roll_back(session).await;
            if number == 31015 {
                // Its transaction was committed without an answer.
                break;
            }
            assert_killed(number);
            killed += 1;
        }
    }
    killed
}

/// 1305: killed while the call looked for a savepoint that does not exist. 1689: while it waited
/// for the lock of a table's definition. 1105: while MySQL filled a temporary table. 31025: the
/// transaction of an ack was undone.
fn assert_killed(number: u16) {
    assert!([1317, 1105, 1305, 1689, 31025].contains(&number), "{number}");
}

async fn work(session: &mut SqlConsumer, row: &Row) -> Result<(), u16> {
    let delivery: String = row.get("delivery").unwrap();
    let body = String::from_utf8(row.get("body").unwrap()).unwrap();
    let again = body.starts_with('r') && row.get::<u32, _>("delivery_no").unwrap() < 2;
    let settle =
        |verdict: &str| format!("CALL queue_settle('{delivery}', '{verdict}', NULL, NULL)");
    if body.starts_with('d') || again {
        let verdict = if again { "release" } else { "dead-letter" };
        return session.tried(&settle(verdict)).await.map(drop);
    }
    session.tried("START TRANSACTION").await?;
    session.tried(&format!("INSERT INTO booked (body) VALUES ('{body}')")).await?;
    session.tried(&settle("ack")).await?;
    session.tried("COMMIT").await.map(drop)
}

async fn lose_and_double_nothing(ordered: bool) {
    let mut stream = Stream::new(2).await;
    stream.group_with("g", ordered, OffsetSpec::Earliest, &group_settings()).await;
    let table = "id INT AUTO_INCREMENT PRIMARY KEY, body VARCHAR(9) NOT NULL";
    stream.sql(&format!("CREATE TABLE booked ({table}) ENGINE = InnoDB")).await;
    let url = stream.db.url().clone();
    let mut session = stream.session().await;
    let (id, ended) = (session.id().await, AtomicBool::new(false));
    let works = async {
        let (mut sent, mut killed, mut turns) = (0, 0, 0);
        while killed < 60 {
            let message = |n: usize| {
                let kind = ["a", "r", "a", "d"][n % 4];
                NewMessage::new(format!("{kind}{n}")).with_key((n % 6).to_string())
            };
            let messages: Vec<_> = (sent..sent + 20).map(message).collect();
            enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
            sent += 20;
            let over = "SELECT (SELECT COUNT(*) FROM booked) + (SELECT COUNT(*) FROM queue_dead)";
            while stream.number(over).await < sent as i64 {
                turns += 1;
                assert!(turns < 5000, "nothing more is handed out");
                killed += handle(&mut session, 4).await;
            }
        }
        ended.store(true, Ordering::Relaxed);
        sent as i64
    };
    let (sent, ()) = tokio::join!(works, kill_often(&url, id, &ended));
    // The last KILLs may still be under way.
    let end = ["ROLLBACK", "CALL queue_claim('s@g', 4, NULL)"];
    for sql in end {
        while session.tried(sql).await.is_err() {}
    }
    let booked = "SELECT CONCAT_WS(' ', COUNT(*), COUNT(DISTINCT body)) FROM booked";
    assert_eq!(text(&mut stream.conn, booked).await, format!("{0} {0}", sent * 3 / 4));
    let dead = "SELECT CONCAT_WS(' ', COUNT(*), COUNT(DISTINCT body)) FROM queue_dead";
    assert_eq!(text(&mut stream.conn, dead).await, format!("{0} {0}", sent / 4));
    let left = "SELECT (SELECT COUNT(*) FROM queue_message) + (SELECT COUNT(*) FROM queue_claim) \
        + (SELECT COUNT(*) FROM queue_range) + (SELECT COUNT(*) FROM queue_passed) \
        + (SELECT COUNT(*) FROM queue_scheduled) + (SELECT SUM(lost) FROM queue_cursor)";
    assert_eq!(stream.number(left).await, 0);
    let logged = stream.logged().await;
    stream.assert_dense(&logged).await;
    assert_eq!(logged.len() as i64, sent);
    if ordered {
        let overtaken = "SELECT COUNT(*) FROM booked a JOIN booked b ON b.id > a.id \
            AND CAST(SUBSTR(b.body, 2) AS UNSIGNED) < CAST(SUBSTR(a.body, 2) AS UNSIGNED) \
            AND SUBSTR(a.body, 2) % 6 = SUBSTR(b.body, 2) % 6";
        assert_eq!(stream.number(overtaken).await, 0);
    }
}

#[tokio::test]
async fn kills_lose_and_double_nothing_of_a_group() {
    lose_and_double_nothing(false).await;
}

#[tokio::test]
async fn kills_lose_double_and_reorder_nothing_of_an_ordered_group() {
    lose_and_double_nothing(true).await;
}
