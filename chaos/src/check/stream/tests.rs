//! Tests that each broken promise about the stream is found, and nothing else.

use crate::check::tests::found;
use crate::check::{Breach, Findings, Leftovers, Trace};
use crate::stream::{Group, Share};
use crate::tag::{Actor, Tag};

/// Actor 4 sends 4:0 to 4:3 to the stream, each after the previous one is stored.
const SENT: &str = "1000000 stream 4\n\
     2000000 invoke 4:0 1\n2100000 enqueue 4:0 1 stored\n\
     2200000 invoke 4:1 1\n2300000 enqueue 4:1 1 stored\n\
     2400000 invoke 4:2 1\n2500000 enqueue 4:2 1 stored\n\
     2600000 invoke 4:3 1\n2700000 enqueue 4:3 1 stored\n";

/// A member begins message `4:seq` at this offset of partition 0, and ends it 10 ms later.
fn reads(at_ms: u64, group: &str, seq: u64, offset: u64) -> String {
    format!(
        "{at_ms}000 read 4:{seq}@{group} 1 0 {offset} 7\n{}000 end 4:{seq}@{group} 1 done\n",
        at_ms + 10
    )
}

/// Returns those of the messages that the group wants.
fn wanted_by(group: Group) -> impl Iterator<Item = u64> {
    (0..4).filter(move |&seq| group.wants(Tag { sender: Actor(4), seq }))
}

/// Every message is read by every group that wants it, in order, one after the other from 3 s on.
fn all_read() -> Vec<String> {
    let of = |group| wanted_by(group).map(move |n| reads(3000 + n * 100, group.word(), n, n));
    Group::ALL.into_iter().flat_map(of).collect()
}

fn findings(lines: &[String], harness: &str) -> Findings {
    let member = ("5-recorder", lines.concat());
    let leftovers = Leftovers::default();
    found(&[("4-sender", SENT), (member.0, &member.1), ("0-harness", harness)], &leftovers)
}

fn broken(lines: &[String], harness: &str) -> Vec<(Breach, String)> {
    let violations = findings(lines, harness).violations;
    let share = |share: Option<Share>| share.map(|share| share.to_string());
    violations.iter().map(|it| (it.breach, share(it.share).unwrap_or_default())).collect()
}

fn one(breach: Breach, share: &str) -> Vec<(Breach, String)> {
    vec![(breach, share.to_owned())]
}

#[test]
fn a_stream_that_every_group_has_read_in_order_is_sound() {
    let findings = findings(&all_read(), "");
    assert!(findings.is_sound(), "{:?}", findings.violations);
    // The queue's message is the fifth.
    assert_eq!((findings.enqueued, findings.handled, findings.read), (5, 1, 14));
}

#[test]
fn a_message_that_one_group_has_not_read_is_lost_though_others_have() {
    let mut lines = all_read();
    lines.remove(3);
    assert_eq!(broken(&lines, ""), one(Breach::Lost, "4:3@plain"));
    lines.remove(0);
    let lost = ["4:0@plain", "4:3@plain"].map(|share| (Breach::Lost, share.to_owned()));
    assert_eq!(broken(&lines, ""), lost);
}

#[test]
fn a_message_of_a_commit_in_doubt_that_one_group_has_read_is_every_groups() {
    let mut lines = all_read();
    lines.extend([reads(3500, "plain", 4, 4), reads(3500, "booked", 4, 4)]);
    let doubt = "2800000 invoke 4:4 1\n";
    let lost = ["4:4@ordered", "4:4@filtered"].map(|share| (Breach::Lost, share.to_owned()));
    assert_eq!(broken(&lines, doubt), lost);
}

#[test]
fn two_places_of_a_message_and_two_messages_of_a_place_are_found() {
    let mut lines = all_read();
    lines[4] = reads(3000, "ordered", 0, 9);
    assert!(broken(&lines, "").iter().any(|(breach, _)| *breach == Breach::Offset));
    let mut lines = all_read();
    lines[9] = reads(3100, "booked", 1, 0);
    assert!(broken(&lines, "").iter().any(|(breach, _)| *breach == Breach::Offset));
}

