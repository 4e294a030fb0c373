//! The fake clock. All time is the server's, so the times in the test's own database move instead
//! of the clock. This is the only SQL outside the store: no program may ever run it.

use std::time::Duration;

use diesel::sql_types::{BigInt, Unsigned};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};

/// Moves everything that waits for its time closer by `by`.
pub(crate) async fn advance(
    conn: &mut AsyncMysqlConnection,
    by: Duration,
) -> diesel::QueryResult<()> {
    let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    for update in [
        "UPDATE queue_scheduled SET due_at = due_at - INTERVAL ? MICROSECOND",
        "UPDATE queue_scheduled SET expires_at = expires_at - INTERVAL ? MICROSECOND \
         WHERE expires_at IS NOT NULL",
        "UPDATE queue_message SET expires_at = expires_at - INTERVAL ? MICROSECOND \
         WHERE expires_at IS NOT NULL",
        "UPDATE queue_schedule SET next_at = next_at - INTERVAL ? MICROSECOND \
         WHERE next_at IS NOT NULL",
        "UPDATE queue_archive SET keep_until = keep_until - INTERVAL ? MICROSECOND",
        "UPDATE queue_lookup SET enqueued_at = enqueued_at - INTERVAL ? MICROSECOND",
        "UPDATE queue_trace SET at = at - INTERVAL ? MICROSECOND",
        "UPDATE queue_ledger SET keep_until = keep_until - INTERVAL ? MICROSECOND",
        "UPDATE queue_dedupe SET keep_until = keep_until - INTERVAL ? MICROSECOND",
        "UPDATE queue_unique SET keep_until = keep_until - INTERVAL ? MICROSECOND \
         WHERE keep_until IS NOT NULL",
    ] {
        let update = diesel::sql_query(update).bind::<Unsigned<BigInt>, _>(micros);
        update.execute(conn).await?;
    }
    Ok(())
}
