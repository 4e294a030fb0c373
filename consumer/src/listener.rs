use std::fmt;
use std::sync::Arc;

use rowmq_core::model::{DeliveryNo, Settlement};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{Error, MsgId, TopicName};

/// The settlement of one delivery: what its handler decided, and how the database answered.
#[derive(Debug)]
#[non_exhaustive]
pub struct SettledDelivery<'a> {
    /// The topic.
    pub topic: &'a TopicName,
    /// The message.
    pub msg_id: MsgId,
    /// With the message id, the token of this delivery.
    pub delivery_no: DeliveryNo,
    /// How it was to be settled.
    pub settlement: &'a Settlement,
    /// The result of settling it. An error means that the worker was declared dead or stopped
    /// before it had an answer; the message will most likely be handled again by another worker.
    pub outcome: Result<SettleOutcome, &'a Error>,
}

/// A function that is called with the settlement of each delivery, for audit logs and tests. It is
/// called between database calls and should return at once.
#[derive(Clone)]
pub struct SettledListener(Arc<dyn Fn(SettledDelivery<'_>) + Send + Sync>);

impl SettledListener {
    /// Wraps the function.
    pub fn new(listener: impl Fn(SettledDelivery<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn notify(&self, settled: SettledDelivery<'_>) {
        (self.0)(settled);
    }
}

impl fmt::Debug for SettledListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettledListener")
    }
}
