use diesel::sql_query;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use rowmq::core::handler::TxHandler;
use rowmq::{AsyncMysqlConnection, Context, HandlerError, Job};
use serde::{Deserialize, Serialize};

/// A page was visited.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(topic = "visits")]
pub struct Visit {
    pub page: String,
}

/// Counts visits in the table `visit_count`. The count and the ack of the message are one
/// transaction, so each visit is counted exactly once.
pub struct CountVisit;

impl TxHandler for CountVisit {
    type Payload = Visit;

    async fn handle(
        &self,
        _: &Context,
        visit: Visit,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        if visit.page.is_empty() {
            return Err(HandlerError::dead("the visit has no page"));
        }
        let count = "INSERT INTO visit_count (page, n) VALUES (?, 1) \
                     ON DUPLICATE KEY UPDATE n = n + 1";
        sql_query(count).bind::<Text, _>(visit.page).execute(tx).await?;
        Ok(())
    }
}

/// Each test has a queue of its own, on the server of `ROWMQ_URL`.
#[cfg(test)]
mod tests {
    use diesel::QueryableByName;
    use diesel::sql_types::BigInt;
    use diesel_async::SimpleAsyncConnection;
    use rowmq::test::TestQueue;

    use super::*;

    #[derive(QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }

    #[tokio::test]
    async fn a_visit_is_counted_and_one_without_a_page_is_a_dead_letter() {
        let queue = TestQueue::new().await;
        queue.topic("visits").await;
        let mut conn = queue.connect().await;
        let table = include_str!("../schema.sql");
        conn.batch_execute(table).await.expect("the table is made");

        for page in ["/home", "/home", ""] {
            let visit = Visit { page: page.to_owned() };
            visit.enqueue(&mut conn).await.expect("enqueued");
        }
        let done = queue.drain_tx("visits", &CountVisit).await;
        assert_eq!((done.acked, done.dead), (2, 1));

        let count: Count = sql_query("SELECT CAST(n AS SIGNED) AS n FROM visit_count")
            .get_result(&mut conn)
            .await
            .expect("a row");
        assert_eq!(count.n, 2);
    }
}
