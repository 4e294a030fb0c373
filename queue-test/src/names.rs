//! Names that distinguish what tests made from everything else.

/// The prefix of the names of test databases.
pub(crate) const PREFIX: &str = "queue_test_";

/// The prefix of the names of test accounts: MySQL gives an account's name 32 characters.
pub(crate) const ACCOUNT_PREFIX: &str = "qt_";

/// Returns the prefix of the names of the accounts made for `database`.
pub(crate) fn account_stem(database: &str) -> String {
    let id = database.strip_prefix(PREFIX).unwrap_or(database);
    format!("{ACCOUNT_PREFIX}{}_", id.chars().take(20).collect::<String>())
}
