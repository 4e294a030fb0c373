//! Streams: the inbox, the log behind the sequencer, and the groups that read it.

pub mod cursor;
pub mod filing;
pub mod holding;
pub mod inbox;
pub mod log;
pub mod member;
pub(crate) mod page;
pub mod partition;
pub mod passed;
pub mod progress;
pub mod range;
pub mod search;
