use diesel::result::{DatabaseErrorKind, Error as DieselError};
use serde::Serialize;

/// The class of a database failure.
///
/// diesel-async drops the server's error number, so the class is read from the text. Every
/// connection of ours sets `lc_messages = 'en_US'`. The conformance suite provokes each class on
/// every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// 1213, 1020 of MariaDB 11.8, 3101 of Group Replication: the transaction was rolled back;
    /// retry it.
    Deadlock,
    /// 1205 or 3572: only the statement was rolled back; roll back and retry the transaction.
    LockWait,
    /// The connection broke or was killed.
    Gone,
    /// 1290, 1792, 1836, 3100 of Group Replication, 1047 of Galera: the server takes no writes.
    ReadOnly,
    /// 1062: a row with this unique key exists.
    Duplicate,
    /// 1153, 1301: larger than the server takes.
    TooLarge,
    /// 1040, 1203, 1226, 1461: no more connections or statements now.
    Busy,
    /// 1044, 1045, 1095, 1142, 1227, 1370, and 1356 for the owner of a view: the account lacks a
    /// privilege.
    Denied,
    /// 1049, 1054, 1146, 1305: a database, table, column or procedure is missing.
    Schema,
    /// 1021, 1114: no space left; or the topic is full.
    Full,
    /// 1317, 3024, 1969: the statement was interrupted.
    Interrupted,
    /// Anything else.
    Other,
}

/// A part of the server's English text, and the class it indicates. The first match decides.
const TEXTS: &[(&str, Fault)] = &[
    ("Deadlock found when trying to get lock", Fault::Deadlock),
    ("Record has changed since last read", Fault::Deadlock),
    ("Plugin instructed the server to rollback", Fault::Deadlock),
    ("Lock wait timeout exceeded", Fault::LockWait),
    ("lock(s) could not be acquired immediately", Fault::LockWait),
    ("read-only option", Fault::ReadOnly),
    ("read only option", Fault::ReadOnly),
    ("super-read-only", Fault::ReadOnly),
    ("read-only mode", Fault::ReadOnly),
    ("read only mode", Fault::ReadOnly),
    ("READ ONLY transaction", Fault::ReadOnly),
    ("Running in read-only", Fault::ReadOnly),
    ("WSREP has not yet prepared node", Fault::ReadOnly),
    ("running replication hook", Fault::ReadOnly),
    ("Duplicate entry", Fault::Duplicate),
    ("bigger than 'max_allowed_packet'", Fault::TooLarge),
    ("larger than max_allowed_packet", Fault::TooLarge),
    ("longer than 'max_allowed_packet'", Fault::TooLarge),
    ("Packet too large", Fault::TooLarge),
    ("Too many connections", Fault::Busy),
    ("max_prepared_stmt_count", Fault::Busy),
    ("more than 'max_user_connections'", Fault::Busy),
    ("has exceeded the", Fault::Busy),
    ("Access denied", Fault::Denied),
    ("command denied", Fault::Denied),
    ("of view lack rights", Fault::Denied),
    ("You are not owner of thread", Fault::Denied),
    ("Unknown database", Fault::Schema),
    ("doesn't exist", Fault::Schema),
    ("does not exist", Fault::Schema),
    ("Unknown column", Fault::Schema),
    ("is full", Fault::Full),
    ("Disk full", Fault::Full),
    ("Query execution was interrupted", Fault::Interrupted),
    ("maximum statement execution time exceeded", Fault::Interrupted),
    ("Connection was killed", Fault::Gone),
    ("Connection to the server is closed", Fault::Gone),
    ("Input/output error", Fault::Gone),
    ("Server shutdown in progress", Fault::Gone),
    ("disconnected by the server because of inactivity", Fault::Gone),
    ("Can't parse", Fault::Gone),
    ("can't parse", Fault::Gone),
    ("Packet out of order", Fault::Gone),
    ("connection closed", Fault::Gone),
];

impl Fault {
    /// The class of a diesel error.
    #[must_use]
    pub fn of(error: &DieselError) -> Self {
        match error {
            DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => Self::Duplicate,
            DieselError::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _) => Self::ReadOnly,
            DieselError::DatabaseError(DatabaseErrorKind::ClosedConnection, _) => Self::Gone,
            DieselError::BrokenTransactionManager => Self::Gone,
            // A reply that does not fit the statement: the connection can no longer be trusted.
            DieselError::DeserializationError(_) => Self::Gone,
            other => Self::of_text(&other.to_string()),
        }
    }

    /// The class of a server's English error text.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        TEXTS.iter().find(|(part, _)| text.contains(part)).map_or(Self::Other, |(_, fault)| *fault)
    }

    /// Whether the connection is useless: it is broken, or its server takes no writes any more.
    /// Only a new connection finds the new writer.
    #[must_use]
    pub fn ends_connection(self) -> bool {
        matches!(self, Self::Gone | Self::ReadOnly)
    }

    /// Whether the library's own transaction is retried whole.
    #[must_use]
    pub fn is_conflict(self) -> bool {
        matches!(self, Self::Deadlock | Self::LockWait)
    }

    /// Whether the same call may succeed later without a change of its input.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Deadlock
                | Self::LockWait
                | Self::Gone
                | Self::ReadOnly
                | Self::Busy
                | Self::Full
                | Self::Interrupted
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_both_servers_are_distinguished() {
        let cases = [
            ("Deadlock found when trying to get lock; try restarting transaction", Fault::Deadlock),
            ("Lock wait timeout exceeded; try restarting transaction", Fault::LockWait),
            (
                "Statement aborted because lock(s) could not be acquired immediately and NOWAIT is set.",
                Fault::LockWait,
            ),
            (
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
                Fault::ReadOnly,
            ),
            (
                "The MySQL server is running with the --super-read-only option so it cannot execute this statement",
                Fault::ReadOnly,
            ),
            ("WSREP has not yet prepared node for application use", Fault::ReadOnly),
            ("Error on observer while running replication hook 'before_commit'.", Fault::ReadOnly),
            ("Plugin instructed the server to rollback the current transaction.", Fault::Deadlock),
            ("Table 'q.queue_topic' doesn't exist", Fault::Schema),
            ("Driver error: `Connection to the server is closed.'", Fault::Gone),
            ("something new", Fault::Other),
        ];
        for (text, fault) in cases {
            assert_eq!(Fault::of_text(text), fault, "{text}");
        }
    }
}
