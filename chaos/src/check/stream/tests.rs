//! Each promise about the stream, broken in a record, is found, and nothing else is.

use crate::check::tests::found;
use crate::check::{Breach, Findings, Leftovers};
use crate::stream::Group;

/// Actor 4 sends 4:0 to 4:3 to the stream, each when the one before is stored.
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

/// Every message is read by every group, in order, one after the other from 3 s on.
fn all_read() -> Vec<String> {
    let of = |group: Group| (0..4).map(move |n| reads(3000 + n * 100, group.word(), n, n));
    Group::ALL.into_iter().flat_map(of).collect()
}

fn findings(lines: &[String], harness: &str) -> Findings {
    let member = ("5-recorder", lines.concat());
    let leftovers = Leftovers::default();
    found(&[("4-sender", SENT), (member.0, &member.1), ("0-harness", harness)], &leftovers)
}

fn broken(lines: &[String], harness: &str) -> Vec<(Breach, String)> {
    let violations = findings(lines, harness).violations;
    let share = |share: Option<crate::tag::Share>| share.map(|share| share.to_string());
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
    assert_eq!((findings.enqueued, findings.handled, findings.read), (5, 1, 12));
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
    assert_eq!(broken(&lines, doubt), one(Breach::Lost, "4:4@ordered"));
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
    let of = |group: Group| (0..4).map(move |n| reads(3000 + n, group.word(), n, n + n / 3));
    let mut lines: Vec<_> = [Group::Plain, Group::Booked].into_iter().flat_map(of).collect();
    lines.extend((0..4).map(|n| reads(3000 + n * 100, "ordered", n, n + n / 3)));
    assert_eq!(broken(&lines, ""), one(Breach::Offset, "4:3@plain"));
}

/// 4:1 was stored before 4:2 was sent.
#[test]
fn offsets_against_the_order_of_commits_are_found() {
    let place = |seq: u64| [0, 2, 1, 3][usize::try_from(seq).expect("small")];
    let of =
        |group: Group| (0..4).map(move |n| reads(3000 + place(n) * 100, group.word(), n, place(n)));
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

/// The harness puts a group back to offset 1 at 30 s.
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
