//! Recurring messages, set and inspected by users.

use rowmq_test::TestQueue;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn a_schedule_is_set_listed_paused_and_deleted() {
    let queue = TestQueue::new().await;
    queue.topic("reports").await;
    let rowmq = Rowmq::on(queue.database());
    assert!(rowmq.say(&["cron", "list"]).contains("There is no schedule"));
    let set = ["cron", "set", "nightly", "reports", "--cron", "30 2 * * 1-5"];
    let zone = ["--time-zone", "Europe/Berlin", "--missed", "skip", "--body", "all"];
    let said = rowmq.say(&[&set[..], &zone].concat());
    assert!(said.contains("The schedule 'nightly' is set") && said.contains("UTC"), "{said}");
    let table = rowmq.say(&["cron", "list"]);
    let row = cells(&table).remove(0);
    assert_eq!(row[..2], ["nightly", "reports"]);
    let listed = rowmq.json(&["cron", "list"]);
    assert_eq!(listed[0]["cron"], "30 2 * * 1-5");
    assert_eq!(listed[0]["time_zone"], "Europe/Berlin");
    assert_eq!((&listed[0]["missed"], &listed[0]["ticks"]), (&"skip".into(), &0.into()));
    rowmq.say(&["cron", "pause", "nightly"]);
    assert!(rowmq.say(&["cron", "list"]).contains("paused"));
    rowmq.say(&["cron", "resume", "nightly"]);
    rowmq.say(&["cron", "delete", "nightly"]);
    let gone = rowmq.refuse(&["cron", "pause", "nightly"]);
    assert!(gone.contains("There is no schedule 'nightly'"), "{gone}");
}

#[tokio::test]
async fn a_topics_schedules_go_with_it() {
    let queue = TestQueue::new().await;
    queue.topic("reports").await;
    let rowmq = Rowmq::on(queue.database());
    rowmq.say(&["cron", "set", "nightly", "reports", "--cron", "@daily"]);
    rowmq.say(&["topic", "delete", "reports"]);
    assert_eq!(rowmq.json(&["cron", "list"]), serde_json::json!([]));
}

#[tokio::test]
async fn a_pattern_can_be_tried_out_without_a_server() {
    let rowmq = Rowmq::at_text("mysql://nobody@127.0.0.1:1/none");
    let ticks = rowmq.json(&[
        "cron",
        "next",
        "30 2 * * *",
        "--time-zone",
        "Europe/Berlin",
        "--from",
        "2026-03-28T12:00:00Z",
        "-n",
        "2",
    ]);
    assert_eq!(ticks[0]["local"], "2026-03-29 03:00:00 +02:00");
    assert_eq!(ticks[1]["utc"], "2026-03-30T00:30:00Z");
    for (pattern, part) in
        [("61 * * * *", "The cron pattern '61 * * * *'"), ("0 0 30 2 *", "no tick")]
    {
        let said = rowmq.refuse(&["cron", "next", pattern]);
        assert!(said.contains(part), "{said}");
    }
}
