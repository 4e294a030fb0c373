//! I10: of a topic with a limit no more run at once than may.

use super::Breach;
use super::history::History;
use crate::arena::EFFECTS_RUNNING;
use crate::record::{Answer, Moment};
use crate::tag::Share;

/// Messages of the limited topic that began while as many ran as may.
///
/// A run counts from its start to the end of its handler if its consumer was told that it is
/// settled: then its claim was its own all the time, and held a place. One of a process that was
/// killed or frozen may have lost its claim, and its place with it, at any moment.
pub(super) fn breaches(history: &History) -> Vec<(Breach, Share)> {
    let mut runs: Vec<(Moment, Moment, Share)> = Vec::new();
    for (share, message) in &history.messages {
        if share.group.is_some() || !message.transactional {
            continue;
        }
        for settled in message.settled.iter().filter(|one| one.answer == Answer::Settled) {
            let no = settled.delivery_no;
            let start = message
                .starts
                .iter()
                .find(|start| start.delivery_no == no && start.actor == settled.actor);
            let end = message.ends.iter().find(|end| end.delivery_no == no);
            if let (Some(start), Some(end)) = (start, end) {
                runs.push((start.at, end.at, *share));
            }
        }
    }
    runs.sort_unstable_by_key(|(start, ..)| *start);
    let mut running: Vec<Moment> = Vec::new();
    let mut beyond = Vec::new();
    for (start, end, share) in runs {
        running.retain(|end| *end > start);
        running.push(end);
        if running.len() > EFFECTS_RUNNING.get() as usize {
            beyond.push((Breach::BeyondLimit, share));
        }
    }
    beyond
}
