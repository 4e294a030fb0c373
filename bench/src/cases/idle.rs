//! The cases of consumers with nothing to do, and of what one takes.

use std::time::Duration;

use super::BASE;
use crate::case::{Extent, Measure, Member, Scale, Side};
use crate::figure::Name;
use crate::load::{Drain, Load, Pickup, WakeUp};

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
    let polling = Member::new(name(1, WakeUp::Polling), load(1, WakeUp::Polling));
    let polling = value(value(polling, Name::P50, 15.0), Name::P99, 60.0);
    let mut members = vec![value(polling, Name::Statements, 40.0)];
    if scale.extent != Extent::Quick {
        members.push(Member::new(name(50, WakeUp::Polling), load(50, WakeUp::Polling)));
    }
    members
}

pub(super) fn memory(_scale: &Scale) -> Vec<Member> {
    let limit = Duration::from_secs(300);
    let drain = Drain { consumers: 1, backlog: 1_000_000, limit, ..BASE };
    let member = Member::new("one consumer, 1 M messages", Load::Memory(drain));
    vec![member.must(Name::Resident, Measure::Value, Side::AtMost(60.0))]
}
