//! The cases of streams.

use std::time::Duration;

use super::{BASE, BODY};
use crate::case::{Extent, Member, Scale};
use crate::load::{
    Appending, Claimer, Commit, Drain, Insert, Load, LongLog, LongLogAsked, Readers, Reading,
    Sequencing, Table,
};

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

pub(super) fn producers(scale: &Scale) -> Vec<Member> {
    let load = |lanes, batch, partitions| {
        let time = Duration::from_secs(scale.seconds);
        Load::Append(Appending { lanes, batch, partitions, body: BODY, time })
    };
    vec![
        raw(scale),
        Member::new("send_all of 1000, 4 lanes", load(4, 1000, 1)).against(RAW).bar(0.6),
        Member::new("the same, 4 partitions", load(4, 1000, 4)).against(RAW),
        Member::new("the same, 16 partitions", load(4, 1000, 16)).against(RAW),
        Member::new("send_all of 1000, 1 lane", load(1, 1000, 1)).against(RAW),
        Member::new("send_all of 100, 4 lanes", load(4, 100, 1)).against(RAW),
        Member::new("send_all of 90, 4 lanes: by the inbox", load(4, 90, 1)).against(RAW),
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
    let ems = "seed 001 (EMS), one group";
    // It claims ten at a time by default.
    let limit = Duration::from_secs(20);
    let naive =
        Drain { by: Claimer::Seed001, batch: 10, backlog: scale.backlog / 2, limit, ..BASE };
    vec![
        raw(scale),
        Member::new(thousand, load(1000, 1, true)).against(RAW).bar(0.9),
        Member::new("one group, batch 100", load(100, 1, true)).against(RAW).bar(0.25),
        Member::new("four groups, batch 1000 (sum)", load(1000, 4, true)).against(thousand),
        Member::new("one group, from the inbox", load(1000, 1, false)).against(RAW),
        Member::new("one member of a broadcast group", broadcast(1)).against(RAW),
        Member::new("four members of a broadcast group (sum)", broadcast(4)).against(RAW),
        Member::new(ems, Load::Drain(naive)),
        Member::new("one group, batch 1000 (÷ seed 001)", load(1000, 1, true))
            .against(ems)
            .bar(20.0),
    ]
}

/// Neither a reset nor a lag may depend on the length of the log.
pub(super) fn long_log(scale: &Scale) -> Vec<Member> {
    let log = match scale.extent {
        Extent::Quick => 50_000,
        Extent::Full => 1_000_000,
        Extent::Long => 10_000_000,
    };
    let load = |partitions, asked| {
        Load::LongLog(LongLog { log, partitions, asked, asks: 300, body: BODY })
    };
    vec![
        Member::new("reset, 1 partition", load(1, LongLogAsked::Reset)),
        Member::new("reset, 16 partitions", load(16, LongLogAsked::Reset)),
        Member::new("lag, 1 partition", load(1, LongLogAsked::Lag)),
        Member::new("lag, 16 partitions", load(16, LongLogAsked::Lag)),
    ]
}
