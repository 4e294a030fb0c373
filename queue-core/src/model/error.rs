//! The errors of this library: each names the operation and the input, and the next step.

mod cannot_migrate;
mod class;
mod fault;
mod refusals;

pub use self::cannot_migrate::CannotMigrate;
pub use self::fault::Fault;
use self::refusals::list_refusals;
use crate::model::{
    AuditDenied, ClosedBy, CodecError, Fill, MemberName, MsgId, NewerPage, ScheduleName, TopicName,
    WhenFull, WorkerId,
};
use std::sync::Arc;
use std::time::Duration;

/// The result of this library's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, in one sentence each: what, where, and the next step.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database URL cannot be used.
    #[error(
        "The database URL is not usable: {reason}. It looks like mysql://user:password@host:3306/database."
    )]
    InvalidUrl {
        /// What is wrong with it, without the password.
        reason: String,
    },
    /// The server could not be reached or refused the connection.
    #[error("Cannot connect to {server}: {reason}.")]
    Connect {
        /// Host and port, or socket; never the password.
        server: String,
        /// The answer of the server or the network, and the fix where there is one.
        reason: String,
        /// The class of the refusal.
        fault: Fault,
    },
    /// The server refuses writes.
    #[error(
        "The server {server} takes no writes ({reason}): connect to the writer (is this a replica?) or turn its writes on."
    )]
    ReadOnly {
        /// Host and port.
        server: String,
        /// Its own description of its state.
        reason: String,
    },
    /// None of the servers of the URL takes writes.
    #[error(
        "None of the servers takes writes: {}. Check that the writer runs and is one of them.",
        list_refusals(refusals)
    )]
    NoWriter {
        /// Why each was refused, in the order in which they were tried.
        refusals: Vec<Error>,
    },
    /// A topic's or schedule's name has a character that names may not have, or is too long.
    #[error("'{name}' is not a name: use 1 to 64 of the characters A-Z a-z 0-9 . _ -")]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// A priority other than 0 to 9.
    #[error("Priority {level} does not exist: use 0 (first) to 9 (last).")]
    InvalidPriority {
        /// The number as given (255 when it was no number).
        level: u8,
    },
    /// Headers that cannot be stored.
    #[error("The headers cannot be stored: {reason}.")]
    InvalidHeaders {
        /// What is wrong with them.
        reason: String,
    },
    /// A time beyond any calendar, or one that contradicts another.
    #[error("{what} cannot be: {reason}.")]
    InvalidTime {
        /// Which time.
        what: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A text that is no retry policy, or one that cannot be stored.
    #[error(
        "'{text}' is not a retry policy: {reason}; write `exponential 1s..1h`, `ladder 10s 30s 1m` or `fixed 30s`."
    )]
    InvalidRetry {
        /// The text, cut if it is long.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A unique key that cannot be held as requested.
    #[error("The unique key cannot be used: {reason}.")]
    InvalidUnique {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A checkpoint that cannot be saved.
    #[error("The checkpoint cannot be kept: {reason}.")]
    InvalidCheckpoint {
        /// Why not, and the alternative.
        reason: &'static str,
    },
    /// The message no longer belongs to this delivery.
    #[error("Message {msg_id} is not this delivery's any more: stop handling it.")]
    ClaimLost {
        /// The message.
        msg_id: MsgId,
    },
    /// An enqueue that takes several statements, on a connection in autocommit.
    #[error(
        "A message with a unique key, or with an id of the sender's own in a topic with a dedupe window, is enqueued by several statements: begin a transaction before and commit it after."
    )]
    NeedsTransaction,
    /// A key or biz id beyond its column.
    #[error("The {field} has {len} bytes, at most {limit} fit.")]
    KeyTooLong {
        /// Which of them.
        field: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The longest that fits, in bytes.
        limit: usize,
    },
    /// The topic does not exist.
    #[error(
        "There is no {} '{topic}': create it with `rowmq {} create {topic}`.",
        if topic.as_group().is_some() { "group" } else { "topic" },
        if topic.as_group().is_some() { "group" } else { "topic" }
    )]
    UnknownTopic {
        /// The name as given.
        topic: TopicName,
    },
    /// The topic is no stream.
    #[error("'{topic}' is no stream: `rowmq topic create NAME --kind stream` makes one.")]
    NoStream {
        /// The topic.
        topic: TopicName,
    },
    /// The topic is a stream, which only groups read.
    #[error(
        "'{topic}' is a stream: make a group with `rowmq group create {topic}@GROUP` and consume '{topic}@GROUP'."
    )]
    ReadByGroups {
        /// The stream.
        topic: TopicName,
    },
    /// An operation that broadcast groups do not support.
    #[error("'{topic}' is a broadcast group: {reason}.")]
    OfBroadcast {
        /// The group.
        topic: TopicName,
        /// Why not, and the alternative.
        reason: &'static str,
    },
    /// The topic is no broadcast group.
    #[error(
        "'{topic}' is no group of a stream whose members get every message: `rowmq group create STREAM@GROUP --broadcast` makes one."
    )]
    NoBroadcast {
        /// The topic.
        topic: TopicName,
    },
    /// Another worker has the member's name.
    #[error(
        "The member '{member}' of '{topic}' is the worker {worker}, which runs: give this one a name of its own, or stop that one (`rowmq workers` shows it)."
    )]
    MemberInUse {
        /// The group.
        topic: TopicName,
        /// The member.
        member: MemberName,
        /// The worker that has it.
        worker: WorkerId,
    },
    /// There is no such member.
    #[error(
        "'{topic}' has no member '{member}': `rowmq group show {topic}` shows those whose positions are kept."
    )]
    UnknownMember {
        /// The group.
        topic: TopicName,
        /// The name as given.
        member: MemberName,
    },
    /// A text that is no offset specification.
    #[error(
        "'{text}' is not a position in a stream: use earliest, latest, an offset, or a time as 2026-12-24T18:00:00Z."
    )]
    InvalidOffsetSpec {
        /// The text as given.
        text: String,
    },
    /// The topic is no group.
    #[error("'{topic}' is no group of a stream: a group is called STREAM@GROUP.")]
    NoGroup {
        /// The topic.
        topic: TopicName,
    },
    /// There is no schedule of this name.
    #[error("There is no schedule '{schedule}': `rowmq cron list` shows those there are.")]
    UnknownSchedule {
        /// The name as given.
        schedule: ScheduleName,
    },
    /// A recurrence that never recurs, or whose text cannot be read.
    #[error("{what} '{text}' cannot be used: {reason}.")]
    InvalidRecurrence {
        /// Which part of it.
        what: &'static str,
        /// The text as given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A condition on headers that cannot be read or stored.
    #[error(
        "{text:?} is no filter: {reason}. Write type=created, region=eu,us (one of them), type!=test (none of them), or type (the header is there)."
    )]
    InvalidFilter {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The topic exists already.
    #[error("The topic '{topic}' exists already: change it with `rowmq topic set {topic}`.")]
    TopicExists {
        /// The name as given.
        topic: TopicName,
    },
    /// A topic that still holds messages cannot be deleted.
    #[error("The topic '{topic}' still holds messages: drain it, or delete them too with --purge.")]
    TopicNotEmpty {
        /// The name as given.
        topic: TopicName,
    },
    /// A transaction that is still open has written to a topic that was to be deleted.
    #[error("An open transaction has written to the topic '{0}': try again when it has ended.")]
    TopicInUse(TopicName),
    /// The topic takes no messages now.
    #[error("The topic '{topic}' takes no messages now{}.", by.how_to_open(topic))]
    TopicPaused {
        /// The name as given.
        topic: TopicName,
        /// The rule that refuses it.
        by: ClosedBy,
    },
    /// The topic holds as many messages, or as many bytes, as its owner allows.
    #[error(
        "The topic '{topic}' is full (about {fill}): wait until its consumers have caught up, start more of them, or change the limit with `rowmq topic set {topic}`."
    )]
    TopicFull {
        /// The name as given.
        topic: TopicName,
        /// The measurement, and the limit.
        fill: Fill,
        /// Whether producers wait for room.
        when_full: WhenFull,
    },
    /// A message with a priority for a stream.
    #[error(
        "The stream '{topic}' takes no priorities, because its messages keep their order: leave the priority out, or use a queue."
    )]
    NoPriorities {
        /// The stream.
        topic: TopicName,
    },
    /// A body beyond the topic's limit.
    #[error(
        "A body of {len} bytes is too large for the topic '{topic}', which takes {limit}: raise it with `rowmq topic set {topic} --body-limit`, or keep the content elsewhere and send a reference."
    )]
    BodyTooLarge {
        /// The topic.
        topic: TopicName,
        /// The body's length in bytes.
        len: usize,
        /// The topic's limit in bytes.
        limit: usize,
    },
    /// A message larger than the server takes in one packet.
    #[error(
        "{what} needs {len} bytes in one packet, the server takes {limit}: raise max_allowed_packet on the server or lower the topic's body limit."
    )]
    PacketTooLarge {
        /// The part that was to be sent.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The server's limit in bytes.
        limit: usize,
    },
    /// A payload that cannot be written as JSON.
    #[error("The payload cannot be written as JSON")]
    Encode(#[source] Arc<serde_json::Error>),
    /// A body that cannot be encoded, or decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A page of a log in a newer format.
    #[error(transparent)]
    NewerPage(#[from] NewerPage),
    /// A setting that cannot work.
    #[error("{name} is {value}: {fix}.")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        fix: &'static str,
    },
    /// A directory on this machine cannot hold a producer's spill journal.
    #[error("The spill directory {dir} cannot be used: {reason}.")]
    Spill {
        /// The directory.
        dir: String,
        /// What is wrong with it, and the fix.
        reason: String,
    },
    /// The queue's tables are missing or older than this program.
    #[error("The queue's tables are missing or too old in the database '{database}' ({detail}).")]
    Schema {
        /// The database of the URL.
        database: String,
        /// What is missing.
        detail: String,
    },
    /// The server is too old, or behaves in a way that the protocol cannot rely on.
    #[error("{reason}")]
    Unsupported {
        /// What is wrong and the fix.
        reason: String,
    },
    /// The database cannot be migrated now.
    #[error(transparent)]
    CannotMigrate(#[from] CannotMigrate),
    /// A statement failed.
    #[error("{operation} failed: {message}")]
    Database {
        /// The operation.
        operation: &'static str,
        /// The class of the failure.
        fault: Fault,
        /// The server's text.
        message: String,
    },
    /// A person's change whose audit entry the account may not write.
    #[error(transparent)]
    AuditDenied(#[from] AuditDenied),
    /// A statement took longer than its deadline; its connection is closed.
    #[error("{operation} had no answer within {} ms; its connection was closed.", deadline.as_millis())]
    Deadline {
        /// The operation.
        operation: &'static str,
        /// The deadline.
        deadline: Duration,
    },
    /// The connection broke during a commit, which may or may not have happened.
    #[error(
        "{operation}: the connection broke during the commit, so whether it happened is unknown ({message})."
    )]
    UnknownOutcome {
        /// The operation.
        operation: &'static str,
        /// What broke.
        message: String,
    },
    /// This worker was declared dead; its claims belong to other workers now.
    #[error("This worker was declared dead ({reason}); its claims have been taken back.")]
    WorkerDead {
        /// The reason in its row.
        reason: String,
    },
    /// The worker's session has ended because the process is stopping.
    #[error("The worker has stopped.")]
    WorkerStopped,
    /// A row count that the protocol rules out; the transaction was rolled back.
    #[error("{operation}: {expected} rows expected, {found} found; rolled back.")]
    Counts {
        /// The operation.
        operation: &'static str,
        /// The count that the protocol expects.
        expected: usize,
        /// The count that the server reported.
        found: usize,
    },
}
