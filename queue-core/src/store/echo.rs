//! Asking the server whether it answers what it is asked.

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::Result;

/// No index: the number that the server sends back. Another one, or none, is the reply to a
/// statement that was dropped half-way before this one.
pub(crate) async fn echo(conn: &mut impl Connection, nonce: u64) -> Result<Option<u64>> {
    let statement = Statement::new("SELECT CAST(? AS UNSIGNED) AS nonce").number(nonce);
    let rows: Vec<u64> = load(conn, "see whether replies fit", statement).await?;
    Ok(rows.first().copied())
}
