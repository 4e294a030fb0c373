//! What a topic has for this consumer: its ready messages, and for a group those of its stream.

use queue_core::worker::{Claimed, Worker};
use queue_core::{Result, Topic};

/// Claims up to `limit` messages. What a group tries again comes before what its stream has next.
pub(crate) async fn claim(worker: &Worker, topic: &Topic, limit: u32) -> Result<Claimed> {
    let mut claimed = worker.claim(topic.id, limit).await?;
    let rest = limit.saturating_sub(u32::try_from(claimed.deliveries.len()).unwrap_or(u32::MAX));
    if let Some(group) = topic.group()
        && rest > 0
    {
        let of_stream = worker.claim_range(group, rest).await?;
        claimed.deliveries.extend(of_stream.deliveries);
        claimed.suspect_waits |= of_stream.suspect_waits;
        claimed.lost += of_stream.lost;
        claimed.filtered += of_stream.filtered;
        claimed.more_later = of_stream.more_later;
    }
    Ok(claimed)
}

/// Claims one message that is to be handled alone.
pub(crate) async fn claim_suspect(worker: &Worker, topic: &Topic) -> Result<Claimed> {
    let claimed = worker.claim_suspect(topic.id).await?;
    match topic.group() {
        Some(group) if claimed.deliveries.is_empty() => worker.claim_suspect_range(group).await,
        _ => Ok(claimed),
    }
}