#[test]
fn an_offset_that_no_message_has_is_found() {
    let of = |group| wanted_by(group).map(move |n| reads(3000 + n, group.word(), n, n + n / 3));
    let unordered = Group::ALL.into_iter().filter(|group| *group != Group::Ordered);
    let mut lines: Vec<_> = unordered.flat_map(of).collect();
    lines.extend((0..4).map(|n| reads(3000 + n * 100, "ordered", n, n + n / 3)));
    assert_eq!(broken(&lines, ""), one(Breach::Offset, "4:3@plain"));
}

/// 4:1 was stored before 4:2 was sent.
#[test]
fn offsets_against_the_order_of_commits_are_found() {
    let place = |seq: u64| [0, 2, 1, 3][usize::try_from(seq).expect("small")];
    let read = |group: Group, n| reads(3000 + place(n) * 100, group.word(), n, place(n));
    let of = |group| wanted_by(group).map(move |n| read(group, n));
    let lines: Vec<_> = Group::ALL.into_iter().flat_map(of).collect();
    assert_eq!(broken(&lines, ""), one(Breach::Offset, "4:1@plain"));
}

#[test]
fn a_message_begun_before_the_one_before_it_has_ended_overtakes_it_in_an_ordered_group_only() {
    let mut lines = all_read();
    lines[5] = reads(3205, "ordered", 1, 1);
    assert_eq!(broken(&lines, ""), one(Breach::Overtaken, "4:2@ordered"));
    let mut lines = all_read();
    lines[1] = reads(3205, "plain", 1, 1);
    assert_eq!(broken(&lines, ""), []);
}

#[test]
fn a_repeat_from_the_mark_on_overtakes_nothing() {
    let mut lines = all_read();
    let again = reads(25_000, "ordered", 1, 1).replace("ordered 1", "ordered 2");
    lines.push(again);
    assert_eq!(broken(&lines, ""), []);
}

/// The harness resets a group to offset 1 at 30 s.
fn put_back(group: &str) -> String {
    format!("30000000 rewind {group} 0 1 99\n30100000 rewound {group} 0 1 99\n")
}

#[test]
fn what_is_not_handled_again_after_a_reset_is_found() {
    let mut lines = all_read();
    let harness = put_back("plain");
    let missing = ["4:1@plain", "4:2@plain", "4:3@plain"];
    let missing = missing.map(|share| (Breach::NotReplayed, share.to_owned()));
    assert_eq!(broken(&lines, &harness), missing);
    lines.extend((1..4).map(|n| reads(31_000 + n, "plain", n, n).replace(" 7\n", " 8\n")));
    assert_eq!(broken(&lines, &harness), []);
}

#[test]
fn what_overtakes_after_a_reset_is_found() {
    let again = |at_ms: u64, n: u64| {
        let lines = reads(at_ms, "ordered", n, n).replace(" 7\n", " 8\n");
        format!("{lines}{}000 settled 4:{n}@ordered 1 ack settled\n", at_ms + 20)
    };
    let harness = put_back("ordered");
    let mut lines = all_read();
    lines.extend((1..4).map(|n| again(31_000 + n * 100, n)));
    assert_eq!(broken(&lines, &harness), []);
    let mut lines = all_read();
    lines.extend([again(31_200, 1), again(31_100, 2), again(31_300, 3)]);
    assert_eq!(broken(&lines, &harness), one(Breach::Overtaken, "4:2@ordered"));
}

#[test]
fn what_groups_are_not_through_with_at_the_end_is_stuck() {
    let behind = vec!["range 1 is left".to_owned()];
    let findings = found(&[], &Leftovers { behind, ..Leftovers::default() });
    assert_eq!(findings.count(Breach::Stuck), 1);
}

/// Actor 6 is a member of the broadcast group, and has read everything.
const MEMBER: &str = "2800000 member member-1\n";

fn all_read_by(member: &str) -> Vec<String> {
    (0..4).map(|n| reads(4000 + n * 100, member, n, n)).collect()
}

fn broken_with_members(members: &[(&str, String)]) -> Vec<(Breach, String)> {
    let all = all_read().concat();
    let mut records = vec![("4-sender", SENT), ("5-recorder", all.as_str())];
    records.extend(members.iter().map(|(name, lines)| (*name, lines.as_str())));
    let violations = found(&records, &Leftovers::default()).violations;
    let share = |share: Option<Share>| share.map(|share| share.to_string());
    violations.iter().map(|it| (it.breach, share(it.share).unwrap_or_default())).collect()
}

