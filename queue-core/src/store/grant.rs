//! What the account of this session is granted.

use super::{Statement, load};
use crate::connection::Connection;
use crate::model::Result;

/// No index: the lines of `SHOW GRANTS`, those of active roles included.
pub async fn own(conn: &mut impl Connection) -> Result<Vec<String>> {
    load(conn, "read the account's grants", Statement::new("SHOW GRANTS")).await
}
