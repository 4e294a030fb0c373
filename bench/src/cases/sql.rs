//! The case of consumers by SQL.

use super::BASE;
use crate::case::{Extent, Member, Scale};
use crate::load::{Claimer, Drain, Load, Readers, Reading};

/// Sessions, batch sizes, and the divisor of the backlog: a session by SQL drains such a part of it
/// in seconds. The loads it is compared with drain the same part.
const QUICK: &[(usize, usize, u64)] = &[(4, 1, 200), (4, 100, 20)];
const FULL: &[(usize, usize, u64)] =
    &[(1, 1, 200), (1, 10, 80), (1, 100, 20), (4, 1, 200), (4, 10, 80), (4, 100, 20)];

pub(super) fn drain(scale: &Scale) -> Vec<Member> {
    let sizes = if scale.extent == Extent::Quick { QUICK } else { FULL };
    let mut members = Vec::new();
    for (sessions, batch, share) in sizes {
        let backlog = scale.backlog / share;
        members.extend(beside(Drain { consumers: *sessions, batch: *batch, backlog, ..BASE }));
    }
    members.extend(effects(Drain { backlog: scale.backlog / 20, ..BASE }));
    members.extend(groups(Drain { backlog: scale.backlog / 20, ..BASE }));
    members
}

/// The bare statements, our consumer, and the calls: a settle for each delivery, which commits by
/// itself, and one settle for all deliveries of a claim.
fn beside(drain: Drain) -> Vec<Member> {
    let what = format!("{} × batch {}", drain.consumers, drain.batch);
    let reference = format!("bare claim + settle, {what}");
    let member = |name: &str, claimer| {
        Member::new(format!("{name}, {what}"), by(claimer, drain)).against(&reference)
    };
    let mut members = vec![
        Member::new(&reference, by(Claimer::Bare, drain)),
        member("consumer", Claimer::Consumer),
        member("queue_claim, queue_settle", Claimer::Call),
    ];
    if drain.batch > 1 {
        members.push(member("queue_claim, queue_settle of all", Claimer::CallAll));
    }
    members
}

/// Acks in the caller's transaction, where its work would be: one transaction for each ack, and one
/// for a claim.
fn effects(drain: Drain) -> [Member; 3] {
    let reference = "consumer, transactional handlers";
    let calls = |name: &str, claimer| Member::new(name, by(claimer, drain)).against(reference);
    [
        Member::new(reference, by(Claimer::Transactional, drain)),
        calls("queue_settle in a transaction each", Claimer::CallTransaction),
        calls("queue_settle, a transaction a claim", Claimer::CallTogether),
    ]
}

/// Groups of a stream: sessions beside consumers of the library.
fn groups(drain: Drain) -> [Member; 4] {
    const GROUP: &str = "consumer, a group, batch 100";
    const ORDERED: &str = "consumer, an ordered group";
    let read = |by, readers| {
        // A session claims one message of an ordered group at a time.
        let share = if readers == Readers::Ordered { 20 } else { 1 };
        let drain = Drain { by, backlog: drain.backlog / share, ..drain };
        Load::Read(Reading { drain, readers, partitions: 4, sequenced: true })
    };
    let (call, group) = (Claimer::CallAll, Readers::Groups(1));
    [
        Member::new(GROUP, read(Claimer::Consumer, group)),
        Member::new("queue_claim of a group, batch 100", read(call, group)).against(GROUP),
        Member::new(ORDERED, read(Claimer::Consumer, Readers::Ordered)),
        Member::new("queue_claim of an ordered group", read(call, Readers::Ordered))
            .against(ORDERED),
    ]
}

fn by(by: Claimer, drain: Drain) -> Load {
    Load::Drain(Drain { by, ..drain })
}
