//! A stream's promises about its offsets and to its groups, checked only by what members saw.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use super::history::{History, Turn};
use super::message::{Message, Start};
use super::{Breach, Leftovers};
use crate::record::{Answer, Enqueued, LogPosition, Moment, Replayed};
use crate::stream::{Group, Share, key_of};
use crate::tag::{Actor, Tag};

/// Returns the promises that are broken, with their messages.
pub(super) fn breaches(history: &History, leftovers: &Leftovers) -> Vec<(Breach, Share)> {
    let mut broken = Vec::new();
    let log = Log::read(history, &mut broken);
    log.check_partitions_of_keys(&mut broken);
    for (&partition, offsets) in &log.partitions {
        check_density(offsets, &mut broken);
        check_commits(history, offsets, &mut broken);
        check_order(history, leftovers, partition, offsets, &mut broken);
    }
    for turn in &history.turns {
        log.check_turn(history, turn, leftovers, &mut broken);
    }
    log.check_doubtful(history, leftovers, &mut broken);
    check_members(history, &mut broken);
    broken
}

/// The messages of the stream by their places.
#[derive(Default)]
struct Log {
    partitions: BTreeMap<u32, BTreeMap<u64, Tag>>,
}

/// Returns the share of the plain group.
fn plain(tag: Tag) -> Share {
    Share { tag, group: Some(Group::Plain) }
}

impl Log {
    /// Reads the log. Each message must have the same place whenever any member reads it, and each
    /// place must have one message.
    fn read(history: &History, broken: &mut Vec<(Breach, Share)>) -> Self {
        let mut log = Self::default();
        let mut known: HashMap<Tag, (u32, u64)> = HashMap::new();
        for (share, message) in &history.messages {
            for LogPosition { partition, offset, .. } in message.places() {
                let other = *known.entry(share.tag).or_insert((partition, offset));
                let of_partition = log.partitions.entry(partition).or_default();
                let holder = *of_partition.entry(offset).or_insert(share.tag);
                if other != (partition, offset) || holder != share.tag {
                    broken.push((Breach::Offset, *share));
                }
            }
        }
        log
    }

    /// Checks that, since the request, the group has successfully handled the range again.
    fn check_turn(
        &self,
        history: &History,
        turn: &Turn,
        leftovers: &Leftovers,
        broken: &mut Vec<(Breach, Share)>,
    ) {
        let Replayed { group, partition, lo, hi } = turn.replayed;
        let offsets = self.partitions.get(&partition);
        for (_, &tag) in offsets.into_iter().flat_map(|all| all.range(lo..hi.max(lo))) {
            let share = Share { tag, group: Some(group) };
            if !group.wants(tag) {
                continue;
            }
            let again = |message: &Message| message.done().any(|at| at >= turn.since);
            let is_dead = leftovers.dead.contains_key(&share);
            if !is_dead && !history.messages.get(&share).is_some_and(again) {
                broken.push((Breach::NotReplayed, share));
            }
        }
    }

    /// Checks that what one group has read was committed, even if its sender does not know it.
    fn check_doubtful(
        &self,
        history: &History,
        leftovers: &Leftovers,
        broken: &mut Vec<(Breach, Share)>,
    ) {
        let tags = self.partitions.values().flat_map(BTreeMap::values);
        let groups = history.groups();
        let wanted = |tag| groups.iter().copied().filter(move |group| group.wants(tag));
        for share in
            tags.flat_map(|&tag| wanted(tag).map(move |group| Share { tag, group: Some(group) }))
        {
            let message = history.messages.get(&share);
            let in_doubt = message.is_none_or(|known| known.outcome() == Enqueued::InDoubt);
            let is_done = message.is_some_and(Message::is_done);
            let is_left = leftovers.dead.contains_key(&share);
            let is_left = is_left || leftovers.unsettled.contains_key(&share);
            if in_doubt && !is_done && !is_left {
                broken.push((Breach::Lost, share));
            }
        }
    }

    fn check_partitions_of_keys(&self, broken: &mut Vec<(Breach, Share)>) {
        let mut known: HashMap<String, u32> = HashMap::new();
        for (&partition, offsets) in &self.partitions {
            for &tag in offsets.values() {
                let Some(key) = key_of(tag) else { continue };
                if *known.entry(key).or_insert(partition) != partition {
                    broken.push((Breach::Offset, plain(tag)));
                }
            }
        }
    }
}

/// Checks that offsets run from 0 without gaps: every group has read every message.
fn check_density(offsets: &BTreeMap<u64, Tag>, broken: &mut Vec<(Breach, Share)>) {
    for ((&offset, &tag), expected) in offsets.iter().zip(0..) {
        if offset != expected {
            broken.push((Breach::Offset, plain(tag)));
            return;
        }
    }
}

