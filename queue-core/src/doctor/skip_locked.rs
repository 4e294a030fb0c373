//! The trial of SKIP LOCKED, without which the server cannot run the queue.

use uuid::Uuid;

use super::{Check, Verdict, check};
use crate::connection::Connection;
use crate::model::{Fault, Result};
use crate::store::doctor as ask;

/// How often it is tried.
const TRIALS: u32 = 3;

/// Tries whether a session passes over a row that another has locked.
pub(super) async fn passes_over(
    conn: &mut impl Connection,
    other: &mut impl Connection,
) -> Result<Check> {
    let mut ok = false;
    // A server that knows the words passes one of the trials: any session, such as a dump, may have
    // locked a row of one for a moment. A server that does not know them passes none.
    for _ in 0..TRIALS {
        ok = ok || passes_over_once(conn, other).await?;
    }
    let detail = if ok {
        "SKIP LOCKED passes over another session's row".to_owned()
    } else {
        "SKIP LOCKED hands out a row that another session has locked, or waits for it: this server cannot run the queue.".to_owned()
    };
    Ok(check("skip locked", ok, Verdict::Failure, detail))
}

async fn passes_over_once(conn: &mut impl Connection, other: &mut impl Connection) -> Result<bool> {
    let trial = Uuid::new_v4().simple().to_string();
    let (a, b) = (format!("a{}", &trial[..24]), format!("b{}", &trial[..24]));
    let names = [a.as_str(), b.as_str()];
    ask::insert_scratch(conn, names).await?;
    ask::begin(conn).await?;
    ask::begin(other).await?;
    let locked = ask::lock_scratch(conn, &a).await?;
    let passed_over = match ask::lock_scratch(other, &a).await {
        // The server waits for the row, as if the words were not there.
        Err(error) if error.fault() == Fault::LockWait => false,
        locked => !locked?,
    };
    let free = ask::lock_scratch(other, &b).await?;
    ask::roll_back(conn).await?;
    ask::roll_back(other).await?;
    ask::remove_scratch(conn, names).await?;
    Ok(locked && passed_over && free)
}
