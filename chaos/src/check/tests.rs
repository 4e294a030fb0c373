//! Tests of the check: each broken promise in a record is found, and nothing else.

use std::time::Duration;

use super::*;
use crate::tag::Actor;
use crate::topics::{CALLS, EFFECTS, URGENT, WORK};

/// A run in which message 1:0 is sent, handled by actor 2 and acked, and faults begin after 20 s.
const SOUND: [(&str, &str); 3] = [
    ("0-harness", "0 phase quiet\n20000000 phase faults\n90000000 phase liveness\n"),
    ("1-sender", "1000000 invoke 1:0 1\n1100000 enqueue 1:0 1 stored\n"),
    (
        "2-recorder",
        "1200000 start 1:0 1\n1300000 end 1:0 1 done\n1400000 settled 1:0 1 ack settled\n",
    ),
];

/// Checks these records, each with its additions, and returns the findings.
pub(super) fn found(more: &[(&str, &str)], leftovers: &Leftovers) -> Findings {
    let folder = tempfile::tempdir().expect("a folder");
    let mut records: HashMap<&str, String> = HashMap::new();
    for (name, lines) in SOUND.iter().chain(more) {
        records.entry(name).or_default().push_str(lines);
    }
    for (name, lines) in records {
        std::fs::write(folder.path().join(format!("{name}.log")), lines).expect("written");
    }
    check(folder.path(), leftovers).expect("checked")
}

/// Returns the promises broken in these records.
fn broken(more: &[(&str, &str)]) -> Vec<Breach> {
    let findings = found(more, &Leftovers::default());
    findings.violations.iter().map(|violation| violation.breach).collect()
}

fn dead(ending: Ending) -> Leftovers {
    Leftovers { dead: HashMap::from([(tag(1).into(), ending)]), ..Leftovers::default() }
}

fn tag(seq: u64) -> Tag {
    Tag { sender: Actor(1), seq }
}

/// Message 1:1 is sent and acknowledged in the quiet phase.
const SENT: (&str, &str) = ("1-sender", "2000000 invoke 1:1 1\n2100000 enqueue 1:1 1 stored\n");

#[test]
fn a_run_that_kept_every_promise_is_sound() {
    let findings = found(&[], &Leftovers::default());
    assert!(findings.is_sound(), "{:?}", findings.violations);
    assert_eq!((findings.enqueued, findings.handled, findings.duplicates), (1, 1, 0));
}

/// I4: an effect that the handler has written counts if it was committed, and must go with the
/// message.
#[test]
fn effects_happen_once_and_with_the_ack() {
    let begun = ("2-recorder", "3000000 start 1:1 1\n3100000 effect 1:1 1\n");
    let effects = |n| Leftovers { effects: HashMap::from([(tag(1), n)]), ..Leftovers::default() };
    let breaches = |leftovers: &Leftovers| {
        let findings = found(&[SENT, begun], leftovers);
        findings.violations.iter().map(|violation| violation.breach).collect::<Vec<_>>()
    };
    assert_eq!(breaches(&effects(1)), []);
    assert_eq!(breaches(&effects(2)), [Breach::Effects]);
    assert_eq!(breaches(&Leftovers::default()), [Breach::Lost], "written, and never committed");
    let unsettled = HashMap::from([(tag(1).into(), 1)]);
    let acked_not = Leftovers { unsettled, ..effects(1) };
    assert_eq!(breaches(&acked_not), [Breach::Effects, Breach::Stuck]);
}

#[test]
fn an_acknowledged_message_that_nobody_handled_is_lost() {
    assert_eq!(broken(&[SENT]), [Breach::Lost]);
    let begun = ("2-recorder", "3000000 start 1:1 1\n");
    assert_eq!(broken(&[SENT, begun]), [Breach::Lost]);
}

#[test]
fn a_message_in_doubt_may_be_there_or_not() {
    let in_doubt = ("1-sender", "2000000 invoke 1:1 1\n2100000 enqueue 1:1 1 in-doubt\n");
    let killed = ("1-sender", "2000000 invoke 1:1 1\n");
    let handled = ("2-recorder", "3000000 start 1:1 1\n3100000 end 1:1 1 done\n");
    for sent in [in_doubt, killed] {
        assert_eq!(broken(&[sent]), []);
        assert_eq!(broken(&[sent, handled]), []);
    }
}