/// Checks that a message that was acknowledged before another message was sent comes before it,
/// whichever actors sent them, and that messages sent together keep their order.
fn check_commits(
    history: &History,
    offsets: &BTreeMap<u64, Tag>,
    broken: &mut Vec<(Breach, Share)>,
) {
    let mut latest_sent = Moment::default();
    let mut last: HashMap<(Actor, Moment), u64> = HashMap::new();
    for &tag in offsets.values() {
        let Some(message) = history.messages.get(&plain(tag)) else { continue };
        // Phantoms are found elsewhere.
        let Some(sent) = message.invoked else { continue };
        let late = matches!(message.outcome, Some((at, Enqueued::Stored)) if at < latest_sent);
        let before = last.insert((tag.sender, sent), tag.seq);
        if late || before.is_some_and(|seq| seq > tag.seq) {
            broken.push((Breach::Offset, plain(tag)));
        }
        latest_sent = latest_sent.max(sent);
    }
}

/// Checks broadcast members. The position of a named member is behind every message that it
/// settled: a process that takes the name later does not begin such a message. A process may still
/// begin what it read before it lost the name.
fn check_members(history: &History, broken: &mut Vec<(Breach, Share)>) {
    let first_reads = history.first_reads();
    for (share, message) in &history.messages {
        if !share.group.is_some_and(Group::is_member) {
            continue;
        }
        let is_later = |start: &Start| message.acks().any(|ack| ack.at < first_reads[&start.actor]);
        if message.starts.iter().any(is_later) {
            broken.push((Breach::HandledAgain, *share));
        }
    }
}

/// Checks the ordered group. A message may begin only when all messages before it in its partition
/// have ended. It may begin again later; after a reset, the group first handles again the messages
/// between the new position and this message.
fn check_order(
    history: &History,
    leftovers: &Leftovers,
    partition: u32,
    offsets: &BTreeMap<u64, Tag>,
    broken: &mut Vec<(Breach, Share)>,
) {
    let ordered = |tag| Share { tag, group: Some(Group::Ordered) };
    let is_over = |share| leftovers.dead.contains_key(&share);
    // For each offset: when all messages before it had ended.
    let free_since = |since: Moment, lo: u64| {
        let mut free = BTreeMap::new();
        let mut all_done = since;
        for (&offset, &tag) in offsets.range(lo..) {
            free.insert(offset, all_done);
            let message = history.messages.get(&ordered(tag));
            let done = message.and_then(|message| message.done().filter(|at| *at >= since).min());
            if !is_over(ordered(tag)) {
                all_done = all_done.max(done.unwrap_or(Moment::LATEST));
            }
        }
        free
    };
    let free = free_since(Moment::default(), 0);
    let is_here = |turn: &&Turn| {
        (turn.replayed.group, turn.replayed.partition) == (Group::Ordered, partition)
    };
    let turns: Vec<_> = history.turns.iter().filter(is_here).collect();
    let claims = claims(history, partition);
    let again: Vec<_> = turns.iter().map(|turn| free_since(turn.since, turn.replayed.lo)).collect();
    for (offset, &tag) in offsets {
        let Some(message) = history.messages.get(&ordered(tag)) else { continue };
        for start in &message.starts {
            let mut overtakes = free.get(offset).is_some_and(|free| start.at < *free);
            // A session by SQL does not know the place.
            let Some(place) = start.place else {
                if overtakes {
                    broken.push((Breach::Overtaken, ordered(tag)));
                }
                continue;
            };
            // The last turn that was committed before its claim began.
            let claim = &claims[&(start.actor, place.claim_no)];
            let turn = turns.iter().rposition(|turn| {
                turn.replayed.covers(partition, *offset) && turn.until < claim.from
            });
            if let Some(turn) = turn.filter(|_| claim.is_sound) {
                overtakes |= again[turn].get(offset).is_some_and(|free| start.at < *free);
            }
            if overtakes {
                broken.push((Breach::Overtaken, ordered(tag)));
            }
        }
    }
}

/// A range that a member of the ordered group held.
#[derive(Debug, Clone, Copy)]
struct Claim {
    /// When its first message was begun.
    from: Moment,
    /// Whether it was settled at least in part, and no settlement was fenced.
    is_sound: bool,
}

/// Returns the claims of the ordered group in a partition, by their member and number.
fn claims(history: &History, partition: u32) -> HashMap<(Actor, u64), Claim> {
    let mut claims: HashMap<(Actor, u64), (Claim, bool)> = HashMap::new();
    for (share, message) in &history.messages {
        if share.group != Some(Group::Ordered) {
            continue;
        }
        for start in &message.starts {
            let Some(place) = start.place.filter(|place| place.partition == partition) else {
                continue;
            };
            let answers = |answer| {
                message.settled.iter().any(|settled| {
                    (settled.actor, settled.delivery_no) == (start.actor, start.delivery_no)
                        && settled.at >= start.at
                        && settled.answer == answer
                })
            };
            let new = (Claim { from: start.at, is_sound: false }, false);
            let (claim, fenced) = claims.entry((start.actor, place.claim_no)).or_insert(new);
            claim.from = claim.from.min(start.at);
            claim.is_sound |= answers(Answer::Settled);
            *fenced |= answers(Answer::Fenced);
        }
    }
    let sound =
        |(claim, fenced): (Claim, bool)| Claim { is_sound: claim.is_sound && !fenced, ..claim };
    claims.into_iter().map(|(key, found)| (key, sound(found))).collect()
}
