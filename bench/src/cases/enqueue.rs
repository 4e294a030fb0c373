//! The cases of writing.

use std::time::Duration;

use super::BODY;
use crate::case::{Member, Scale};
use crate::load::{Commit, Enqueue, Insert, Load, Table, Way};

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

/// One message a send: plain, in a transaction, in a lane, by receipts, with their bars.
fn singly(scale: &Scale, connections: usize, bars: [Option<f64>; 4]) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let raw = |commit| {
        let table = Table::Queue;
        Load::Insert(Insert { table, commit, connections, rows: 1, body: BODY, time })
    };
    let ours = |way| Load::Enqueue(Enqueue { way, connections, batch: 1, body: BODY, time });
    let barred = |member: Member, bar: Option<f64>| match bar {
        Some(bar) => member.bar(bar),
        None => member,
    };
    let [plain, transaction, lane, receipts] = bars;
    vec![
        Member::new(RAW, raw(Commit::Auto)),
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
        barred(
            Member::new("Producer::send_async, 100 receipts a task", ours(Way::Receipts))
                .against(RAW),
            receipts,
        ),
    ]
}

pub(super) fn bulk(scale: &Scale) -> Vec<Member> {
    let time = Duration::from_secs(scale.seconds);
    let raw = |table| {
        let commit = Commit::Auto;
        Load::Insert(Insert { table, commit, connections: 4, rows: 1000, body: BODY, time })
    };
    let ours = |way| Load::Enqueue(Enqueue { way, connections: 4, batch: 1000, body: BODY, time });
    vec![
        Member::new("raw INSERT of 1000", raw(Table::Queue)),
        Member::new("raw INSERT of 1000, bare table", raw(Table::Bare)),
        Member::new("Producer::send_all", ours(Way::Lane)).against("raw INSERT of 1000").bar(0.85),
        Member::new("enqueue_to, no dedupe", ours(Way::Plain)).against("raw INSERT of 1000"),
        Member::new("enqueue_to, ids given, dedupe window", ours(Way::Given))
            .against("raw INSERT of 1000"),
        Member::new("enqueue_to, unique keys", ours(Way::Unique)).against("raw INSERT of 1000"),
    ]
}
