//! The cases of writing.

use std::time::Duration;

use rowmq_core::model::Sampling;

use super::BODY;
use crate::case::{Extent, Member, Scale};
use crate::load::{Asked, Commit, Enqueue, Find, Insert, Load, Table, Way};

/// A single-row INSERT into the queue's table.
const RAW: &str = "raw INSERT";

/// The same between BEGIN and COMMIT.
const RAW_TRANSACTION: &str = "raw BEGIN, INSERT, COMMIT";

pub(super) fn one(scale: &Scale) -> Vec<Member> {
    singly(scale, 1, [None; 4])
}

pub(super) fn many(scale: &Scale) -> Vec<Member> {
    singly(scale, 32, [Some(0.9), Some(0.9), Some(0.7), Some(4.0)])
}

/// One message per send: plain, in a transaction, in a lane, by receipts, with their bars.
fn singly(scale: &Scale, connections: usize, bars: [Option<f64>; 4]) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let raw = |commit| {
        let table = Table::Queue;
        Load::Insert(Insert { table, commit, connections, rows: 1, body: BODY, time })
    };
    let ours = |way| enqueue(way, connections, 1, time);
    let barred = |member: Member, bar: Option<f64>| match bar {
        Some(bar) => member.bar(bar),
        None => member,
    };
    let [plain, transaction, lane, receipts] = bars;
    vec![
        Member::new(RAW, raw(Commit::Auto)),
        Member::new("CALL queue_send", ours(Way::Call)).against(RAW),
        barred(Member::new("enqueue_to, no dedupe", ours(Way::Plain)).against(RAW), plain),
        Member::new(RAW_TRANSACTION, raw(Commit::Transaction)),
        barred(
            Member::new("enqueue_to in a transaction", ours(Way::Transaction))
                .against(RAW_TRANSACTION),
            transaction,
        ),
        Member::new("the same, ids given, dedupe window", ours(Way::Given))
            .against(RAW_TRANSACTION),
        Member::new("the same, unique keys", ours(Way::Unique)).against(RAW_TRANSACTION),
        barred(Member::new("Producer, a lane each", ours(Way::Lane)).against(RAW), lane),
        Member::new("Producer::send, four lanes", ours(Way::Send)).against(RAW),
        barred(
            Member::new("Producer::send_async, 100 receipts a task", ours(Way::Receipts))
                .against(RAW),
            receipts,
        ),
    ]
}

fn enqueue(way: Way, connections: usize, batch: usize, time: Duration) -> Load {
    let (searchable, trace) = (false, Sampling::OFF);
    Load::Enqueue(Enqueue { way, connections, batch, body: BODY, searchable, trace, time })
}

/// Measures the cost of making each message searchable.
pub(super) fn searchable(scale: &Scale) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let ours = |way, connections, batch, searchable| {
        let trace = Sampling::OFF;
        Load::Enqueue(Enqueue { way, connections, batch, body: BODY, searchable, trace, time })
    };
    let pair = |name: &str, way, connections, batch| {
        [
            Member::new(name, ours(way, connections, batch, false)),
            Member::new(format!("{name}, searchable"), ours(way, connections, batch, true))
                .against(name),
        ]
    };
    let mut members = Vec::new();
    members.extend(pair("a lane each, 32 connections", Way::Lane, 32, 1));
    members.extend(pair("a transaction, 32 connections", Way::Transaction, 32, 1));
    members.extend(pair("send_async, 32 tasks", Way::Receipts, 32, 1));
    members.extend(pair("send_all of 1000, 4 lanes", Way::Lane, 4, 1000));
    members
}

/// Measures the cost of messages that leave a trace.
pub(super) fn trace(scale: &Scale) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let ours = |way, connections, batch, trace| {
        let searchable = false;
        Load::Enqueue(Enqueue { way, connections, batch, body: BODY, searchable, trace, time })
    };
    let shares = [("1 %", Sampling::per_million(10_000)), ("all", Sampling::ALL)];
    let some = |name: &str, way, connections, batch| {
        let off = Member::new(format!("{name}, off"), ours(way, connections, batch, Sampling::OFF));
        let on = shares.map(|(share, sampling)| {
            Member::new(format!("{name}, {share}"), ours(way, connections, batch, sampling))
                .against(format!("{name}, off"))
        });
        std::iter::once(off).chain(on).collect::<Vec<_>>()
    };
    let mut members = some("a lane each, 32 connections", Way::Lane, 32, 1);
    members.extend(some("send_async, 32 tasks", Way::Receipts, 32, 1));
    members.extend(some("send_all of 1000, 4 lanes", Way::Lane, 4, 1000));
    members
}

/// Measures how long it takes to find out what became of a message.
pub(super) fn find(scale: &Scale) -> Vec<Member> {
    let backlog = if scale.extent == Extent::Quick { 20_000 } else { 1_000_000 };
    let one = |name: &str, searchable, asked, asks| {
        let body = BODY;
        Member::new(name, Load::Find(Find { backlog, searchable, asked, asks, body }))
    };
    vec![
        one("by business id, searchable", true, Asked::BizId, 1000),
        one("by message id, searchable", true, Asked::MsgId, 1000),
        one("by business id, the first 10,000 rows", false, Asked::BizId, 50),
    ]
}

/// Measures the spill journal: what it costs unused, how fast messages go into it, and how fast it
/// is sent.
pub(super) fn spill(scale: &Scale) -> Vec<Member> {
    const UNUSED: &str = "send_async, 32 tasks";
    let time = Duration::from_secs(scale.seconds);
    let ours = |way, connections| enqueue(way, connections, 1, time);
    vec![
        Member::new(UNUSED, ours(Way::Receipts, 32)),
        Member::new("the same with a journal", ours(Way::Journal, 32)).against(UNUSED).bar(0.9),
        Member::new("into the journal, one task", ours(Way::Spill, 1)),
        Member::new("into the journal, 32 tasks", ours(Way::Spill, 32)),
        Member::new("from the journal", ours(Way::Refill, 32)).against(UNUSED),
    ]
}

pub(super) fn bulk(scale: &Scale) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let raw = |table| {
        let commit = Commit::Auto;
        Load::Insert(Insert { table, commit, connections: 4, rows: 1000, body: BODY, time })
    };
    let ours = |way| enqueue(way, 4, 1000, time);
    vec![
        Member::new("raw INSERT of 1000", raw(Table::Queue)),
        Member::new("raw INSERT of 1000, bare table", raw(Table::Bare)),
        Member::new("Producer::send_all", ours(Way::Lane)).against("raw INSERT of 1000").bar(0.85),
        Member::new("enqueue_to, no dedupe", ours(Way::Plain)).against("raw INSERT of 1000"),
        Member::new("CALL queue_send_all", ours(Way::Call)).against("raw INSERT of 1000"),
        Member::new("enqueue_to, ids given, dedupe window", ours(Way::Given))
            .against("raw INSERT of 1000"),
        Member::new("enqueue_to, unique keys", ours(Way::Unique)).against("raw INSERT of 1000"),
    ]
}
