//! The cases: one factor varied at a time around a base of 200 bytes, batches of 100 and four
//! consumers with sixteen handlers each.

mod drain;
mod enqueue;
mod idle;
mod limits;
mod peers;
mod sql;
mod streams;

use std::time::Duration;

use crate::case::{Case, Extent, Member, Scale};
use crate::load::{Claimer, Drain, Peer};

/// The base of the drains.
const BASE: Drain = Drain {
    by: Claimer::Consumer,
    consumers: 4,
    concurrency: 16,
    batch: 100,
    body: BODY,
    backlog: 0,
    limit: Duration::from_secs(60),
    long_reader: false,
};

/// The bytes of a body, where the body is not what is varied.
const BODY: usize = 200;

/// All cases, in the order in which they run.
pub(crate) const CATALOGUE: &[Case] = &[
    Case {
        name: "enqueue-one",
        about: "One producer, one message a send",
        members: enqueue::one,
        from: Extent::Quick,
    },
    Case {
        name: "enqueue-32",
        about: "32 connections, one message a send",
        members: enqueue::many,
        from: Extent::Quick,
    },
    Case {
        name: "enqueue-bulk",
        about: "Four connections, 1000 messages a send",
        members: enqueue::bulk,
        from: Extent::Quick,
    },
    Case {
        name: "searchable",
        about: "What it costs that each message can be looked up",
        members: enqueue::searchable,
        from: Extent::Full,
    },
    Case {
        name: "trace",
        about: "What it costs that messages leave a trace",
        members: enqueue::trace,
        from: Extent::Full,
    },
    Case {
        name: "find",
        about: "How long it takes to learn what became of a message, beside a backlog",
        members: enqueue::find,
        from: Extent::Quick,
    },
    Case {
        name: "spill",
        about: "A journal on the disk while the server is away",
        members: enqueue::spill,
        from: Extent::Quick,
    },
    Case {
        name: "drain",
        about: "A backlog drained by four consumers, beside the bare statements and simpler ones",
        members: drain::base,
        from: Extent::Quick,
    },
    Case {
        name: "drain-1000",
        about: "Batches of 1000, beside the raw limit of writing",
        members: drain::by_thousands,
        from: Extent::Quick,
    },
    Case {
        name: "drain-batch",
        about: "The size of a claim",
        members: drain::batches,
        from: Extent::Full,
    },
    Case {
        name: "drain-consumers",
        about: "The number of consumers",
        members: drain::consumers,
        from: Extent::Full,
    },
    Case {
        name: "drain-body",
        about: "The size of a body",
        members: drain::bodies,
        from: Extent::Full,
    },
    Case {
        name: "drain-sql",
        about: "A backlog drained by CALL queue_claim and queue_settle, beside the consumer",
        members: sql::drain,
        from: Extent::Quick,
    },
    Case {
        name: "programs",
        about: "A Python program for each message, beside a pool of them",
        members: drain::programs,
        from: Extent::Full,
    },
    Case {
        name: "clients",
        about: "The workers of the packages for other languages, beside the consumer",
        members: drain::clients,
        from: Extent::Full,
    },
    Case {
        name: "strategy",
        about: "SKIP LOCKED beside update-then-select and update-limit",
        members: drain::strategies,
        from: Extent::Full,
    },
    Case {
        name: "effects",
        about: "A transaction for each message, beside acks that share one",
        members: drain::effects,
        from: Extent::Full,
    },
    Case {
        name: "limits",
        about: "What it costs that a topic's claims are bounded",
        members: limits::members,
        from: Extent::Quick,
    },
    Case {
        name: "seeds",
        about: "16 consumers, beside the tables that everybody writes first",
        members: drain::seeds,
        from: Extent::Quick,
    },
    Case {
        name: "long-reader",
        about: "A transaction that stays open, so that nothing is purged",
        members: drain::long_reader,
        from: Extent::Quick,
    },
    Case {
        name: "steady",
        about: "Enqueue and consume at once, so that what the server puts off comes due",
        members: drain::steady,
        from: Extent::Quick,
    },
    Case {
        name: "backlog",
        about: "How long a claim of 100 takes behind a backlog",
        members: drain::backlogs,
        from: Extent::Quick,
    },
    Case {
        name: "beside",
        about: "How long a claim takes beside finished and scheduled messages",
        members: drain::beside,
        from: Extent::Full,
    },
    Case {
        name: "pickup",
        about: "From the enqueue to the handler when there is nothing else to do, and what waiting costs",
        members: idle::pickup,
        from: Extent::Quick,
    },
    Case {
        name: "rescue",
        about: "How soon the messages of a killed consumer run again",
        members: idle::rescue,
        from: Extent::Quick,
    },
    Case {
        name: "delays",
        about: "How late delayed messages become ready beside a million that wait, and what waiting costs",
        members: idle::delays,
        from: Extent::Quick,
    },
    Case {
        name: "sequencer",
        about: "How fast a stream's messages get their offsets, beside the raw limit of writing",
        members: streams::sequencer,
        from: Extent::Quick,
    },
    Case {
        name: "stream-producers",
        about: "How fast producers fill a stream's log, beside the raw limit of writing",
        members: streams::producers,
        from: Extent::Quick,
    },
    Case {
        name: "groups",
        about: "How fast groups of four members read a stream, beside the raw limit of writing",
        members: streams::groups,
        from: Extent::Quick,
    },
    Case {
        name: "long-log",
        about: "How long a reset of a group takes, and the question how far it has come, beside a long log",
        members: streams::long_log,
        from: Extent::Quick,
    },
    Case {
        name: "console",
        about: "How soon the console's pages come, and what they cost the server while they are open",
        members: idle::console,
        from: Extent::Quick,
    },
    Case {
        name: "memory",
        about: "The memory of one consumer",
        members: idle::memory,
        from: Extent::Full,
    },
];

/// A case of other queues, whose programs are named when it runs.
pub(crate) struct PeerCase {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// The question.
    pub(crate) about: &'static str,
    /// Its loads, if one of its peers is there.
    pub(crate) members: fn(&Scale, &[Peer]) -> Vec<Member>,
}

/// The cases of other queues.
pub(crate) const PEERS: &[PeerCase] = &[
    PeerCase {
        name: "peers",
        about: "Other queues on MySQL, each by its own program with its best settings",
        members: peers::in_database,
    },
    PeerCase {
        name: "brokers",
        about: "Brokers on the same machine, each by its own program with its best settings",
        members: peers::brokers,
    },
];
