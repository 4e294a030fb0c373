//! The cases of claiming and settling.

use std::time::Duration;

use super::{BASE, BODY};
use crate::case::{Extent, Measure, Member, Scale, Side};
use crate::figure::Name;
use crate::load::{Backlog, Beside, Claimer, Commit, Drain, Insert, Load, Steady, Table};

const BARE: &str = "bare claim + settle";
const OURS: &str = "consumer";

pub(super) fn base(scale: &Scale) -> Vec<Member> {
    let drain = Drain { backlog: scale.backlog, ..BASE };
    vec![
        Member::new(BARE, by(Claimer::Bare, drain)),
        Member::new(OURS, Load::Drain(drain)).against(BARE).bar(0.8),
        Member::new("bare select + delete", by(Claimer::SelectDelete, drain)).against(BARE),
        Member::new("read by key, nothing written", by(Claimer::RangeRead, drain)).against(BARE),
    ]
}

/// One consumer; the backlogs are what each drains in seconds.
pub(super) fn programs(scale: &Scale) -> Vec<Member> {
    let one = |name: &str, claimer, share| {
        let drain = Drain { consumers: 1, concurrency: 4, backlog: scale.backlog / share, ..BASE };
        Member::new(name, by(claimer, drain))
    };
    vec![
        one(OURS, Claimer::Consumer, 1),
        one("pool of 4 Python programs", Claimer::Pool, 4).against(OURS),
        one("exec, 4 at once", Claimer::Exec, 1000).against(OURS),
    ]
}

/// One process each: one session by SQL, with transactions of a hundred messages.
pub(super) fn clients(scale: &Scale) -> Vec<Member> {
    let of =
        |by, share| Load::Drain(Drain { by, consumers: 1, backlog: scale.backlog / share, ..BASE });
    let bare = "queue_claim by the bare driver, 100 settled together";
    vec![
        Member::new(OURS, of(Claimer::Consumer, 1)),
        Member::new(bare, of(Claimer::CallAll, 4)).against(OURS),
        Member::new("worker in Python", of(Claimer::Python, 4)).against(OURS),
        Member::new("worker in PHP", of(Claimer::Php, 4)).against(OURS),
        Member::new("worker in Node.js", of(Claimer::Node, 4)).against(OURS),
    ]
}

fn by(by: Claimer, drain: Drain) -> Load {
    Load::Drain(Drain { by, ..drain })
}

pub(super) fn by_thousands(scale: &Scale) -> Vec<Member> {
    let drain = Drain { backlog: scale.backlog * 2, batch: 1000, ..BASE };
    let raw = Insert {
        table: Table::Bare,
        commit: Commit::Auto,
        connections: 4,
        rows: 1000,
        body: BODY,
        time: Duration::from_secs(scale.seconds),
    };
    let reference = "raw INSERT of 1000, bare table";
    vec![
        Member::new(reference, Load::Insert(raw)),
        Member::new(OURS, Load::Drain(drain)).against(reference).bar(0.20),
        Member::new(BARE, by(Claimer::Bare, drain)).against(reference),
    ]
}

/// Returns two members for each of these loads: the bare statements and our consumer.
fn pairs(drains: impl IntoIterator<Item = (String, Drain)>) -> Vec<Member> {
    let pair = |(what, drain): (String, Drain)| {
        let reference = format!("{BARE}, {what}");
        [
            Member::new(reference.clone(), by(Claimer::Bare, drain)),
            Member::new(format!("{OURS}, {what}"), Load::Drain(drain)).against(reference),
        ]
    };
    drains.into_iter().flat_map(pair).collect()
}

pub(super) fn batches(scale: &Scale) -> Vec<Member> {
    let sizes = [(1, 40), (10, 8), (100, 1), (1000, 1)];
    pairs(sizes.map(|(batch, share)| {
        let backlog = scale.backlog / share;
        (format!("batch {batch}"), Drain { batch, backlog, ..BASE })
    }))
}

pub(super) fn consumers(scale: &Scale) -> Vec<Member> {
    pairs([1, 4, 16].map(|consumers| {
        let drain = Drain { consumers, backlog: scale.backlog, ..BASE };
        (format!("{consumers} processes"), drain)
    }))
}

pub(super) fn bodies(scale: &Scale) -> Vec<Member> {
    let sizes = [(200, 1), (2 * 1024, 4), (64 * 1024, 80)];
    pairs(sizes.map(|(body, share)| {
        (format!("{body} bytes"), Drain { body, backlog: scale.backlog / share, ..BASE })
    }))
}

