//! The cases of streams.

use std::time::Duration;

use super::{BASE, BODY};
use crate::case::{Member, Scale};
use crate::load::{Commit, Drain, Insert, Load, Readers, Reading, Sequencing, Table};

const RAW: &str = "raw INSERT of 1000, bare table";

fn raw(scale: &Scale) -> Member {
    let raw = Insert {
        table: Table::Bare,
        commit: Commit::Auto,
        connections: 4,
        rows: 1000,
        body: BODY,
        time: Duration::from_secs(scale.seconds),
    };
    Member::new(RAW, Load::Insert(raw))
}

pub(super) fn sequencer(scale: &Scale) -> Vec<Member> {
    let load = |batch, partitions| {
        Load::Sequence(Sequencing { backlog: scale.backlog * 2, batch, partitions, body: BODY })
    };
    vec![
        raw(scale),
        Member::new("sequencer, batch 1000", load(1000, 1)).against(RAW).bar(0.30),
        Member::new("sequencer, batch 1000, 16 partitions", load(1000, 16)).against(RAW),
        Member::new("sequencer, batch 100", load(100, 1)).against(RAW),
    ]
}

pub(super) fn groups(scale: &Scale) -> Vec<Member> {
    let read = |batch, consumers, readers, sequenced| {
        let drain = Drain { batch, consumers, backlog: scale.backlog * 2, ..BASE };
        Load::Read(Reading { drain, readers, partitions: 4, sequenced })
    };
    let load =
        |batch, groups, sequenced| read(batch, BASE.consumers, Readers::Groups(groups), sequenced);
    let broadcast = |members| read(1000, members, Readers::Broadcast, true);
    let thousand = "one group, batch 1000";
    vec![
        raw(scale),
        Member::new(thousand, load(1000, 1, true)).against(RAW).bar(0.9),
        Member::new("one group, batch 100", load(100, 1, true)).against(RAW).bar(0.25),
        Member::new("four groups, batch 1000 (sum)", load(1000, 4, true)).against(thousand),
        Member::new("one group, from the inbox", load(1000, 1, false)).against(RAW),
        Member::new("one member of a broadcast group", broadcast(1)).against(RAW),
        Member::new("four members of a broadcast group (sum)", broadcast(4)).against(RAW),
    ]
}
