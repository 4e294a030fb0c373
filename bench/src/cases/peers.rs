//! Other queues on the same server, and brokers on the same machine.

use std::time::Duration;

use super::{BASE, BODY};
use crate::case::{Member, Scale};
use crate::load::{
    Appending, Drain, Enqueue, Load, Peer, PeerDrain, PeerEnqueue, Readers, Reading, Way,
};

/// Messages before the start: as many as in other measurements of the peers.
const BACKLOG: u64 = 50_000;

/// The most messages before the start where a broker syncs after each: storing them takes longest.
const SLOW_BACKLOG: u64 = 40_000;

/// The broker that the bars are about: of those here, the fastest that syncs what it acknowledges.
const BARRED: &str = "redis";

pub(super) fn in_database(_scale: &Scale, peers: &[Peer]) -> Vec<Member> {
    let ours = |name: String| Member::new(name, Load::Drain(Drain { backlog: BACKLOG, ..BASE }));
    let pair = |peer: &Peer| {
        let name = peer.name;
        let load = PeerDrain {
            peer: peer.clone(),
            backlog: BACKLOG,
            body: BODY,
            // More consumers deadlock and end each other (bench/peers/README.md).
            consumers: 1,
            delete: false,
            limit: Duration::from_secs(20),
        };
        [
            Member::new(name, Load::PeerDrain(load)),
            ours(format!("consumer (÷ {name})")).against(name).bar(10.0),
        ]
    };
    peers.iter().filter(|peer| peer.url.is_none()).flat_map(pair).collect()
}

pub(super) fn brokers(scale: &Scale, peers: &[Peer]) -> Vec<Member> {
    let brokers: Vec<&Peer> = peers.iter().filter(|peer| peer.url.is_some()).collect();
    if brokers.is_empty() {
        return Vec::new();
    }
    let mut members = appends(scale, &brokers);
    members.extend(drains(scale, &brokers));
    members.extend(singles(scale, &brokers));
    members
}

/// The bars beside [`BARRED`]. A server that syncs a binary log, too, has its own.
struct Bars {
    /// Of appending in bulk to a stream.
    append: f64,
    /// Of the same to a queue.
    queue: Option<f64>,
    /// Of one group that drains a stream.
    drain: f64,
    /// Of messages that are sent one at a time.
    single: f64,
}

impl Bars {
    fn of(scale: &Scale) -> Self {
        if scale.binlog {
            Self { append: 1.0, queue: None, drain: 0.8, single: 0.6 }
        } else {
            Self { append: 1.5, queue: Some(1.0), drain: 1.5, single: 1.2 }
        }
    }
}

/// What is compared, with the bar if the reference is [`BARRED`].
struct Ours {
    name: &'static str,
    load: Load,
    bar: Option<f64>,
}

/// The peer, and each of ours beside it.
fn beside(reference: String, peer: &Peer, load: Load, ours: &[Ours]) -> Vec<Member> {
    let mut members = vec![Member::new(reference.clone(), load)];
    members.extend(ours.iter().map(|ours| {
        let name = format!("{} (÷ {})", ours.name, peer.name);
        let member = Member::new(name, ours.load.clone()).against(&reference);
        match ours.bar {
            Some(bar) if peer.name == BARRED => member.bar(bar),
            _ => member,
        }
    }));
    members
}

fn sends(peer: &Peer, producers: usize, batch: usize, scale: &Scale) -> Load {
    let (peer, time) = (peer.clone(), Duration::from_secs(scale.seconds));
    Load::PeerEnqueue(PeerEnqueue { peer, producers, batch, body: BODY, time })
}

fn ours(way: Way, connections: usize, batch: usize, scale: &Scale) -> Load {
    let time = Duration::from_secs(scale.seconds);
    let (searchable, trace) = (false, rowmq_core::model::Sampling::OFF);
    Load::Enqueue(Enqueue { way, connections, batch, body: BODY, searchable, trace, time })
}

/// Four producers, a thousand messages at a time. The stream has as many partitions as the one that
/// is drained.
fn appends(scale: &Scale, brokers: &[&Peer]) -> Vec<Member> {
    let bars = Bars::of(scale);
    let time = Duration::from_secs(scale.seconds);
    let stream = Appending { lanes: 4, batch: 1000, partitions: 4, body: BODY, time };
    let ours = [
        Ours { name: "stream, send_all", load: Load::Append(stream), bar: Some(bars.append) },
        Ours { name: "queue, send_all", load: ours(Way::Lane, 4, 1000, scale), bar: bars.queue },
    ];
    let each = |peer: &&Peer| {
        let name = format!("{}, 1000 at once by 4", peer.name);
        beside(name, peer, sends(peer, 4, 1000, scale), &ours)
    };
    brokers.iter().flat_map(each).collect()
}

/// Four consumers, a thousand messages at a time.
fn drains(scale: &Scale, brokers: &[&Peer]) -> Vec<Member> {
    let drain = Drain { backlog: scale.backlog * 2, batch: 1000, ..BASE };
    let readers = Readers::Groups(1);
    let read = Load::Read(Reading { drain, readers, partitions: 4, sequenced: true });
    let bar = Bars::of(scale).drain;
    let stream = || Ours { name: "stream, one group", load: read.clone(), bar: Some(bar) };
    let queue = || Ours { name: "queue, consumer", load: Load::Drain(drain), bar: None };
    let load = |peer: &Peer, delete| {
        let slow = if peer.name == "nats" { SLOW_BACKLOG } else { u64::MAX };
        let (backlog, consumers) = (drain.backlog.min(slow), drain.consumers);
        let (peer, limit) = (peer.clone(), drain.limit);
        Load::PeerDrain(PeerDrain { peer, backlog, body: BODY, consumers, delete, limit })
    };
    let each = |peer: &&Peer| {
        let name = format!("{}, drain by 4", peer.name);
        // It keeps what it has acknowledged, as a stream does; with XDEL it is a queue.
        if peer.name == "redis" {
            let kept = beside(name.clone(), peer, load(peer, false), &[stream()]);
            let name = format!("{name}, XDEL");
            [kept, beside(name, peer, load(peer, true), &[queue()])].concat()
        } else {
            beside(name, peer, load(peer, true), &[stream(), queue()])
        }
    };
    brokers.iter().flat_map(each).collect()
}

/// 32 producers, one message at a time.
fn singles(scale: &Scale, brokers: &[&Peer]) -> Vec<Member> {
    let bar = Some(Bars::of(scale).single);
    let ours = [Ours { name: "Producer::send", load: ours(Way::Send, 32, 1, scale), bar }];
    let each = |peer: &&Peer| {
        let name = format!("{}, one at a time by 32", peer.name);
        beside(name, peer, sends(peer, 32, 1, scale), &ours)
    };
    brokers.iter().flat_map(each).collect()
}
