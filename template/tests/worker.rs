//! The worker as a process, on a real server.

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq::test::{Program, TestDatabase, until};
use rowmq::{NewMessage, TopicName, enqueue};

#[derive(QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[tokio::test]
async fn the_worker_handles_what_is_sent() {
    let database = TestDatabase::new().await;
    database.topic("visits").await;
    let mut conn = database.connect().await;
    let table = include_str!("../schema.sql");
    conn.batch_execute(table).await.expect("the table is made");

    let mut worker = std::process::Command::new(env!("CARGO_BIN_EXE_visits"));
    let worker = Program::start(worker.env("ROWMQ_URL", database.url().expose()));
    worker.said("Consuming.").await;

    let topic = TopicName::new("visits").expect("a name");
    enqueue(&mut conn, &topic, &NewMessage::new(r#"{"page":"/home"}"#)).await.expect("enqueued");
    until("the visit is counted", async || {
        let query = "SELECT COUNT(*) AS n FROM visit_count WHERE page = '/home'";
        let count: Count = diesel::sql_query(query).get_result(&mut conn).await.expect("a row");
        count.n == 1
    })
    .await;
}
