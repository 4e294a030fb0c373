//! Finding a message: its state, where it lies, and its history.
//!
//! A topic that is [searchable](crate::model::TopicSettings::searchable) answers from the lookup.
//! For any other, a search by message id uses the keys of the tables that have one; every other
//! search reads a bounded number of rows. The [`Answer`] says what was searched, and whether the
//! search was complete.

mod answer;
mod between;
mod log;
mod page_token;
mod search;

pub use self::answer::{Answer, Query, Searched};
pub use self::between::between;
pub use self::page_token::PageToken;
pub use self::search::find;
