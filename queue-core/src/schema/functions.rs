//! The server's functions that queries call.

use diesel::dsl::sql;
use diesel::expression::SqlLiteral;
use diesel::mysql::sql_types::Datetime;

diesel::define_sql_function! {
    /// The id of this connection.
    fn connection_id() -> Unsigned<BigInt>;
}

diesel::define_sql_function! {
    /// The account as which the server authenticated this connection.
    fn current_user() -> Binary;
}

/// The server's clock, UTC.
pub(crate) fn now() -> SqlLiteral<Datetime> {
    sql("UTC_TIMESTAMP(6)")
}