#[test]
fn a_message_that_was_never_committed_and_is_handled_is_a_phantom() {
    let handled = ("2-recorder", "3000000 start 1:1 1\n3100000 end 1:1 1 done\n");
    assert_eq!(broken(&[handled]), [Breach::Phantom]);
    let rolled_back = ("1-sender", "2000000 invoke 1:1 1\n2100000 enqueue 1:1 1 not-stored\n");
    assert_eq!(broken(&[rolled_back]), []);
    assert_eq!(broken(&[rolled_back, handled]), [Breach::Phantom]);
}

#[test]
fn an_ack_of_a_delivery_that_was_not_the_latest_is_wrong() {
    let fault = ("0-harness", "21000000 strike kill-consumer\n21000001 heal kill-consumer\n");
    let second = ("3-recorder", "30000000 start 1:1 2\n31000000 end 1:1 2 done\n");
    let first = "22000000 start 1:1 1\n32000000 end 1:1 1 done\n";
    let refused = format!("{first}33000000 settled 1:1 1 ack fenced\n");
    assert_eq!(broken(&[SENT, fault, second, ("2-recorder", &refused)]), []);
    let taken = format!("{first}33000000 settled 1:1 1 ack settled\n");
    assert_eq!(broken(&[SENT, fault, second, ("2-recorder", &taken)]), [Breach::WrongAck]);
    let twice = ("3-recorder", "34000000 settled 1:0 1 ack settled\n");
    assert_eq!(broken(&[twice]), [Breach::WrongAck]);
}

#[test]
fn two_owners_of_one_delivery_are_found() {
    let other = ("3-recorder", "30000000 start 1:0 1\n");
    assert_eq!(broken(&[other]), [Breach::SharedDelivery]);
}

#[test]
fn a_delivery_that_nobody_asked_for_counts_and_in_the_quiet_phase_breaks_a_promise() {
    let first = ("2-recorder", "3000000 start 1:1 1\n");
    let in_quiet = ("3-recorder", "4000000 start 1:1 2\n4100000 end 1:1 2 done\n");
    assert_eq!(broken(&[SENT, first, in_quiet]), [Breach::DuplicateInQuiet]);
    let later = ("3-recorder", "25000000 start 1:1 2\n25100000 end 1:1 2 done\n");
    let findings = found(&[SENT, first, later], &Leftovers::default());
    assert!(findings.is_sound() && findings.duplicates == 1, "{findings:?}");
    let asked = ("2-recorder", "3000000 start 1:1 1\n3100000 end 1:1 1 retry\n");
    let findings = found(&[SENT, asked, in_quiet], &Leftovers::default());
    assert!(findings.is_sound() && findings.duplicates == 0, "{findings:?}");
}

#[test]
fn only_what_asked_for_it_may_be_dead_lettered() {
    let breaches = |ending| {
        let findings = found(&[SENT], &dead(ending));
        findings.violations.iter().map(|violation| violation.breach).collect::<Vec<_>>()
    };
    assert_eq!(breaches(Ending::Poison), []);
    assert_eq!(breaches(Ending::Ack), [Breach::DeadInnocent]);
}

#[test]
fn a_message_that_still_waits_at_the_end_is_stuck_and_not_lost() {
    let left = Leftovers { unsettled: HashMap::from([(tag(1).into(), 1)]), ..Leftovers::default() };
    let findings = found(&[SENT], &left);
    assert_eq!((findings.count(Breach::Stuck), findings.count(Breach::Lost)), (1, 0));
    assert!(findings.violations[0].history.contains("Enqueue"), "{findings:?}");
}

#[test]
fn a_message_that_a_person_purged_is_not_lost() {
    assert_eq!(broken(&[SENT, ("0-harness", "3000000 purge 1:1 1\n")]), []);
}

/// Actor 2 holds 1:1 when it is killed at 30 s; actor 3 begins it 1.5 s later.
const KILLED: [(&str, &str); 4] = [
    SENT,
    (
        "0-harness",
        "30000000 strike kill-consumer\n30000000 hit 2 killed\n30000001 heal kill-consumer\n",
    ),
    ("2-recorder", "29900000 start 1:1 1\n"),
    ("3-recorder", "31500000 start 1:1 2\n31600000 end 1:1 2 done\n"),
];

#[test]
fn a_rescue_is_timed_from_the_hit_to_the_next_delivery() {
    let times = found(&KILLED, &Leftovers::default()).rescue.killed;
    assert_eq!((times.hits, times.sorted), (1, vec![Duration::from_millis(1500)]));
}

