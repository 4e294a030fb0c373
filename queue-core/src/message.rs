//! A message on its way in ([`NewMessage`]) and on its way to a handler ([`Delivery`]).

mod delivery;
mod failed_run;
mod headers;
mod ids;
mod line;
mod moment;
mod new_message;
mod priority;
mod settlement;
mod trace_parent;
mod unique;

pub use self::delivery::Delivery;
pub use self::failed_run::FailedRun;
pub use self::headers::Headers;
pub use self::ids::{ClaimNo, ConnId, DeliveryNo, MsgId, RowId, WorkerId};
pub use self::line::{LineBytes, LineError, MessageLine, text_or_base64};
pub(crate) use self::moment::LONGEST;
pub use self::moment::Moment;
pub use self::new_message::NewMessage;
pub use self::priority::Priority;
pub use self::settlement::{DeadCause, Settlement};
pub(crate) use self::settlement::{cut, stored_reason};
pub use self::trace_parent::{TRACE_PARENT, TRACE_STATE, TraceParent};
pub(crate) use self::unique::{Hold, Repeat};
pub use self::unique::{OnConflict, Unique};
