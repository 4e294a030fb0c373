//! Checking that a reply belongs to the statement just sent.

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::Result;

/// No index: reads back the number just sent. A different number, or none, is the reply to an
/// earlier statement that was dropped half-way.
pub(crate) async fn echo(conn: &mut impl Connection, nonce: u64) -> Result<Option<u64>> {
    let statement = Statement::new("SELECT CAST(? AS UNSIGNED) AS nonce").number(nonce);
    let rows: Vec<u64> = load(conn, "see whether replies fit", statement).await?;
    Ok(rows.first().copied())
}