/// Found in runs: a consumer that had been frozen was killed later, and no freeze was ever timed.
#[test]
fn a_consumer_that_is_hit_twice_is_timed_twice() {
    let frozen = [
        ("1-sender", "2200000 invoke 1:2 1\n2300000 enqueue 1:2 1 stored\n"),
        (
            "0-harness",
            "60000000 strike freeze-consumer\n60000000 hit 3 frozen\n60000001 heal freeze-consumer\n",
        ),
        ("3-recorder", "59900000 start 1:2 1\n"),
        ("4-recorder", "71000000 start 1:2 2\n"),
        (
            "0-harness",
            "90000000 strike kill-consumer\n90000000 hit 3 killed\n90000001 heal kill-consumer\n",
        ),
    ];
    let times = found(&[&KILLED[..], &frozen].concat(), &Leftovers::default()).rescue;
    assert_eq!((times.killed.hits, times.killed.sorted.len()), (2, 1));
    assert_eq!((times.frozen.hits, times.frozen.sorted), (1, vec![Duration::from_secs(11)]));
}

#[test]
fn a_rescue_near_another_fault_is_not_timed() {
    for other in [
        "38000000 strike poison\n38000001 heal poison\n",
        "5000000 strike cut-all\n21000000 heal cut-all\n",
        "25000000 strike crash-server\n",
    ] {
        let near = [&KILLED[..], &[("0-harness", other)]].concat();
        let times = found(&near, &Leftovers::default()).rescue.killed;
        assert_eq!((times.hits, times.sorted.len()), (0, 0), "{other}");
    }
}

/// As [`KILLED`], for a group of the stream: actor 2 has had 1:1 before, and lost its claim.
const OF_GROUP: [(&str, &str); 3] = [
    ("1-sender", "0 stream 1\n2000000 invoke 1:1 1\n2100000 enqueue 1:1 1 stored\n"),
    KILLED[1],
    ("2-recorder", "15000000 read 1:1@plain 1 0 7 3\n15100000 settled 1:1@plain 1 ack unknown\n"),
];

#[test]
fn what_a_killed_member_of_a_group_had_begun_is_timed() {
    let again = ("3-recorder", "31500000 read 1:1@plain 2 0 7 1\n");
    let times = found(&[&OF_GROUP[..], &[again]].concat(), &Leftovers::default()).rescue;
    let took = vec![Duration::from_millis(1500)];
    assert_eq!((times.killed_members.hits, times.killed_members.sorted), (1, took));
    // A member of a broadcast group starts to count again when another process takes its name.
    let member = OF_GROUP.map(|(name, lines)| (name, lines.replace("plain", "member-1")));
    let again = ("3-recorder", "31700000 read 1:1@member-1 1 0 7 1\n".to_owned());
    let records: Vec<_> =
        member.iter().chain([&again]).map(|(name, lines)| (*name, lines.as_str())).collect();
    let times = found(&records, &Leftovers::default()).rescue.killed_members;
    assert_eq!(times.sorted, [Duration::from_millis(1700)]);
}

/// Found in runs: messages that a reset had brought back were timed as rescued, half a minute after
/// a kill of a consumer that had lost them long before.
#[test]
fn what_a_reset_brings_again_and_what_another_has_begun_was_not_rescued() {
    let rewound = ("0-harness", "60000000 rewind plain 0 0 99\n60100000 rewound plain 0 0 99\n");
    let early = ("0-harness", "14000000 rewind plain 0 0 99\n14100000 rewound plain 0 0 99\n");
    let again = ("3-recorder", "61000000 read 1:1@plain 1 0 7 1\n62000000 start 1:1@plain 2\n");
    let other = ("4-recorder", "20000000 read 1:1@plain 2 0 7 1\n");
    let late = ("3-recorder", "62000000 read 1:1@plain 3 0 7 1\n");
    for (more, rated) in [
        (vec![rewound, again], 0),
        (vec![other, late], 0),
        (vec![("2-recorder", "15200000 end 1:1@plain 1 retry\n"), late], 0),
        (vec![early, ("3-recorder", "31500000 read 1:1@plain 2 0 7 1\n")], 1),
        (vec![("3-recorder", "61000000 read 1:1@plain 2 0 7 1\n")], 1),
    ] {
        let records = [&OF_GROUP[..], &more].concat();
        let times = found(&records, &Leftovers::default()).rescue.killed_members;
        assert_eq!(times.sorted.len(), rated, "{more:?}");
    }
}

