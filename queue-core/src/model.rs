//! The shared vocabulary: ids and names, messages on their way in ([`NewMessage`]) and to a handler
//! ([`Delivery`]), topics with their settings, and errors. Nothing here accesses the database, but
//! ids and names define how they are stored.

mod access;
mod audit;
mod backlog;
mod chain;
mod checkpoint;
mod codec_error;
#[doc(hidden)]
pub mod column;
mod delivery;
mod error;
mod failed_run;
mod filter;
pub mod found;
mod headers;
mod ids;
mod limits;
mod line;
mod moment;
pub(crate) mod name;
mod new_message;
mod offset_spec;
pub(crate) mod page;
mod priority;
mod recurrence;
mod retry;
mod sampling;
mod schedule;
mod settlement;
mod stream;
mod throughput;
mod topic;
pub mod trace;
mod trace_parent;
mod unique;

pub use self::access::{Access, ClosedBy};
pub use self::audit::{Action, Actor, AuditDenied, Change, Entry};
pub use self::backlog::{Backlog, Fill, WhenFull};
pub use self::chain::BoxError;
pub(crate) use self::chain::chain;
pub use self::checkpoint::{Checkpoint, Percent, Saved};
pub use self::codec_error::CodecError;
pub use self::delivery::Delivery;
pub use self::error::{CannotMigrate, Error, Fault, Result};
pub use self::failed_run::FailedRun;
pub use self::filter::{HeaderCondition, HeaderFilter};
pub use self::headers::Headers;
pub use self::ids::{
    AuditNo, ClaimNo, ConnId, DeliveryNo, MsgId, Offset, PartitionNo, Position, RangeId, RowId,
    TopicId, WorkerId,
};
pub use self::limits::{Limits, Rate};
pub use self::line::{LineBytes, LineError, MessageLine, text_or_base64};
pub(crate) use self::moment::LONGEST;
pub use self::moment::Moment;
pub use self::name::{MemberName, ScheduleName, TopicName};
pub use self::new_message::NewMessage;
pub use self::offset_spec::OffsetSpec;
pub use self::page::NewerPage;
pub use self::priority::Priority;
pub use self::recurrence::Recurrence;
pub use self::retry::RetryPolicy;
pub use self::sampling::Sampling;
pub use self::schedule::{Missed, SCHEDULE_HEADER, Schedule, TICK_HEADER};
pub use self::settlement::{DeadCause, Settlement};
pub(crate) use self::settlement::{cut, stored_reason};
pub use self::stream::{Broadcast, Group, GroupPart};
pub use self::throughput::Throughput;
pub use self::topic::{
    LIMITED_TOPIC_KNOWN_FOR, OnDone, Retention, TOPIC_KNOWN_FOR, Topic, TopicKind, TopicSettings,
};
pub use self::trace_parent::{TRACE_PARENT, TRACE_STATE, TraceParent};
pub(crate) use self::unique::{KeyLifetime, Repeat};
pub use self::unique::{OnConflict, Unique};
