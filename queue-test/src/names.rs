//! Names by which what tests made can be told from all else.

/// What the names of test databases begin with.
pub(crate) const PREFIX: &str = "queue_test_";

/// What the names of test accounts begin with: MySQL gives an account's name 32 characters.
pub(crate) const ACCOUNT_PREFIX: &str = "qt_";

/// What the names of the accounts made for `database` begin with.
pub(crate) fn account_stem(database: &str) -> String {
    let id = database.strip_prefix(PREFIX).unwrap_or(database);
    format!("{ACCOUNT_PREFIX}{}_", id.chars().take(20).collect::<String>())
}