#[test]
fn a_search_must_say_of_a_message_what_the_records_say() {
    let breaches = |said, kept, more: Leftovers| {
        let found = HashMap::from([(tag(0), (said, kept))]);
        let findings = found_in(&Leftovers { found, ..more });
        findings.count(Breach::Misreported)
    };
    let none = Leftovers::default;
    assert_eq!(breaches(StateWord::Gone, false, none()), 0);
    assert_eq!(breaches(StateWord::Done, true, none()), 0);
    for (said, kept) in [
        (StateWord::Gone, true),
        (StateWord::Done, false),
        (StateWord::Ready, false),
        (StateWord::Dead, false),
    ] {
        assert_eq!(breaches(said, kept, none()), 1, "{said:?}");
    }
    let dead = || Leftovers { dead: HashMap::from([(tag(0).into(), Ending::Poison)]), ..none() };
    assert_eq!(breaches(StateWord::Dead, false, dead()), 0);
    assert_eq!(breaches(StateWord::Gone, false, dead()), 1);
    let waits = || Leftovers { unsettled: HashMap::from([(tag(0).into(), 1)]), ..none() };
    assert_eq!(breaches(StateWord::Scheduled, false, waits()), 0);
    assert_eq!(breaches(StateWord::Gone, false, waits()), 1);
    // It has an effect, but the search does not find it.
    let unknown = Leftovers {
        effects: HashMap::from([(tag(0), 1)]),
        found: HashMap::from([(tag(1), (StateWord::Gone, false))]),
        ..none()
    };
    assert_eq!(found_in(&unknown).count(Breach::Misreported), 1);
}

/// Returns the findings in a sound run's records, with these leftovers.
fn found_in(leftovers: &Leftovers) -> Findings {
    found(&[], leftovers)
}

/// I10: three may run at once.
#[test]
fn a_run_beyond_the_limit_is_found_unless_its_claim_may_have_been_lost() {
    let sent = ("1-sender", "2000000 invoke 1:1 4\n2100000 enqueue 1:1 4 stored\n");
    let run = |seq: u64, from: u64, to: u64, answer: &str| {
        format!(
            "{from} start 1:{seq} 1\n{to} effect 1:{seq} 1\n\
             {to} settled 1:{seq} 1 ack {answer}\n"
        )
    };
    let three: String = (1..4).map(|seq| run(seq, 3_000_000 + seq, 4_000_000, "settled")).collect();
    let effects = (1..5).map(|seq| (tag(seq), 1)).collect();
    let leftovers = Leftovers { effects, ..Leftovers::default() };
    let breaches = |topic: &str, fourth: String| {
        let lines = format!("{three}{fourth}");
        let queue = format!("0 queue {topic}\n");
        let findings = found(&[sent, ("1-sender", &queue), ("2-recorder", &lines)], &leftovers);
        findings.violations.iter().map(|violation| violation.breach).collect::<Vec<_>>()
    };
    let beside = |answer| run(4, 3_500_000, 5_000_000, answer);
    for limited in [EFFECTS, URGENT] {
        assert_eq!(breaches(limited, run(4, 4_000_001, 5_000_000, "settled")), []);
        assert_eq!(breaches(limited, beside("settled")), [Breach::BeyondLimit]);
        assert_eq!(breaches(limited, beside("fenced")), []);
    }
    // Five of the first, and any number of the second, may run at once.
    assert_eq!([CALLS, WORK].map(|topic| breaches(topic, beside("settled"))), [[], []]);
}

#[test]
fn a_message_is_cancelled_or_handled_and_never_both() {
    let cancelled = ("0-harness", "2500000 purge 1:1 1\n2600000 cancelled 1:1\n");
    assert_eq!(broken(&[SENT, cancelled]), []);
    let handled = (
        "2-recorder",
        "2400000 start 1:1 1\n2450000 end 1:1 1 done\n2700000 settled 1:1 1 ack settled\n",
    );
    assert_eq!(broken(&[SENT, cancelled, handled]), [Breach::HandledThoughCancelled]);
    let asked = ("0-harness", "2500000 purge 1:1 1\n");
    assert_eq!(broken(&[SENT, asked, handled]), [], "the operator was told that it failed");
}

