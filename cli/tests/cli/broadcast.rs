//! Broadcast groups on the command line.

use rowmq_core::model::{MemberName, Settlement};
use rowmq_core::worker::{Member, Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, Topic, TopicName, enqueue_all, store};
use rowmq_test::TestDatabase;
use serde_json::json;

use crate::audit::newest;
use crate::run::{Rowmq, cells};

/// Starts a member that has handled `n` messages and has reported that.
async fn member(database: &TestDatabase, group: &Topic, name: Option<&str>, n: usize) -> Worker {
    let worker = Worker::start(WorkerOptions::new(database.url().clone(), "test")).await;
    let worker = worker.expect("started");
    let name = name.map(|name| MemberName::new(name).expect("a name"));
    let member = Member::new(group, name).expect("a member");
    let mut handled = 0;
    while handled < n {
        let limit = u32::try_from(n - handled).expect("few");
        let read = worker.read(&member, limit).await.expect("read").deliveries;
        let ack = |one| Settled::in_topic(one, Settlement::Ack, &group.settings);
        worker.settle(read.iter().map(ack).collect()).await.expect("settled");
        handled += read.len();
    }
    worker
}

#[tokio::test]
async fn a_broadcast_group_is_created_watched_reset_and_its_members_forgotten() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "orders", "--kind", "stream", "--partitions", "1"]);
    let made = rowmq.json(&["group", "create", "orders@now", "--broadcast"]);
    assert_eq!((&made["kind"], &made["start"]), (&json!("broadcast"), &json!("latest")));
    assert_eq!(
        (&made["retry"], &made["max_attempts"]),
        (&json!("ladder 1s 5s 10s 30s 1m"), &json!(6))
    );
    let made = ["group", "create", "orders@cache", "--broadcast", "--from", "earliest"];
    assert_eq!(rowmq.say(&made), "The group 'orders@cache' is created.\n");
    let shown = rowmq.say(&["topic", "show", "orders@cache"]);
    assert!(shown.contains("members begin at") && shown.contains("earliest"), "{shown}");
    let none = rowmq.say(&["group", "show", "orders@cache"]);
    assert_eq!(none, "No member of the group has a name: their positions are in their memory.\n");

    let mut conn = database.connect().await;
    let orders = TopicName::new("orders").expect("a name");
    let messages: Vec<_> = (0..20).map(|n| NewMessage::new(n.to_string())).collect();
    enqueue_all(&mut conn, &orders, &messages).await.expect("enqueued");
    let cache = TopicName::new("orders@cache").expect("a name");
    let cache = store::topic::existing(&mut conn, &cache).await.expect("it is there");
    let unnamed = member(&database, &cache, None, 20).await;
    let sentence = rowmq.refuse(&["group", "reset", "orders@cache", "--to", "earliest", "--yes"]);
    assert!(sentence.contains("in memory and cannot be reset; restart them"), "{sentence}");
    unnamed.stop().await.expect("stopped");

    let fast = member(&database, &cache, Some("fast"), 20).await;
    let slow = member(&database, &cache, Some("slow"), 5).await;
    let workers = rowmq.json(&["workers"]);
    let named = |name: &str| json!([{ "group": "orders@cache", "member": name }]);
    assert_eq!((&workers[0]["members"], &workers[1]["members"]), (&named("fast"), &named("slow")));
    assert!(rowmq.say(&["workers"]).contains("orders@cache as fast"));
    fast.stop().await.expect("stopped");
    slow.stop().await.expect("stopped");
    let shown = rowmq.say(&["group", "show", "orders@cache"]);
    let shown = cells(&shown);
    assert_eq!(shown[0][..6], ["fast", "0", "0", "20", "20", "0"], "{shown:?}");
    assert_eq!(shown[1][..6], ["slow", "0", "0", "20", "5", "15"], "{shown:?}");
    let list = rowmq.json(&["group", "list", "orders"]);
    let of = |name: &str| list.as_array().expect("groups").iter().find(|one| one["name"] == name);
    let listed = of("orders@cache").expect("listed");
    assert_eq!((&listed["lag"], &listed["claimed"]), (&json!(15), &json!(0)), "the slowest");
    assert!(rowmq.say(&["group", "list"]).contains("broadcast"));

    rowmq.say(&["group", "reset", "orders@cache", "--to", "3", "--yes"]);
    let shown = rowmq.json(&["group", "show", "orders@cache"]);
    assert_eq!((&shown[0]["next"], &shown[1]["next"]), (&json!(3), &json!(3)));
    let forget = ["group", "forget-member", "orders@cache", "slow"];
    assert_eq!(rowmq.say(&forget), "The member 'slow' of 'orders@cache' is forgotten.\n");
    let (action, target, _, member) = newest(&rowmq);
    let entry = (action.as_str(), target.as_str(), member.as_str());
    assert_eq!(entry, ("forget-member", "orders@cache", "slow"));
    assert!(rowmq.refuse(&forget).contains("has no member 'slow'"));
    rowmq.say(&["topic", "delete", "orders@cache"]);
    let left = store::topic::groups_of(&mut conn, cache.of_stream().expect("a group")).await;
    assert_eq!(left.expect("read").len(), 1);
}

#[tokio::test]
async fn what_makes_no_sense_of_broadcast_groups_is_refused_in_a_sentence() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["group", "create", "orders@all", "--broadcast"]);
    rowmq.say(&["group", "create", "orders@one"]);
    for (arguments, says) in [
        (vec!["group", "create", "orders@x", "--broadcast", "--ordered"], "cannot be ordered"),
        (vec!["group", "create", "orders@x", "--broadcast", "--from", "9"], "beyond the end"),
        (vec!["group", "create", "orders@x", "--broadcast", "--ledger-window", "1h"], "no ledger"),
        (vec!["group", "create", "orders@all", "--broadcast"], "already"),
        (vec!["group", "create", "mail@x", "--broadcast"], "'mail' is no stream"),
        (vec!["topic", "set", "orders@all", "--ledger-window", "1h"], "keeps no ledger"),
        (vec!["group", "replay", "orders@all", "--from", "earliest"], "put its named members back"),
        (vec!["group", "members", "orders@all"], "its members claim nothing"),
        (vec!["group", "blocked", "orders@all"], "nothing holds its members up"),
        (vec!["group", "reset", "orders@all", "--to", "latest", "--yes"], "cannot be reset"),
        (vec!["group", "forget-member", "orders@one", "a"], "is no group of a stream whose"),
    ] {
        let sentence = rowmq.refuse(&arguments);
        assert!(sentence.contains(says), "{arguments:?}: {sentence}");
    }
}
