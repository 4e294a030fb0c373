//! A message as a search finds it: where it is, its state, and the content of its row.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::model::{FailedRun, Headers, MsgId, Percent, Position, Priority, RowId, WorkerId};

/// A search for messages of a topic: a message must meet every given condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Has this id.
    pub msg_id: Option<MsgId>,
    /// Has this business id.
    pub biz_id: Option<Vec<u8>>,
    /// Has this ordering key.
    pub key: Option<Vec<u8>>,
    /// Enqueued at this server time or later.
    pub since: Option<DateTime<Utc>>,
    /// Enqueued before this server time.
    pub before: Option<DateTime<Utc>>,
    /// Is in this state.
    pub state: Option<StateWord>,
    /// Its last error, or the reason for discarding it, contains this text, byte by byte.
    pub error: Option<String>,
    /// Has this header with this value.
    pub header: Option<(String, String)>,
    /// Is at this position in its stream.
    pub position: Option<Position>,
}

/// A message, its place, and its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Found {
    /// The topic that it is in now: another one, if it was dead-lettered there.
    pub topic: String,
    /// The message id.
    pub msg_id: MsgId,
    /// Its state.
    #[serde(flatten)]
    pub state: State,
    /// Server time at which it was enqueued, or became due for the first time.
    pub enqueued_at: DateTime<Utc>,
    /// Ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Business idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biz_id: Option<String>,
    /// The content of its row; `None` if it has none any more.
    #[serde(flatten)]
    pub trace: Option<Trace>,
}

/// The content of a message's row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Trace {
    /// The row in the table of its state.
    pub row: RowId,
    /// Its priority.
    pub priority: Priority,
    /// How often it was claimed.
    pub delivery_no: u32,
    /// Failed handlings.
    pub failures: u32,
    /// Crashes of workers that held it.
    pub crashes: u32,
    /// Its handler's last error, or why it was discarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// Its newest failed runs, oldest first.
    pub history: Vec<FailedRun>,
    /// The progress that its handler saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Percent>,
    /// The body's length.
    pub body_bytes: u64,
    /// The body, if it was asked for.
    #[serde(skip)]
    pub body: Option<Vec<u8>>,
}

/// The state of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Waits to be claimed.
    Ready {
        /// Workers crashed on it: it is claimed alone.
        suspect: bool,
    },
    /// A worker has it.
    Claimed {
        /// The worker.
        worker: WorkerId,
        /// The client id of its process; empty if the process is gone.
        client_id: String,
        /// Its connection.
        conn_id: u64,
    },
    /// Waits for its time.
    Scheduled {
        /// Server time at which it becomes ready.
        due_at: DateTime<Utc>,
    },
    /// A dead letter.
    Dead {
        /// Server time at which it died.
        died_at: DateTime<Utc>,
        /// The cause.
        cause: String,
    },
    /// Handled, and kept.
    Done {
        /// Server time at which it was acked.
        settled_at: DateTime<Utc>,
        /// Until when it is kept.
        keep_until: DateTime<Utc>,
    },
    /// Acked without being handled, because another message with its biz id was handled.
    Repeated {
        /// Server time at which it was acked.
        settled_at: DateTime<Utc>,
        /// Until when it is kept.
        keep_until: DateTime<Utc>,
    },
    /// Not worth handling; its `error` says why.
    Discarded {
        /// Server time at which it was discarded.
        settled_at: DateTime<Utc>,
        /// Until when it is kept.
        keep_until: DateTime<Utc>,
    },
    /// In the log of its stream, whatever its groups have done with it.
    Logged {
        /// Its position.
        #[serde(flatten)]
        position: Position,
        /// Server time at which it got its offset.
        sequenced_at: DateTime<Utc>,
    },
    /// It was enqueued, and nothing of it is left: as a rule, it was handled and not kept.
    Gone,
}

impl State {
    /// Its name.
    #[must_use]
    pub fn word(&self) -> StateWord {
        match self {
            Self::Ready { .. } => StateWord::Ready,
            Self::Claimed { .. } => StateWord::Claimed,
            Self::Scheduled { .. } => StateWord::Scheduled,
            Self::Dead { .. } => StateWord::Dead,
            Self::Done { .. } => StateWord::Done,
            Self::Repeated { .. } => StateWord::Repeated,
            Self::Discarded { .. } => StateWord::Discarded,
            Self::Logged { .. } => StateWord::Logged,
            Self::Gone => StateWord::Gone,
        }
    }
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StateWord {
    /// Waits to be claimed.
    Ready,
    /// A worker has it.
    Claimed,
    /// Waits for its time.
    Scheduled,
    /// A dead letter.
    Dead,
    /// Handled, and kept.
    Done,
    /// Acked without being handled.
    Repeated,
    /// Not worth handling.
    Discarded,
    /// In the log of its stream.
    Logged,
    /// Nothing is left of it.
    Gone,
}

impl StateWord {
    /// Every one of them.
    pub const ALL: [Self; 9] = [
        Self::Ready,
        Self::Claimed,
        Self::Scheduled,
        Self::Dead,
        Self::Done,
        Self::Repeated,
        Self::Discarded,
        Self::Logged,
        Self::Gone,
    ];

    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Claimed => "claimed",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
            Self::Done => "done",
            Self::Repeated => "repeated",
            Self::Discarded => "discarded",
            Self::Logged => "logged",
            Self::Gone => "gone",
        }
    }
}