pub(super) fn strategies(scale: &Scale) -> Vec<Member> {
    let members = [(100, 1), (1, 40)].map(|(batch, share)| {
        let drain = Drain { batch, backlog: scale.backlog / share, ..BASE };
        let reference = format!("skip-locked, batch {batch}");
        let other = |name, claimer| {
            Member::new(format!("{name}, batch {batch}"), by(claimer, drain)).against(&reference)
        };
        [
            Member::new(reference.clone(), Load::Drain(drain)),
            other("update-then-select", Claimer::UpdateThenSelect),
            other("update-limit", Claimer::UpdateLimit),
        ]
    });
    members.into_iter().flatten().collect()
}

pub(super) fn effects(scale: &Scale) -> Vec<Member> {
    let drain = Drain { batch: 16, backlog: scale.backlog / 8, ..BASE };
    let reference = "consumer, acks in micro-batches";
    vec![
        Member::new(reference, Load::Drain(drain)),
        Member::new("transactional handlers", by(Claimer::Transactional, drain)).against(reference),
    ]
}

pub(super) fn seeds(scale: &Scale) -> Vec<Member> {
    let drain = Drain { consumers: 16, backlog: scale.backlog, ..BASE };
    let naive = Drain { backlog: scale.backlog / 2, limit: Duration::from_secs(20), ..drain };
    let reference = "seed 003: biz, conn_id, status";
    let update = "seed 004: update-then-select";
    vec![
        Member::new(reference, by(Claimer::Seed003, naive)),
        Member::new(update, by(Claimer::Seed004, naive)).against(reference),
        Member::new("seed 004: blocking FOR UPDATE", by(Claimer::Seed004ForUpdate, naive))
            .against(update),
        Member::new(OURS, Load::Drain(drain)).against(reference).bar(5.0),
        Member::new("consumer (÷ seed 004)", Load::Drain(drain)).against(update).bar(5.0),
    ]
}

pub(super) fn long_reader(scale: &Scale) -> Vec<Member> {
    let drain = Drain { backlog: scale.backlog, ..BASE };
    let held = Drain { long_reader: true, ..drain };
    let naive = Drain {
        by: Claimer::Seed004,
        backlog: scale.backlog / 2,
        limit: Duration::from_secs(20),
        ..drain
    };
    let naive_held = Drain { long_reader: true, ..naive };
    vec![
        Member::new(OURS, Load::Drain(drain)),
        Member::new("consumer, long transaction", Load::Drain(held)).against(OURS).bar(0.6),
        Member::new("seed 004", Load::Drain(naive)),
        Member::new("seed 004, long transaction", Load::Drain(naive_held)).against("seed 004"),
    ]
}

pub(super) fn steady(scale: &Scale) -> Vec<Member> {
    let time = match scale.extent {
        Extent::Quick => 5,
        Extent::Full | Extent::Long => 60,
    };
    let load = Steady { drain: BASE, send: 100, time: Duration::from_secs(time) };
    vec![Member::new("one producer, four consumers", Load::Steady(load))]
}

pub(super) fn backlogs(scale: &Scale) -> Vec<Member> {
    let sizes: &[(u64, &str)] = match scale.extent {
        Extent::Quick => &[(10_000, "10 k"), (100_000, "100 k")],
        Extent::Full => &[(10_000, "10 k"), (100_000, "100 k"), (1_000_000, "1 M")],
        Extent::Long => &[(10_000, "10 k"), (1_000_000, "1 M"), (10_000_000, "10 M")],
    };
    let load = |backlog| timed(backlog, Beside::Nothing);
    let members = sizes.iter().map(|(backlog, name)| {
        let member = Member::new(format!("behind {name}"), load(*backlog));
        if *backlog == 10_000 {
            return member;
        }
        member.against("behind 10 k").must(Name::P99, Measure::Ratio, Side::AtMost(1.5))
    });
    members.collect()
}

fn timed(backlog: u64, beside: Beside) -> Load {
    // 60 claims of 100 do not empty the smallest backlog.
    Load::Backlog(Backlog { backlog, beside, batch: 100, claims: 60, body: BODY })
}

pub(super) fn beside(scale: &Scale) -> Vec<Member> {
    let finished = if scale.extent == Extent::Long { 10_000_000 } else { 1_000_000 };
    let reference = "nothing beside";
    let beside = |name: String, beside| {
        let member = Member::new(name, timed(20_000, beside)).against(reference);
        member.must(Name::P99, Measure::Ratio, Side::AtMost(1.5))
    };
    vec![
        Member::new(reference, timed(20_000, Beside::Nothing)),
        beside(format!("{} M finished", finished / 1_000_000), Beside::Finished(finished)),
        beside("1 M scheduled".to_owned(), Beside::Scheduled(1_000_000)),
    ]
}
