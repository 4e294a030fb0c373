use rowmq_core::Result;
use rowmq_core::connection::{Link, Session};
use rowmq_core::store::dead;

use super::{BATCH, ROUNDS, some};

/// Removes dead letters that their topics no longer keep: from all topics together, at most as many
/// as one run may remove.
pub(super) async fn prune(session: &mut Session) -> Result<usize> {
    let list = async |conn: &mut Link| dead::kept_for(conn).await;
    let mut pruned = 0;
    for (topic, ago) in session.call("list who keeps dead letters for a time", list).await? {
        let prune = async |conn: &mut Link| dead::prune(conn, topic, ago, BATCH).await;
        pruned += some(session, "prune the dead letters", prune).await?;
        if pruned >= ROUNDS * BATCH as usize {
            break;
        }
    }
    Ok(pruned)
}
