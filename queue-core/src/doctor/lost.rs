//! Whether messages lie in the tables that no topic has.

use std::time::Duration;

use super::{Check, Verdict, check};
use crate::connection::{ServerUrl, SessionKind, Wanted, connect_to};
use crate::error::{Error, Fault, Result};
use crate::topic::deletion::lost;

pub(super) async fn messages(url: &ServerUrl, limit: Duration) -> Result<Check> {
    // The connection belongs to this future: past the limit it is closed with it.
    let asked = tokio::time::timeout(limit, async {
        let (mut conn, _) = connect_to(url, SessionKind::Plain, Wanted::Any).await?;
        lost(&mut conn).await
    });
    let operation = "look for messages without a topic";
    let late = |_| Error::Deadline { operation, deadline: limit };
    let (ok, detail) = match asked.await.map_err(late)? {
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
