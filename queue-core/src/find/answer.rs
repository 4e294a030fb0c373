use serde::Serialize;

use super::Place;
use crate::model::found::{Filter, Found, StateWord};
use crate::store::find::Bodies;
use crate::store::inspect::MessageTable;

/// What is looked for, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Which messages.
    pub filter: Filter,
    /// Where the answer before ended; `None`: from the start.
    pub after: Option<Place>,
    /// How many messages at most.
    pub limit: usize,
    /// Whether bodies are read.
    pub bodies: Bodies,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Answer {
    /// The messages.
    pub found: Vec<Found>,
    /// What was searched for them.
    pub searched: Vec<Searched>,
    /// Where to go on; `None`: there is no more.
    pub next: Option<Place>,
}

/// What was searched.
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
    /// The scheduled, the dead and the archived messages, by their message ids: exactly.
    MsgIds,
    /// The log of a stream, from the newest message on, or around the time that a message id tells.
    Log {
        /// How many of its messages were read.
        rows: usize,
        /// There are no more.
        whole: bool,
    },
    /// A table, row by row.
    Table {
        /// Which one.
        table: MessageTable,
        /// How many of the topic's rows were read.
        rows: usize,
        /// There are no more.
        whole: bool,
    },
}

impl Searched {
    /// Whether there is no more of it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self {
            Self::MsgIds => true,
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