#[test]
fn a_message_that_a_broadcast_member_has_not_read_is_lost_though_all_others_have() {
    let mut lines = all_read_by("member-1");
    let sound = [("6-recorder", MEMBER.to_owned() + &lines.concat())];
    assert_eq!(broken_with_members(&sound), []);
    lines.remove(2);
    let lost = [("6-recorder", MEMBER.to_owned() + &lines.concat())];
    assert_eq!(broken_with_members(&lost), one(Breach::Lost, "4:2@member-1"));
    let none = [("6-recorder", MEMBER.to_owned())];
    assert_eq!(broken_with_members(&none).len(), 4, "one that came and read nothing");
}

/// Actor 6 is killed when it has handled everything, and then actor 7 takes its name.
#[test]
fn what_a_member_repeats_after_it_was_settled_is_found_and_other_repeats_are_not() {
    let told = |answer: &str| {
        let settled = format!("4900000 settled 4:1@member-1 1 ack {answer}\n");
        ("6-recorder", MEMBER.to_owned() + &all_read_by("member-1").concat() + &settled)
    };
    let next = ("7-recorder", reads(21_000, "member-1", 1, 1));
    assert_eq!(broken_with_members(&[told("unknown"), next.clone()]), []);
    assert_eq!(
        broken_with_members(&[told("settled"), next]),
        one(Breach::HandledAgain, "4:1@member-1")
    );
    // Actor 7 had read both before actor 6 learned its settlement.
    let beside = reads(4800, "member-1", 0, 0) + &reads(21_000, "member-1", 1, 1);
    let before: Vec<_> = [told("settled"), ("7-recorder", beside)].into();
    assert_eq!(broken_with_members(&before), one(Breach::DuplicateInQuiet, "4:0@member-1"));
}

#[test]
fn a_group_with_a_filter_gets_what_it_wants_and_nothing_else() {
    let mut lines = all_read();
    lines.push(reads(21_000, "filtered", 2, 2));
    assert_eq!(broken(&lines, ""), one(Breach::Unwanted, "4:2@filtered"));
    let wanted = |line: &String| !line.contains("4:1@filtered");
    let lines: Vec<_> = all_read().into_iter().filter(wanted).collect();
    assert_eq!(broken(&lines, ""), one(Breach::Lost, "4:1@filtered"));
}

/// The traces of the four messages that every group has handled.
fn traces() -> Leftovers {
    let mut leftovers = Leftovers::default();
    for seq in 0..4 {
        let tag = Tag { sender: Actor(4), seq };
        leftovers.traces.insert(tag.into(), Trace { enqueued: 1, acked: 0 });
        for group in Group::ALL.into_iter().filter(|group| group.wants(tag)) {
            let share = Share { tag, group: Some(group) };
            leftovers.traces.insert(share, Trace { enqueued: 0, acked: 1 });
        }
    }
    leftovers
}

#[test]
fn a_trace_that_tells_less_or_more_than_the_records_is_found() {
    let wrong = |change: fn(&mut Trace), share: &str| {
        let mut leftovers = traces();
        change(leftovers.traces.get_mut(&share.parse().expect("a share")).expect("traced"));
        let all = all_read().concat();
        let violations = found(&[("4-sender", SENT), ("5-recorder", &all)], &leftovers).violations;
        violations.iter().map(|it| it.breach).collect::<Vec<_>>()
    };
    assert_eq!(wrong(|_| {}, "4:0"), []);
    assert_eq!(wrong(|trace| trace.acked = 0, "4:3@ordered"), [Breach::WrongTrace]);
    assert_eq!(wrong(|trace| trace.acked = 2, "4:1@booked"), [Breach::WrongTrace]);
    let all_groups = [Breach::WrongTrace; Group::ALL.len()];
    assert_eq!(wrong(|trace| trace.enqueued = 0, "4:2"), all_groups);
    assert_eq!(wrong(|trace| trace.enqueued = 2, "4:2"), all_groups);
}
