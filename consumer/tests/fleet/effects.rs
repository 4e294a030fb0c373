use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rand::Rng;
use rowmq_core::{AsyncMysqlConnection, NewMessage, enqueue_to};
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// How many messages are sent whenever few are left.
const MORE: usize = 1000;

async fn number(conn: &mut AsyncMysqlConnection, query: &str) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }
    let rows: Vec<Row> = diesel::sql_query(query).load(conn).await.expect("a number");
    rows[0].n
}

/// Consumers are killed at any moment, in the middle of transactions, commits and claims: every
/// message has exactly one effect.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_has_one_effect_though_consumers_are_killed_a_hundred_times() {
    one_effect_each(Fleet::new().await, 100).await;
}

/// The same for a stream, where the ack of a message is a row beside its range.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_of_a_stream_has_one_effect_though_members_are_killed() {
    one_effect_each(Fleet::of_group(2, false).await, 40).await;
}

async fn one_effect_each(mut fleet: Fleet, kills: usize) {
    let mut conn = fleet.database.connect().await;
    let table = "CREATE TABLE effect (n INT AUTO_INCREMENT PRIMARY KEY, msg_id BINARY(16))";
    conn.batch_execute(table).await.expect("a table");
    // Many kills hit a consumer with a single message: the message is not to blame.
    let lenient = "UPDATE queue_topic SET max_crashes = 1000";
    conn.batch_execute(lenient).await.expect("set");
    let messages = |n: usize| (0..n).map(|i| NewMessage::json(&i).expect("JSON"));
    let messages = |n| messages(n).collect::<Vec<_>>();
    let mut sent = 0;
    let start = Start { effects: true, work_ms: 2, concurrency: 4, ..Start::default() };
    let mut members: Vec<usize> = (0..4).map(|_| fleet.start(&start)).collect();
    for _ in 0..kills {
        let (at, pause) = {
            let mut rng = rand::rng();
            (rng.random_range(0..members.len()), rng.random_range(0..60))
        };
        let victim = members[at];
        // Checked within the wait: the others may handle everything while the victim is still
        // starting.
        let at_work = async || {
            if fleet.left(&mut conn).await < 200 {
                enqueue_to(&mut conn, &fleet.topic, &messages(MORE)).await.expect("enqueued");
                sent += MORE;
            }
            fleet.begun(victim) > 0
        };
        fleet.until("at work", at_work).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        fleet.signal(victim, Signal::KILL);
        fleet.ended(victim).await;
        members[at] = fleet.start(&start);
    }
    fleet.drained().await;
    let twice = "SELECT COUNT(*) AS n FROM (SELECT msg_id FROM effect GROUP BY msg_id \
         HAVING COUNT(*) > 1) t";
    assert_eq!(number(&mut conn, twice).await, 0, "an effect happened twice");
    let effects = number(&mut conn, "SELECT COUNT(*) AS n FROM effect").await;
    assert_eq!(usize::try_from(effects), Ok(sent), "an effect is missing");
    let runs: usize = fleet.histories().values().map(|history| history.starts.len()).sum();
    println!("{sent} messages, {runs} runs, {kills} kills");
    assert!(runs > sent, "the kills hit nothing");
}
