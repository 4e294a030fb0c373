//! Checks what became of every message, by the records of all actors alone.

mod failover;
mod history;
mod limits;
mod message;
mod rescue;
mod stream;
mod taken;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use rowmq_core::model::found::StateWord;

use crate::record::{Answer, Ended, Enqueued, Moment};
use crate::stream::{Group, Share};
use crate::tag::Tag;
use crate::task::Ending;
pub(crate) use failover::{Failover, missed_bound};
use history::History;
use message::Message;
pub(crate) use rescue::{RescueTimes, Times};

/// No other fault strikes this long before and after one that is measured.
pub(crate) const CALM: Duration = Duration::from_secs(10);

/// The content of the queue's tables when a run is over. It distinguishes a message that waits for
/// ever, or is dead-lettered, from one that is lost.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// Not settled: ready, scheduled or claimed.
    pub(crate) unsettled: HashMap<Share, u64>,
    /// Messages whose topic was deleted before they were settled: they were given a topic that
    /// nothing consumes.
    pub(crate) restored: HashSet<Share>,
    /// Dead letters, and the ending that each task had asked for.
    pub(crate) dead: HashMap<Share, Ending>,
    /// The search result for each message of the searchable topics, and whether its topic keeps
    /// handled messages.
    pub(crate) found: HashMap<Tag, (StateWord, bool)>,
    /// Effects that transactional handlers have committed: their table is not one of the queue.
    pub(crate) effects: HashMap<Tag, u64>,
    /// Messages that hold a unique key but are neither ready nor scheduled.
    pub(crate) holders: HashSet<Tag>,
    /// The traces of topics that trace everything.
    pub(crate) traces: HashMap<Share, Trace>,
    /// What groups have not finished, in words: empty when a run is over.
    pub(crate) behind: Vec<String>,
}

/// How often each event was traced for a message in a topic, or for a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) enqueued: u64,
    pub(crate) acked: u64,
}

/// How a promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    /// I1: acknowledged, and neither handled nor a dead letter; or its topic was deleted after it
    /// was written.
    Lost,
    /// I2: handled, but never sent, or rolled back.
    Phantom,
    /// I3: a delivery was acked although a later one had begun, or two were acked.
    WrongAck,
    /// I3: two handlers had the same delivery.
    SharedDelivery,
    /// A session by SQL lost what it had claimed, though it lived.
    TakenFromLiving,
    /// I4: an effect was committed twice, or without the ack.
    Effects,
    /// Its unique key is held although it is done.
    KeyHeld,
    /// I6: delivered again before anything was broken.
    DuplicateInQuiet,
    /// I7: dead-lettered although its task never asked for that.
    DeadInnocent,
    /// I8: still not settled.
    Stuck,
    /// A search reports something other than the records.
    Misreported,
    /// I5: a later message of its partition was begun first, in an ordered group.
    Overtaken,
    /// I9: it has two offsets, or its offset has two messages, or the offset before it has none, or
    /// it is not in the order of commits.
    Offset,
    /// I9: its group was to handle it again, and did not.
    NotReplayed,
    /// A member of a broadcast group learned that it is settled, and a process that later took the
    /// member's name began it.
    HandledAgain,
    /// It was delivered to a group whose filter it does not match.
    Unwanted,
    /// Its trace differs from the records.
    WrongTrace,
    /// I10: it began while its topic's limit of running messages was reached.
    BeyondLimit,
    /// It was handled, and its operator learned that it is cancelled.
    HandledThoughCancelled,
}

/// How many broken promises are reported with their messages' history; the records have them all.
pub(crate) const TOLD: usize = 3;

