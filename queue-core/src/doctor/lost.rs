//! Whether the tables hold messages that belong to no topic.

use super::{Check, Verdict, check};
use crate::connection::Connection;
use crate::model::{Fault, Result};
use crate::topic::deletion::lost;

pub(super) async fn messages(conn: &mut impl Connection) -> Result<Check> {
    let (ok, detail) = match lost(conn).await {
        Ok(ids) if ids.is_empty() => (true, "every message has a topic".to_owned()),
        Ok(ids) => {
            let ids: Vec<_> = ids.iter().map(|id| id.0.to_string()).collect();
            let detail = format!(
                "Messages of deleted topics lie under the numbers {}: start a janitor, which makes \
                 a topic restored-N for each number N within a minute.",
                ids.join(", ")
            );
            (false, detail)
        }
        Err(error) if error.fault() == Fault::Denied => {
            (true, "not looked for: this account may not read the messages".to_owned())
        }
        Err(error) => return Err(error),
    };
    Ok(check("lost messages", ok, Verdict::Warning, detail))
}
