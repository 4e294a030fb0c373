//! I10: no more messages of a limited topic run at once than the limit allows.

use std::num::NonZeroU32;

use super::Breach;
use super::history::History;
use crate::record::{Answer, Moment};
use crate::stream::Share;
use crate::topics::MAX_RUNNING;

/// Finds messages of limited topics that began when the limit was already reached.
///
/// A run counts, from its start to the end of its handler, if its consumer learned that it is
/// settled: its worker then held the claim, and its place within the limit, the whole time. A
/// process that was killed or frozen may have lost both at any moment.
pub(super) fn breaches(history: &History) -> Vec<(Breach, Share)> {
    MAX_RUNNING.iter().flat_map(|(topic, limit)| breaches_in(history, topic, *limit)).collect()
}

fn breaches_in(history: &History, topic: &str, limit: NonZeroU32) -> Vec<(Breach, Share)> {
    let mut runs: Vec<(Moment, Moment, Share)> = Vec::new();
    for (share, message) in &history.messages {
        let sent_to = history.queues.get(&share.tag.sender);
        if share.group.is_some() || sent_to.is_none_or(|sent_to| sent_to != topic) {
            continue;
        }
        for settled in message.settled.iter().filter(|one| one.answer == Answer::Settled) {
            let no = settled.delivery_no;
            let start = message
                .starts
                .iter()
                .find(|start| start.delivery_no == no && start.actor == settled.actor);
            let ends = message.ends.iter().map(|end| (end.delivery_no, end.at));
            let ended = ends.chain(message.written.iter().copied()).filter(|(of, _)| *of == no);
            if let (Some(start), Some(end)) = (start, ended.map(|(_, at)| at).max()) {
                runs.push((start.at, end, *share));
            }
        }
    }
    runs.sort_unstable_by_key(|(start, ..)| *start);
    let mut running: Vec<Moment> = Vec::new();
    let mut beyond = Vec::new();
    for (start, end, share) in runs {
        running.retain(|end| *end > start);
        running.push(end);
        if running.len() > limit.get() as usize {
            beyond.push((Breach::BeyondLimit, share));
        }
    }
    beyond
}
