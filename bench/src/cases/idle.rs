//! The cases of idle consumers, of the memory that a consumer takes, and of the console's pages.

use std::time::Duration;

use super::{BASE, BODY};
use crate::case::{Extent, Measure, Member, Scale, Side};
use crate::figure::Name;
use crate::load::{Delays, Drain, Load, Pages, Pickup, Reconnect, Rescue, Source, Viewers, WakeUp};

pub(super) fn pickup(scale: &Scale) -> Vec<Member> {
    let (messages, idle) = match scale.extent {
        Extent::Quick => (40, 2),
        Extent::Full | Extent::Long => (400, 10),
    };
    let member = |consumers: usize, topics, wake_up: WakeUp| {
        let (idle, rate) = (Duration::from_secs(idle), 20);
        let s = |n| if n == 1 { "" } else { "s" };
        let mut name = format!("{}, {consumers} consumer{}", wake_up.word(), s(consumers));
        if topics > 1 {
            name += &format!(" of {topics} topics");
        }
        let load = Load::Pickup(Pickup { consumers, topics, wake_up, rate, messages, idle });
        Member::new(name, load)
    };
    let most =
        |member: Member, figure, most| member.must(figure, Measure::Value, Side::AtMost(most));
    let polling = most(member(1, 1, WakeUp::Polling), Name::P50, 15.0);
    let mut members = vec![most(polling, Name::P99, 60.0)];
    let p50 = if scale.binlog { 4.0 } else { 3.0 };
    let woken = |consumers, topics, by| {
        let woken = most(member(consumers, topics, by), Name::P50, p50);
        most(most(woken, Name::P99, 10.0), Name::Statements, 500.0)
    };
    let rung = |consumers, topics| woken(consumers, topics, WakeUp::Doorbell);
    members.extend([rung(1, 1), woken(1, 1, WakeUp::Call)]);
    if scale.extent != Extent::Quick {
        members.extend([rung(1, 20), rung(50, 1), rung(50, 20), woken(50, 1, WakeUp::Call)]);
        members.push(member(50, 1, WakeUp::Polling));
    }
    members
}

/// Kills consumers of every kind on an idle machine, and of a queue beside 20 busy processes.
pub(super) fn rescue(scale: &Scale) -> Vec<Member> {
    let kills = if scale.extent == Extent::Quick { 10 } else { 50 };
    let load = |of, beside| Load::Rescue(Rescue { of, kills, beside });
    let must =
        |member: Member, figure, most| member.must(figure, Measure::Value, Side::AtMost(most));
    let sources = [Source::Queue, Source::Group, Source::OrderedGroup, Source::Broadcast];
    let idle = |of: Source| {
        let member = Member::new(format!("of {}", of.word()), load(of, 0));
        must(must(member, Name::P50, 100.0), Name::P99, 200.0)
    };
    let busy = Member::new("of a queue, beside 20 busy processes", load(Source::Queue, 20));
    let reconnects = |name: &str, beside| {
        let losses = if scale.extent == Extent::Quick { 20 } else { 100 };
        let member = Member::new(name, Load::Reconnect(Reconnect { losses, beside }));
        must(member, Name::SecondRuns, 0.0)
    };
    let mut members: Vec<_> = sources.into_iter().map(idle).collect();
    members.push(must(busy, Name::P50, 1000.0));
    members.push(must(reconnects("mere reconnects", 0), Name::P50, 20.0));
    members.push(reconnects("mere reconnects, beside 20 busy processes", 20));
    members
}

pub(super) fn delays(scale: &Scale) -> Vec<Member> {
    let (pending, time, idle) = match scale.extent {
        Extent::Quick => (20_000, 2, 2),
        Extent::Full | Extent::Long => (1_000_000, 20, 10),
    };
    let (time, idle) = (Duration::from_secs(time), Duration::from_secs(idle));
    let load = Load::Delays(Delays { pending, rate: 200, time, idle, body: BODY });
    let bars = [(Name::P50, 10.0), (Name::P99, 100.0), (Name::Cpu, 1.0)];
    let member = Member::new(format!("{pending} wait, 200/s fall due"), load);
    vec![bars.into_iter().fold(member, |member, (figure, most)| {
        member.must(figure, Measure::Value, Side::AtMost(most))
    })]
}

pub(super) fn memory(_scale: &Scale) -> Vec<Member> {
    let limit = Duration::from_secs(300);
    let drain = Drain { consumers: 1, backlog: 1_000_000, limit, ..BASE };
    let member = Member::new("one consumer, 1 M messages", Load::Memory(drain));
    vec![member.must(Name::Resident, Measure::Value, Side::AtMost(60.0))]
}

/// Measures the console: its pages beside a backlog, and what they cost the server while they are
/// open.
pub(super) fn console(scale: &Scale) -> Vec<Member> {
    const ONE: &str = "1 viewer, of a group";
    let (backlog, others, word, asks, time) = match scale.extent {
        Extent::Quick => (20_000, 2_000, "20 k", 5, 4),
        Extent::Full => (1_000_000, 100_000, "1 M", 20, 30),
        Extent::Long => (10_000_000, 1_000_000, "10 M", 20, 30),
    };
    let body = BODY;
    let pages = Load::Pages(Pages { backlog, others, body, asks });
    let viewers = |viewers| {
        let (backlog, time) = (20_000, Duration::from_secs(time));
        Load::Viewers(Viewers { viewers, backlog, body, time })
    };
    vec![
        Member::new(format!("every page beside {word}"), pages).must(
            Name::P99,
            Measure::Value,
            Side::AtMost(200.0),
        ),
        Member::new(ONE, viewers(1)),
        Member::new("50 viewers", viewers(50)).against(ONE).must(
            Name::Statements,
            Measure::Ratio,
            Side::AtMost(1.1),
        ),
    ]
}