/// A deletion of the message's topic that succeeded, from 3 s to 5 s.
const DELETED: (&str, &str) =
    ("0-harness", "3000000 delete brief-1\n5000000 remade brief-1 true\n");

/// F40: a message that a transaction has written prevents a deletion.
#[test]
fn a_message_whose_topic_was_deleted_after_it_was_written_is_lost() {
    let sent =
        |inserted: &str| format!("2000000 invoke 1:1 1\n{inserted}6000000 enqueue 1:1 1 stored\n");
    let breaches = |inserted: &str, deletion| {
        let leftovers = Leftovers { restored: [tag(1).into()].into(), ..Leftovers::default() };
        let findings = found(&[("1-sender", &sent(inserted)), deletion], &leftovers);
        assert_eq!(findings.restored, 1);
        findings.violations.iter().map(|violation| violation.breach).collect::<Vec<_>>()
    };
    assert_eq!(breaches("2500000 inserted 1:1 1 brief-1\n", DELETED), [Breach::Lost]);
    // Its snapshot was older than the deletion.
    assert_eq!(breaches("5500000 inserted 1:1 1 brief-1\n", DELETED), []);
    let other = ("0-harness", "3000000 delete brief-2\n5000000 remade brief-2 true\n");
    assert_eq!(breaches("5500000 inserted 1:1 1 brief-1\n", other), [Breach::Lost]);
    let before = ("0-harness", "1500000 delete brief-1\n1900000 remade brief-1 true\n");
    assert_eq!(breaches("5500000 inserted 1:1 1 brief-1\n", before), [Breach::Lost]);
    let never_over = ("0-harness", "1500000 delete brief-1\n");
    assert_eq!(breaches("5500000 inserted 1:1 1 brief-1\n", never_over), []);
}

#[test]
fn a_message_of_a_deleted_topic_is_kept_and_never_handled_nor_made_up() {
    let restored = || Leftovers { restored: [tag(1).into()].into(), ..Leftovers::default() };
    let breaches = |more: &[(&str, &str)]| {
        let findings = found(&[more, &[DELETED]].concat(), &restored());
        findings.violations.iter().map(|violation| violation.breach).collect::<Vec<_>>()
    };
    let late = (
        "1-sender",
        "2000000 invoke 1:1 1\n6000000 inserted 1:1 1 brief-1\n6100000 enqueue 1:1 1 stored\n",
    );
    assert_eq!(breaches(&[late]), []);
    let acked = (
        "3-recorder",
        "7000000 start 1:1 1\n7100000 end 1:1 1 done\n7200000 settled 1:1 1 ack settled\n",
    );
    assert_eq!(breaches(&[late, acked]), [Breach::WrongAck]);
    let rolled_back = ("1-sender", "2000000 invoke 1:1 1\n6100000 enqueue 1:1 1 not-stored\n");
    assert_eq!(breaches(&[rolled_back]), [Breach::Phantom]);
    let findings = found(&[late, DELETED], &Leftovers::default());
    assert_eq!((findings.count(Breach::Lost), findings.deleted), (1, 1), "it is nowhere");
}

/// F13, F41: a claim that fails takes no other claim from its session.
#[test]
fn what_a_living_session_by_sql_has_claimed_stays_its_own() {
    let caller = "21000000 caller\n30000000 start 1:1 1\n31000000 settled 1:1 1 ack fenced\n";
    let again = ("3-recorder", "30500000 start 1:1 2\n30600000 end 1:1 2 done\n");
    let breaches = |more: &[(&str, &str)]| broken(&[&[SENT, again], more].concat());
    assert_eq!(breaches(&[("2-recorder", caller)]), [Breach::TakenFromLiving]);
    let mild = ("0-harness", "25000000 strike deadlock-storm\n32000000 heal deadlock-storm\n");
    assert_eq!(breaches(&[("2-recorder", caller), mild]), [Breach::TakenFromLiving]);
    for excuse in [
        "25000000 strike stall-server\n29000000 heal stall-server\n",
        "30900000 strike cut-all\n",
        "30100000 purge 1:1 1\n",
    ] {
        assert_eq!(breaches(&[("2-recorder", caller), ("0-harness", excuse)]), [], "{excuse}");
    }
    let late = caller.replace("31000000", "36000000");
    assert_eq!(breaches(&[("2-recorder", &late)]), [], "its lease may be over");
    let library = caller.replace("21000000 caller\n", "");
    assert_eq!(breaches(&[("2-recorder", &library)]), []);
}
