use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::Result;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::TopicId;
use rowmq_core::store::lookup::{self, Kept, LookupPosition};
use tokio::time::Instant;

use super::{BATCH, ROUNDS};

/// How long after its beginning a walk starts again. Until then, entries whose time is over but
/// whose message still exists are not read again.
const LIVING: Duration = Duration::from_secs(3600);

/// Removes entries of the lookup whose time is over and whose message no longer exists. It walks
/// through them in order of time, so that entries whose message still exists are read once an hour
/// and hide no others.
#[derive(Debug, Default)]
pub(super) struct PruneLookup {
    walks: HashMap<TopicId, Walk>,
}

/// How far the walk through a topic's entries has come.
#[derive(Debug)]
struct Walk {
    next: Option<LookupPosition>,
    began: Instant,
}

impl PruneLookup {
    /// Prunes a bounded number of entries of each topic; returns how many.
    pub(super) async fn run(&mut self, session: &mut Session) -> Result<usize> {
        let read = async |conn: &mut Link| lookup::topics(conn).await;
        let topics = session.call("list the topics of the lookup", read).await?;
        self.walks.retain(|topic, _| topics.iter().any(|kept| kept.topic == *topic));
        let mut pruned = 0;
        for Kept { topic, time } in topics {
            pruned += match time {
                Some(time) => self.aged(session, topic, time).await?,
                None => drop_all(session, topic).await?,
            };
        }
        Ok(pruned)
    }

    async fn aged(
        &mut self,
        session: &mut Session,
        topic: TopicId,
        time: Duration,
    ) -> Result<usize> {
        let walk =
            self.walks.entry(topic).or_insert_with(|| Walk { next: None, began: Instant::now() });
        if walk.began.elapsed() > LIVING {
            *walk = Walk { next: None, began: Instant::now() };
        }
        let mut pruned = 0;
        for _ in 0..ROUNDS {
            let from = walk.next;
            let look = async |conn: &mut Link| lookup::aged(conn, topic, time, from, BATCH).await;
            let aged = session.call("prune the lookup", look).await?;
            if !aged.ended.is_empty() {
                let prune =
                    async |conn: &mut Link| lookup::prune(conn, topic, time, &aged.ended).await;
                pruned += session.transaction("prune the lookup", prune).await?;
            }
            // At the end the walk stays there: entries that age later come after it.
            let Some(next) = aged.next else { break };
            walk.next = Some(next);
        }
        Ok(pruned)
    }
}

async fn drop_all(session: &mut Session, topic: TopicId) -> Result<usize> {
    let mut dropped = 0;
    for _ in 0..ROUNDS {
        let some = async |conn: &mut Link| lookup::drop_some(conn, topic, BATCH).await;
        let n = session.transaction("drop the lookup", some).await?;
        dropped += n;
        if n < BATCH as usize {
            break;
        }
    }
    Ok(dropped)
}
