//! A delivery as a handler gets it.

use std::sync::Arc;

use chrono::Utc;
use rowmq_core::handler::Context;
use rowmq_core::model::{
    ClaimNo, Delivery, DeliveryNo, Headers, MsgId, Priority, RowId, TopicId, TopicName,
};
use tokio_util::sync::CancellationToken;

/// Returns the third delivery of a message with this body, after two failures.
pub(crate) fn context(body: impl Into<Vec<u8>>) -> Context {
    context_with(body, |_| ())
}

/// Returns the same with changes.
pub(crate) fn context_with(
    body: impl Into<Vec<u8>>,
    change: impl FnOnce(&mut Delivery),
) -> Context {
    let mut delivery = Delivery {
        topic_id: TopicId(1),
        msg_id: MsgId::new(),
        delivery_no: DeliveryNo(3),
        failures: 2,
        crashes: 0,
        enqueued_at: Utc::now(),
        expires_at: None,
        claimed_at: Utc::now(),
        key: None,
        biz_id: None,
        unique_key: None,
        headers: Headers::default(),
        body: body.into(),
        priority: Priority::default(),
        row: RowId(1),
        claim_no: ClaimNo(1),
        position: None,
        traced: false,
    };
    change(&mut delivery);
    Context {
        topic: TopicName::new("mail").unwrap(),
        delivery: Arc::new(delivery),
        cancelled: CancellationToken::new(),
        deadline: None,
        checkpoints: rowmq_core::checkpoint::Checkpoints::default(),
    }
}

/// Returns every byte value.
pub(crate) fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}
