//! Streams: messages that stay in a log under dense offsets, read by any number of groups.
//!
//! A producer enqueues as to any topic; its message lies in the stream's *inbox* until the
//! [sequencer](sequence()) gives it its offset. A [`Group`] claims ranges of offsets, one row a
//! range, with the same workers, fences and rescue as a queue's; what fails goes to the group's own
//! topic, which is a queue like any other.

mod claim;
mod filter;
pub mod group;
mod pick;
mod position;
pub mod retention;
mod sequence;

pub use self::claim::{Claim, ClaimedRange, claim_range};
pub use self::filter::{HeaderCondition, HeaderFilter};
pub use self::pick::Picked;
pub use self::position::{Group, Offset, PartitionNo, Position, RangeId};
pub use self::sequence::{Contention, Sequenced, sequence};
