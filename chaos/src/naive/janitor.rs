//! Reads the process list and makes the rows of owners that are not in it ready again.

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::connect;

/// How often it looks: as often as the product's own janitor.
const SWEEP: Duration = Duration::from_millis(300);

#[derive(QueryableByName)]
struct Thread {
    #[diesel(sql_type = Unsigned<BigInt>, column_name = "Id")]
    id: u64,
}

pub(super) async fn run(url: &ServerUrl, drain: &CancellationToken) {
    while let Some(mut conn) = connect(url, drain).await {
        while !drain.is_cancelled() && sweep(&mut conn).await.is_ok() {
            tokio::time::sleep(SWEEP).await;
        }
    }
}

async fn sweep(conn: &mut AsyncMysqlConnection) -> diesel::QueryResult<usize> {
    let threads: Vec<Thread> = diesel::sql_query("SHOW PROCESSLIST").load(conn).await?;
    let listed: Vec<String> = threads.iter().map(|thread| thread.id.to_string()).collect();
    let update = format!(
        "UPDATE naive_queue SET owner = 0, status = 'unsent' WHERE owner NOT IN ({}) \
         AND status = 'claimed' AND ts < CURRENT_TIMESTAMP - INTERVAL 3 SECOND",
        listed.join(", ")
    );
    diesel::sql_query(update).execute(conn).await
}
