//! Other queues on the same server.

use std::path::PathBuf;
use std::time::Duration;

use super::{BASE, BODY};
use crate::case::Member;
use crate::load::{Drain, Load, Peer, PeerDrain};

/// Messages before the start: as many as in other measurements of the peers.
const BACKLOG: u64 = 50_000;

pub(super) fn members(programs: &[(&'static str, PathBuf)]) -> Vec<Member> {
    let ours = |name: String| Member::new(name, Load::Drain(Drain { backlog: BACKLOG, ..BASE }));
    let pair = |(name, program): &(&'static str, PathBuf)| {
        let peer = Peer { name, program: program.clone() };
        let load = PeerDrain {
            peer,
            backlog: BACKLOG,
            body: BODY,
            // More consumers deadlock and end each other (bench/peers/README.md).
            consumers: 1,
            limit: Duration::from_secs(20),
        };
        [
            Member::new(*name, Load::Peer(load)),
            ours(format!("consumer (÷ {name})")).against(*name).bar(10.0),
        ]
    };
    programs.iter().flat_map(pair).collect()
}