/// One broken promise.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) breach: Breach,
    /// Its message; `None` if it concerns a whole group.
    pub(crate) share: Option<Share>,
    /// Everything that any actor recorded about the message, and the faults of that time; only for
    /// the first [`TOLD`].
    pub(crate) history: String,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Messages acknowledged.
    pub(crate) enqueued: usize,
    /// Of these, the most within one second.
    pub(crate) peak: u64,
    /// Messages whose commit got no answer.
    pub(crate) in_doubt: usize,
    /// Messages whose effect is complete.
    pub(crate) handled: usize,
    /// Messages of the stream that a group has handled to the end, counted for each group.
    pub(crate) read: usize,
    /// Repeated deliveries of those that no handler had asked for.
    pub(crate) read_again: usize,
    /// How often a group was reset, or replayed a range, in a partition.
    pub(crate) rewinds: usize,
    /// Dead letters whose tasks had asked for it.
    pub(crate) poisoned: usize,
    /// Deliveries beyond the first that no handler had asked for.
    pub(crate) duplicates: usize,
    /// Settlements that were refused because the claim had been taken back.
    pub(crate) fenced: usize,
    /// Connections and statements that the harness broke one by one.
    pub(crate) broken: usize,
    /// Topics deleted, without their messages, while producers sent to them.
    pub(crate) deleted: usize,
    /// Deletions that were refused, or failed.
    pub(crate) undeleted: usize,
    /// Messages that entered a topic while it was deleted, and were given another topic.
    pub(crate) restored: usize,
    /// How often each fault struck, in the order of the first strikes.
    pub(crate) strikes: Vec<(String, usize)>,
    pub(crate) rescue: RescueTimes,
    /// Each loss of the writer, in a cluster.
    pub(crate) failovers: Vec<Failover>,
    pub(crate) violations: Vec<Violation>,
}

impl Findings {
    pub(crate) fn is_sound(&self) -> bool {
        self.is_sound_but_for(&[])
    }

    /// Returns whether every broken promise is among these.
    pub(crate) fn is_sound_but_for(&self, known: &[Breach]) -> bool {
        self.violations.iter().all(|violation| known.contains(&violation.breach))
    }

    pub(crate) fn count(&self, breach: Breach) -> usize {
        self.violations.iter().filter(|violation| violation.breach == breach).count()
    }
}

/// Reads every record in `folder` and checks.
pub(crate) fn check(folder: &Path, leftovers: &Leftovers) -> anyhow::Result<Findings> {
    let mut history = History::read(folder)?;
    history.take_effects(&leftovers.effects);
    let quiet_end = history.phase("faults");
    let mut findings = Findings {
        rescue: rescue::times(&history),
        failovers: failover::times(&history),
        strikes: history.strikes(),
        peak: history.peak(),
        broken: history.broken(),
        rewinds: history.turns.len(),
        deleted: history.deletions.iter().filter(|one| one.deleted).count(),
        undeleted: history.deletions.iter().filter(|one| !one.deleted).count(),
        restored: leftovers.restored.len(),
        ..Findings::default()
    };
    let unseen = Message::default();
    let unseen_of = leftovers.unsettled.keys().chain(leftovers.dead.keys());
    let unseen_of = unseen_of.chain(&leftovers.restored).copied();
    let of_queues = leftovers.found.keys().chain(&leftovers.holders).map(|&tag| tag.into());
    let strangers =
        unseen_of.chain(of_queues).filter(|share| !history.messages.contains_key(share));
    let strangers: HashMap<_, _> = strangers.map(|share| (share, &unseen)).collect();
    let known = history.messages.iter().map(|(&share, message)| (share, message));
    let mut broken = stream::breaches(&history, leftovers);
    broken.extend(trace::breaches(&history, leftovers));
    broken.extend(limits::breaches(&history));
    broken.extend(taken::breaches(&history));
    for (share, message) in known.chain(strangers) {
        count(&mut findings, share, message, leftovers);
        let rewound = history.is_rewound(share);
        let mut breaches = breaches(share, message, leftovers, quiet_end, rewound);
        let kept_apart =
            leftovers.restored.contains(&share) && message.outcome() == Enqueued::Stored;
        if kept_apart && !history.may_outlive_its_topic(message) {
            breaches.push(Breach::Lost);
        }
        broken.extend(breaches.into_iter().map(|breach| (breach, share)));
    }
    broken.sort_by_key(|(_, share)| *share);
    for (breach, share) in broken {
        // Each history reads every record. One defect may break thousands of promises; a few of
        // their histories are enough.
        let told = findings.violations.len() < TOLD;
        let history = if told { history.of(share) } else { String::new() };
        findings.violations.push(Violation { breach, share: Some(share), history });
    }
    for behind in &leftovers.behind {
        let history = format!("  {behind}\n");
        findings.violations.push(Violation { breach: Breach::Stuck, share: None, history });
    }
    Ok(findings)
}

