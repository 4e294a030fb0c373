//! Arguments for the store's functions: every shape of them that makes another text.

use std::time::Duration;

use chrono::{DateTime, Utc};
use rowmq_core::model::{
    Access, ClaimNo, ConnId, Delivery, DeliveryNo, Group, Headers, Moment, MsgId, NewMessage,
    Offset, OnDone, PartitionNo, Position, Priority, RangeId, RowId, Topic, TopicId, TopicKind,
    TopicName, TopicSettings, Unique, WorkerId,
};
use rowmq_core::store::claim::{Claim, Fence, ScanPosition};
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::settle::ClaimedRows;
use uuid::Uuid;

pub(crate) const TOPIC: TopicId = TopicId(7);
pub(crate) const GROUP: Group = Group { id: TopicId(8), stream: TOPIC, ordered: false };
pub(crate) const WORKER: WorkerId = WorkerId(3);
pub(crate) const CLAIM_NO: ClaimNo = ClaimNo(2);
pub(crate) const FENCE: Fence = Fence { worker: WORKER, claim_no: CLAIM_NO };
pub(crate) const ROW: RowId = RowId(11);
pub(crate) const PLACE: ScanPosition = ScanPosition { priority: Priority::FIRST, from: ROW };
pub(crate) const PARTITION: PartitionNo = PartitionNo(0);
pub(crate) const OFFSET: Offset = Offset(5);
pub(crate) const POSITION: Position = Position { partition: PARTITION, offset: OFFSET };
pub(crate) const RANGE: RangeId = RangeId(4);
pub(crate) const MESSAGE: MsgId = MsgId(Uuid::from_bytes([9; 16]));
pub(crate) const TIME: Duration = Duration::from_secs(60);
pub(crate) const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;
pub(crate) const LIMIT: u32 = 10;

pub(crate) const MOMENTS: [Moment; 2] = [Moment::After(TIME), Moment::At(NOW)];
pub(crate) const FAILURES: [Option<&str>; 2] = [None, Some("it failed")];
pub(crate) const KEPT: [OnDone; 2] = [OnDone::Delete, OnDone::Keep(TIME)];

pub(crate) fn topic_name() -> TopicName {
    TopicName::new("mail").unwrap()
}

pub(crate) fn group_name() -> TopicName {
    TopicName::new("mail@archive").unwrap()
}

pub(crate) fn topic() -> Topic {
    Topic {
        id: TOPIC,
        name: topic_name(),
        kind: TopicKind::Queue,
        settings: TopicSettings::default(),
        access: Access::ReadWrite,
        effective_access: Access::ReadWrite,
        backlog: None,
    }
}

/// One row, consecutive ones, and others.
pub(crate) fn row_sets() -> [RowSet; 3] {
    [&[11][..], &[11, 12, 13], &[11, 13]].map(|ids| ids.iter().copied().map(RowId).collect())
}

/// The same rows as those of a claim.
pub(crate) fn claimed() -> [ClaimedRows; 3] {
    let priority = Priority::FIRST;
    row_sets().map(|rows| ClaimedRows { fence: FENCE, topic: TOPIC, priority, rows })
}

pub(crate) fn claim() -> Claim {
    let (priority, conn) = (Priority::FIRST, ConnId(1));
    Claim { fence: FENCE, topic: TOPIC, priority, lo: ROW, hi: ROW, n: 1, conn }
}

/// Batches of messages with nothing, with keys, with an expiry, with a unique key, and with a due
/// time.
pub(crate) fn batches() -> [Vec<NewMessage>; 6] {
    let plain = || NewMessage::new("body");
    [
        vec![plain()],
        vec![plain(), plain()],
        vec![plain().with_key("key").with_biz_id("biz").with_header("name", "value")],
        vec![plain().with_expiry(TIME), plain().with_expires_at(NOW), plain()],
        vec![plain().with_unique(Unique::until_done("key"))],
        vec![plain().with_delay(TIME), plain().with_deliver_at(NOW)],
    ]
}

pub(crate) fn delivery() -> Delivery {
    Delivery {
        topic_id: TOPIC,
        msg_id: MESSAGE,
        delivery_no: DeliveryNo(1),
        failures: 0,
        crashes: 0,
        enqueued_at: NOW,
        expires_at: None,
        claimed_at: NOW,
        key: None,
        biz_id: None,
        unique_key: None,
        headers: Headers::default(),
        body: Vec::new(),
        priority: Priority::FIRST,
        row: ROW,
        claim_no: CLAIM_NO,
        position: None,
        traced: true,
    }
}
