use serde::Serialize;

use super::millis;
use crate::connection::{Link, Session};
use crate::model::Result;
use crate::store;
use crate::store::duty::DutyStatus;

/// A duty's last run, and how long ago it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct DutyReport {
    /// The run.
    #[serde(flatten)]
    pub status: DutyStatus,
    /// How long ago it was, in milliseconds.
    pub age_ms: u64,
}

/// Returns the last run of each duty.
pub async fn duties(session: &mut Session) -> Result<Vec<DutyReport>> {
    let read = async |conn: &mut Link| {
        let duties = store::duty::all(conn).await?;
        let now = store::topic::server_time(conn).await?.and_utc();
        let with_age = |status: DutyStatus| {
            let age_ms = millis((now - status.ran_at).to_std().unwrap_or_default());
            DutyReport { status, age_ms }
        };
        Ok(duties.into_iter().map(with_age).collect())
    };
    session.call("read the duties", read).await
}