fn count(findings: &mut Findings, share: Share, message: &Message, leftovers: &Leftovers) {
    // Each group has a share of the stream's messages.
    if share.group.is_none_or(|group| group == Group::Plain) {
        match message.outcome() {
            Enqueued::Stored => findings.enqueued += 1,
            Enqueued::InDoubt => findings.in_doubt += 1,
            Enqueued::NotStored => {}
        }
    }
    let (done, again) = match share.group {
        None => (&mut findings.handled, &mut findings.duplicates),
        Some(_) => (&mut findings.read, &mut findings.read_again),
    };
    *done += usize::from(message.is_done());
    *again += message.unasked().count();
    findings.poisoned += usize::from(leftovers.dead.get(&share) == Some(&Ending::Poison));
    findings.fenced += message.settled.iter().filter(|s| s.answer == Answer::Fenced).count();
}

/// `rewound`: its group was reset to a position before it, so its deliveries are counted from the
/// start again.
fn breaches(
    share: Share,
    message: &Message,
    leftovers: &Leftovers,
    quiet_end: Option<Moment>,
    rewound: bool,
) -> Vec<Breach> {
    let unsettled = leftovers.unsettled.contains_key(&share);
    let dead = leftovers.dead.get(&share);
    let restored = leftovers.restored.contains(&share);
    let acknowledged = message.outcome() == Enqueued::Stored;
    let in_quiet = |at: Moment| quiet_end.is_none_or(|end| at < end);
    let exists = unsettled || dead.is_some() || !message.starts.is_empty();
    let exists = exists || restored || leftovers.found.contains_key(&share.tag);
    let gone = !message.is_done() && !unsettled && !restored && dead.is_none();
    let unwanted = share.group.is_some_and(|group| !group.wants(share.tag));
    let is_lost = acknowledged && gone && !message.purged && !unwanted;
    // Each process that takes a member's name counts its deliveries from the start.
    let recounted = rewound || share.group.is_some_and(Group::is_member);
    let broken = [
        (Breach::Lost, is_lost),
        (Breach::Phantom, exists && message.outcome() == Enqueued::NotStored),
        (
            Breach::WrongAck,
            !recounted
                && (message.has_wrong_ack() || message.is_done_and(dead.is_some() || restored)),
        ),
        (Breach::SharedDelivery, !recounted && message.shares_a_delivery()),
        (Breach::Effects, message.has_wrong_effects(unsettled || dead.is_some())),
        (Breach::KeyHeld, share.group.is_none() && leftovers.holders.contains(&share.tag)),
        (Breach::DuplicateInQuiet, message.unasked().any(in_quiet)),
        (Breach::DeadInnocent, dead.is_some_and(|ending| *ending != Ending::Poison)),
        (Breach::Stuck, unsettled),
        (Breach::Unwanted, unwanted && !message.starts.is_empty()),
        (Breach::HandledThoughCancelled, message.is_handled_though_cancelled()),
        (Breach::Misreported, !message.purged && is_misreported(share, leftovers)),
    ];
    broken.into_iter().filter(|(_, is)| *is).map(|(breach, _)| breach).collect()
}

/// Returns whether a search reports something false about a message. Every message with an effect
/// was enqueued in a searchable topic.
fn is_misreported(share: Share, leftovers: &Leftovers) -> bool {
    if share.group.is_some() {
        return false;
    }
    let Some((said, kept)) = leftovers.found.get(&share.tag) else {
        return !leftovers.found.is_empty() && leftovers.effects.contains_key(&share.tag);
    };
    let waits = [StateWord::Ready, StateWord::Claimed, StateWord::Scheduled];
    match (leftovers.dead.contains_key(&share), leftovers.unsettled.contains_key(&share)) {
        (true, _) => *said != StateWord::Dead,
        (false, true) => !waits.contains(said),
        (false, false) => *said != if *kept { StateWord::Done } else { StateWord::Gone },
    }
}

/// Returns whether a handler asked for another delivery.
fn asks_for_another(ended: Ended) -> bool {
    ended != Ended::Done
}
