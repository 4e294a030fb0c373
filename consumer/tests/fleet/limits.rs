use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use rand::Rng;
use rowmq_core::model::{Limits, TopicSettings};
use rowmq_core::{MsgId, NewMessage, enqueue_to};
use rowmq_test::TestDatabase;
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

const CONSUMERS: usize = 8;
const KEYS: usize = 4;

/// Returns how many consumers are killed; `ROWMQ_KILLS` overrides it. 1200 take about two minutes.
fn kills() -> usize {
    match std::env::var("ROWMQ_KILLS") {
        Ok(kills) => kills.parse().expect("ROWMQ_KILLS is a number"),
        Err(_) => 40,
    }
}

/// Lets eight consumers handle messages of four keys while one after another is killed; returns how
/// many runs began while another of their key was in progress.
async fn overlaps(limits: Limits, messages: usize, kills: usize) -> usize {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { limits, max_crashes: 1000, ..TopicSettings::default() };
    let topic = database.topic_with("work", &settings).await;
    let mut fleet = Fleet::on_topic(database, topic);
    let mut conn = fleet.database.connect().await;
    let key = |i: usize| format!("key {}", i % KEYS);
    let messages: Vec<_> = (0..messages).map(|i| NewMessage::new("x").with_key(key(i))).collect();
    enqueue_to(&mut conn, &fleet.topic, &messages).await.expect("enqueued");
    let keys: HashMap<MsgId, String> =
        messages.iter().enumerate().map(|(i, message)| (message.msg_id, key(i))).collect();

    let start = Start { work_ms: 5, concurrency: 4, ..Start::default() };
    let mut members: Vec<usize> = (0..CONSUMERS).map(|_| fleet.start(&start)).collect();
    let mut killed: HashMap<usize, u128> = HashMap::new();
    for _ in 0..kills {
        let (at, pause) = {
            let mut rng = rand::rng();
            (rng.random_range(0..members.len()), rng.random_range(0..150))
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // Before the signal: other runs may begin as soon as the process is gone.
        killed.insert(members[at], now());
        fleet.signal(members[at], Signal::KILL);
        fleet.ended(members[at]).await;
        members[at] = fleet.start(&start);
    }
    fleet.drained().await;

    let mut runs: HashMap<&String, Vec<(u128, u128)>> = HashMap::new();
    for run in fleet.handler_runs() {
        let end = run.ended.or_else(|| killed.get(&run.member).copied());
        let end = end.expect("a run ends, or its consumer was killed");
        runs.entry(&keys[&run.id]).or_default().push((run.began, end.max(run.began)));
    }
    assert!(runs.values().map(Vec::len).sum::<usize>() >= keys.len(), "each ran");
    runs.values_mut()
        .map(|runs| {
            runs.sort_unstable();
            let mut busy_until = 0;
            let mut overlaps = 0;
            for (began, ended) in runs {
                overlaps += usize::from(*began < busy_until);
                busy_until = busy_until.max(*ended);
            }
            overlaps
        })
        .sum()
}

fn now() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos()
}

/// No counter goes up and down, so a kill leaves no wrong count: every message is handled in the
/// end.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_key_one_message_runs_at_a_time_though_consumers_are_killed() {
    let one = Limits { max_running_per_key: NonZeroU32::new(1), ..Limits::default() };
    let kills = kills();
    // Enough that some are left when the last consumer is killed.
    let messages = 600.max(kills * 5 / 3);
    assert_eq!(overlaps(one, messages, kills).await, 0);
    assert!(overlaps(Limits::default(), 600, 0).await > 0, "the test would see it");
}
