use serde::Serialize;

use super::PageToken;
use crate::model::Position;
use crate::model::found::{Filter, Found, StateWord};
use crate::store::find::Bodies;
use crate::store::inspect::MessageTable;

/// A query, and how much of the result is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The condition.
    pub filter: Filter,
    /// Where the previous answer ended; `None`: from the start.
    pub after: Option<PageToken>,
    /// The most messages to return.
    pub limit: usize,
    /// Whether bodies are read.
    pub bodies: Bodies,
}

/// The result of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Answer {
    /// The messages.
    pub found: Vec<Found>,
    /// What was searched for them.
    pub searched: Vec<Searched>,
    /// Where to continue; `None`: there is no more.
    pub next: Option<PageToken>,
}

/// The part that was searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "searched", rename_all = "snake_case")]
pub enum Searched {
    /// The lookup of the topic.
    Lookup {
        /// How many of its entries were read.
        entries: usize,
        /// There are no more entries. Messages that were enqueued before the topic became
        /// searchable may have none.
        whole: bool,
    },
    /// The scheduled, the dead and the archived messages, by their message ids: complete.
    MsgIds,
    /// The log of a stream, from the newest message backwards, or around the time in a message id.
    Log {
        /// How many of its messages were read.
        rows: usize,
        /// There are no more.
        whole: bool,
    },
    /// A table, row by row.
    Table {
        /// The table.
        table: MessageTable,
        /// How many of the topic's rows were read.
        rows: usize,
        /// There are no more.
        whole: bool,
    },
    /// A damaged page of a stream's log: it cannot be searched, and may hold a match.
    DamagedPage {
        /// The place of one of its messages.
        #[serde(flatten)]
        position: Position,
    },
}

impl Searched {
    /// Whether it was searched to its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self {
            Self::MsgIds => true,
            Self::DamagedPage { .. } => false,
            Self::Lookup { whole, .. } | Self::Log { whole, .. } | Self::Table { whole, .. } => {
                *whole
            }
        }
    }
}

/// The table that messages in this state are in.
pub(super) fn table_of(state: StateWord) -> Option<MessageTable> {
    match state {
        StateWord::Ready | StateWord::Claimed => Some(MessageTable::Ready),
        StateWord::Scheduled => Some(MessageTable::Scheduled),
        StateWord::Dead => Some(MessageTable::Dead),
        StateWord::Done | StateWord::Repeated | StateWord::Discarded => Some(MessageTable::Archive),
        StateWord::Logged | StateWord::Gone => None,
    }
}
