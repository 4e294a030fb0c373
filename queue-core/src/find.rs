//! What became of a message: in which state it is, where, and what happened to it before.
//!
//! A topic that is [searchable](crate::model::TopicSettings::searchable) answers from the lookup;
//! any other by message id from the keys of the tables that have one, and else from a bounded
//! number of rows. The [`Answer`] says what was searched, and whether that was all there is.

mod answer;
mod between;
mod log;
mod place;
mod search;

pub use self::answer::{Answer, Query, Searched};
pub use self::between::between;
pub use self::place::Place;
pub use self::search::find;
