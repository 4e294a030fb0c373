//! The query that the manifests give an autoscaler.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Row};
use rowmq_core::{NewMessage, enqueue_to};
use rowmq_test::TestDatabase;

const MANIFEST: &str = "../ops/deploy/kubernetes/components/keda/scaled-object.yaml";

fn query() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST);
    let manifest = std::fs::read_to_string(path).expect("the manifest");
    let line = manifest.lines().find_map(|line| line.trim().strip_prefix("query: \""));
    line.and_then(|line| line.strip_suffix('"')).expect("a query").to_owned()
}

#[tokio::test]
async fn the_query_of_the_autoscaler_counts_one_topic_by_the_primary_key() {
    let database = TestDatabase::new().await;
    let mut enqueuing = database.connect().await;
    for (name, n) in [("mail", 300), ("other", 500)] {
        let topic = database.topic(name).await;
        let messages = vec![NewMessage::new(""); n];
        enqueue_to(&mut enqueuing, &topic, &messages).await.expect("enqueued");
    }
    let url = Opts::from_url(database.url().expose()).expect("usable");
    let mut conn = Conn::new(url).await.expect("connected");
    let waiting: Option<u64> = conn.query_first(query()).await.expect("counted");
    assert_eq!(waiting, Some(300));
    // MySQL 9 shows a tree unless a table is requested.
    let explain = format!("EXPLAIN FORMAT=TRADITIONAL {}", query());
    let plan: Vec<Row> = conn.query(explain).await.expect("a plan");
    let text = |row: &Row, name: &str| {
        row.get_opt::<String, _>(name).and_then(Result::ok).unwrap_or_default()
    };
    let reads = plan.iter().find(|row| text(row, "table") == "queue_message").expect("it is read");
    assert_eq!((text(reads, "type"), text(reads, "key")), ("ref".into(), "PRIMARY".into()));
}
