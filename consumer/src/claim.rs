//! What a topic has for this consumer: its ready messages, and for a group those of its stream.

use queue_core::worker::{Claimed, Worker};
use queue_core::{Result, Topic};

use crate::crew::Crew;

/// Claims up to `limit` messages. What a group tries again, or what somebody has redriven to it,
/// comes before what its stream has next.
pub(crate) async fn claim(crew: &Crew, topic: &Topic, limit: u32) -> Result<Claimed> {
    let mut claimed = crew.worker.claim(topic.id, limit).await?;
    let rest = limit.saturating_sub(u32::try_from(claimed.deliveries.len()).unwrap_or(u32::MAX));
    if topic.of_stream().is_some() && rest > 0 {
        let of_stream = claim_of_stream(crew, topic, rest).await?;
        claimed.deliveries.extend(of_stream.deliveries);
        claimed.suspect_waits |= of_stream.suspect_waits;
        claimed.lost += of_stream.lost;
        claimed.filtered += of_stream.filtered;
        claimed.more_later = of_stream.more_later;
    }
    Ok(claimed)
}

/// Claims a range for a group, or reads for this process's member of a broadcast group.
async fn claim_of_stream(crew: &Crew, topic: &Topic, limit: u32) -> Result<Claimed> {
    match topic.group() {
        Some(group) => crew.worker.claim_range(group, limit).await,
        None => crew.worker.read(&crew.members.of(topic)?, limit).await,
    }
}

/// Claims one message that is to be handled alone.
pub(crate) async fn claim_suspect(worker: &Worker, topic: &Topic) -> Result<Claimed> {
    let claimed = worker.claim_suspect(topic.id).await?;
    match topic.group() {
        Some(group) if claimed.deliveries.is_empty() => worker.claim_suspect_range(group).await,
        _ => Ok(claimed),
    }
}
