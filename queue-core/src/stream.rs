//! Streams: messages that stay in a log under dense offsets, read by any number of groups.
//!
//! A producer enqueues as to any topic; its message lies in the stream's *inbox* until the
//! [sequencer](sequence()) gives it its offset. A [`Group`](crate::model::Group) claims ranges of
//! offsets, one row a range, with the same workers, fences and rescue as a queue; messages that
//! fail go to the group's own topic, which is a queue like any other. Every member of a
//! [`Broadcast`](crate::model::Broadcast) group reads all of the log, without claims.

mod append;
pub mod broadcast;
mod claim;
pub mod group;
mod pack;
mod pick;
pub mod retention;
mod sequence;

pub use self::append::{Appended, append, fits_any_partition};
pub use self::claim::{Claim, ClaimedRange, claim_range};
pub use self::pick::Picked;
pub(crate) use self::pick::{LOOKED_AT, pick};
pub use self::sequence::{Contention, Sequenced, sequence};
