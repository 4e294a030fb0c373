//! How messages are claimed, and how a consumer learns of them.

use serde::{Deserialize, Serialize};

/// How messages are claimed and settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Claimer {
    /// Our consumer with a handler that does nothing.
    Consumer,
    /// The same, with a transactional handler: a separate transaction acks each message.
    Transactional,
    /// The same, with a Python program that is started for each message.
    Exec,
    /// The same, with a pool of Python programs that take one message after another.
    Pool,
    /// The same, claiming by update-then-select.
    UpdateThenSelect,
    /// The same, claiming by `UPDATE … LIMIT`.
    UpdateLimit,
    /// The worker of the client for Python, whose handler in a transaction does nothing.
    Python,
    /// The same of the client for PHP.
    Php,
    /// The same of the client for Node.js.
    Node,
    /// The statements of our claim and settle in a loop, without anything around them.
    Bare,
    /// `CALL queue_claim` by the bare driver, and `CALL queue_settle` for each delivery, which
    /// commits by itself.
    Call,
    /// The same, and one `CALL queue_settle` for all deliveries of a claim.
    CallAll,
    /// As [`Self::Call`], each settle between the caller's BEGIN and COMMIT.
    CallTransaction,
    /// The same, one transaction for all settles of a claim.
    CallTogether,
    /// `SELECT … FOR UPDATE SKIP LOCKED` and `DELETE` by key in one transaction.
    SelectDelete,
    /// Rows read by key in ranges, nothing written.
    RangeRead,
    /// The tables and statements of seed 001.
    Seed001,
    /// The table and statements of seed 003.
    Seed003,
    /// The table of seed 004, claimed by its UPDATE, then SELECT.
    Seed004,
    /// The table of seed 004, claimed by the SELECT … FOR UPDATE that it warns of.
    Seed004ForUpdate,
}

impl Claimer {
    /// Whether other programs do the work, so that this program's CPU time says nothing of it.
    pub(crate) fn runs_programs(self) -> bool {
        matches!(self, Self::Exec | Self::Pool | Self::Python | Self::Php | Self::Node)
    }
}

/// How a consumer learns of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WakeUp {
    /// It polls.
    Polling,
    /// It waits for the sweeper's ring.
    Doorbell,
    /// It has no library, and waits for the same in `CALL queue_claim`.
    Call,
}

impl WakeUp {
    /// Returns its name for a row.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Doorbell => "doorbell",
            Self::Call => "queue_claim that waits",
        }
    }
}
