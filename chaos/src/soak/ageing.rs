//! What the queue keeps for a time reaches its level within minutes here.
//!
//! A table whose rows are kept for a week grows for the whole of an hour, whether its rows are
//! pruned or not. So nothing is excused: topics keep what they keep for a minute or two, and where
//! the time is fixed, the rows are made older than that time. The janitor then prunes them as it
//! prunes real ones.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use tokio::time::{Instant, sleep_until};

use crate::arena::Arena;

/// How long topics keep handled messages, and for how long messages can be looked up. The second
/// is longer: the pruning of the lookup skips an entry whose message is still kept, and comes back
/// an hour later.
const TOPICS: &str = "UPDATE queue_topic SET keep_done_ms = 30000 WHERE keep_done_ms IS NOT NULL; \
     UPDATE queue_topic SET searchable_ms = 75000 WHERE searchable_ms IS NOT NULL";

/// Makes everything that is a minute old 31 days old, which is more than the queue keeps it: the
/// trace for 7 days, ended workers for an hour.
const AGE: [&str; 2] = [
    "UPDATE queue_trace SET at = at - INTERVAL 31 DAY \
     WHERE at BETWEEN UTC_TIMESTAMP(6) - INTERVAL 1 DAY AND UTC_TIMESTAMP(6) - INTERVAL 60 SECOND",
    "UPDATE queue_worker SET ended_at = ended_at - INTERVAL 31 DAY \
     WHERE state IN ('dead', 'stopped') AND ended_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL 1 DAY \
     AND UTC_TIMESTAMP(6) - INTERVAL 60 SECOND",
];

/// How often rows are made older.
const EVERY: Duration = Duration::from_secs(10);

/// Has every topic keep what it keeps for a short time.
pub(super) async fn shorten(arena: &Arena) -> anyhow::Result<()> {
    arena.execute(TOPICS).await
}

/// Makes rows older until `end`.
pub(super) async fn keep_ageing(arena: &Arena, end: Instant) -> anyhow::Result<()> {
    let mut conn = arena.connect().await?;
    // Without locks on the gaps between what it changes.
    conn.batch_execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    let mut at = Instant::now();
    while at < end {
        sleep_until(at).await;
        for statement in AGE {
            // The fleet's transactions go first: what is not made older now is next time.
            if let Err(error) = conn.batch_execute(statement).await {
                tracing::warn!(%error, "Rows could not be made older.");
            }
        }
        at += EVERY;
    }
    Ok(())
}
