use std::collections::HashSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use rand::Rng;
use rowmq_core::model::{Limits, OffsetSpec, TopicSettings};
use rowmq_core::store::stream::progress;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{MsgId, NewMessage, Topic, TopicName, enqueue_to, store};
use rowmq_test::{Program, TestDatabase, until};

const MESSAGES: usize = 150;
const CONSUMERS: usize = 3;
const KILLS: usize = 8;

/// Records each message when it has been handled, and whether two of the topic with the limit ran
/// at once.
const PROGRAM: &str = r#"
    echo '{"rowmq_pool":1}'
    exec 9> "$1/lock"
    while read -r line; do
        id=${line#*'"msg_id":"'}; id=${id%%'"'*}
        frame=${line#*'"frame":'}; frame=${frame%%,*}
        case $line in
            *'"topic":"limited"'*) flock -n 9 || echo "$id" >> "$1/overlaps"; sleep 0.01; flock -u 9 ;;
            *) sleep 0.01 ;;
        esac
        echo "$id" >> "$1/handled"
        printf '{"frame":%d,"verdict":"ack"}\n' "$frame"
    done"#;

fn start(database: &TestDatabase, directory: &Path) -> Program {
    let mut consumer = Program::built("rowmq-consumer");
    consumer
        .args(["pool", "mail=3", "--also", "limited", "--also", "orders@billing=2"])
        .args(["--concurrency", "6", "--", "sh", "-c", PROGRAM, "sh"])
        .arg(directory)
        .env("ROWMQ_URL", database.url().expose());
    Program::start(&mut consumer)
}

/// A queue, a queue of which one message runs at a time, and the stream of an ordered group.
async fn topics(database: &TestDatabase) -> [Topic; 3] {
    let mut conn = database.connect().await;
    let settings = TopicSettings::default();
    let mail = database.topic("mail").await;
    let limits = Limits { max_running: NonZeroU32::new(1), ..Limits::default() };
    let limited =
        database.topic_with("limited", &TopicSettings { limits, ..settings.clone() }).await;
    let orders = TopicName::new("orders").expect("a name");
    let billing = TopicName::of_group(&orders, "billing").expect("a name");
    create_stream(&mut conn, &orders, 2, &settings).await.expect("made");
    create_group(&mut conn, &billing, true, OffsetSpec::Earliest, &settings).await.expect("made");
    [mail, limited, store::topic::existing(&mut conn, &orders).await.expect("it is there")]
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_of_several_topics_lose_nothing_when_their_consumers_are_killed() {
    let database = TestDatabase::new().await;
    let directory = tempfile::tempdir().expect("a directory");
    let mut conn = database.connect().await;
    let topics = topics(&database).await;
    let mut sent: HashSet<MsgId> = HashSet::new();
    for topic in &topics {
        let messages: Vec<_> = (0..MESSAGES)
            .map(|i| NewMessage::new("{}").with_key(format!("key {}", i % 8)))
            .collect();
        enqueue_to(&mut conn, topic, &messages).await.expect("enqueued");
        sent.extend(messages.iter().map(|message| message.msg_id));
    }
    let mut consumers: Vec<_> =
        (0..CONSUMERS).map(|_| start(&database, directory.path())).collect();
    for _ in 0..KILLS {
        let (at, pause) = {
            let mut rng = rand::rng();
            (rng.random_range(0..CONSUMERS), rng.random_range(100..600))
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        consumers[at].kill();
        consumers[at] = start(&database, directory.path());
    }
    let group = TopicName::new("orders@billing").expect("a name");
    let group = store::topic::existing(&mut conn, &group).await.expect("it is there");
    until("nothing is left", async || {
        let mut left = 0;
        for topic in topics.iter().chain([&group]) {
            let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
            left += depth.unsettled + depth.claimed + depth.scheduled;
        }
        let billing = group.group().expect("a group");
        let progress = progress::of_group(&mut conn, billing).await.expect("its progress");
        left + progress.iter().map(|one| one.lag).sum::<u64>() == 0
    })
    .await;
    let read = |name: &str| {
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        text.lines().map(|id| id.parse().expect("an id")).collect::<HashSet<MsgId>>()
    };
    assert_eq!(read("handled"), sent);
    assert_eq!(read("overlaps"), HashSet::new());
}
