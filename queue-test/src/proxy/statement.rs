//! How statements of the queue begin, as a [trap](super::FaultProxy) is set for them: without
//! backticks. The conformance suite sees each of them sent.

/// A program reads a topic.
pub const READ_TOPIC: &str = "SELECT queue_topic.id, queue_topic.name";
/// A producer's lane stores a batch. It commits by itself.
pub const STORE_IN_LANE: &str = "INSERT INTO queue_message (topic_id, priority, id";
/// A producer finds out whether a batch in doubt was stored.
pub const FENCE_LANE: &str = "UPDATE queue_message SET claim_no = (queue_message.claim_no";
/// A worker locks ready messages.
pub const LOCK_READY: &str = "SELECT priority, id, msg_id";
/// A worker writes its claim.
pub const RECORD_CLAIM: &str = "INSERT INTO queue_claim";
/// A worker acks messages.
pub const ACK: &str = "DELETE m FROM queue_message";
/// A worker beats, or the row of a worker is changed otherwise.
pub const CHANGE_WORKER: &str = "UPDATE queue_worker";
/// A session takes a name lock.
pub const TAKE_NAME_LOCK: &str = "SELECT GET_LOCK";
/// A worker reads its pulse.
pub const PULSE: &str = "SELECT 0 AS kind";

/// All of them.
pub const ALL: [&str; 9] = [
    READ_TOPIC,
    STORE_IN_LANE,
    FENCE_LANE,
    LOCK_READY,
    RECORD_CLAIM,
    ACK,
    CHANGE_WORKER,
    TAKE_NAME_LOCK,
    PULSE,
];
