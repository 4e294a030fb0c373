//! The case of consumers by SQL.

use super::BASE;
use crate::case::{Extent, Member, Scale};
use crate::load::{Claimer, Drain, Load};

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

fn by(by: Claimer, drain: Drain) -> Load {
    Load::Drain(Drain { by, ..drain })
}
