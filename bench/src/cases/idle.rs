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
    let load = |consumers, wake_up| {
        let idle = Duration::from_secs(idle);
        Load::Pickup(Pickup { consumers, wake_up, rate: 20, messages, idle })
    };
    let name = |consumers: usize, wake_up: WakeUp| {
        let s = if consumers == 1 { "" } else { "s" };
        format!("{}, {consumers} consumer{s}", wake_up.word())
    };
    let value =
        |member: Member, figure, most| member.must(figure, Measure::Value, Side::AtMost(most));
    let one = |wake_up, p50, p99, statements| {
        let member = Member::new(name(1, wake_up), load(1, wake_up));
        let member = value(value(member, Name::P50, p50), Name::P99, p99);
        value(member, Name::Statements, statements)
    };
    let mut members = vec![one(WakeUp::Polling, 15.0, 60.0, 40.0)];
    if scale.binlog {
        members.push(one(WakeUp::Doorbell, 3.0, 15.0, 1.0));
    }
    if scale.extent != Extent::Quick {
        let wake_ups = members.iter().filter_map(|member| match &member.load {
            Load::Pickup(pickup) => Some(pickup.wake_up),
            _ => None,
        });
        let fifty: Vec<_> =
            wake_ups.map(|wake_up| Member::new(name(50, wake_up), load(50, wake_up))).collect();
        members.extend(fifty);
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
