//! Status for people: the workers, the groups' progress, the duties' last runs. Each function reads
//! a bounded number of rows, and locks none.

mod duty;
mod group;
mod worker;

pub use self::duty::{DutyReport, duties};
pub use self::group::{GroupStatus, groups};
pub use self::worker::{Sign, WorkerStatus, Workers, workers};

use std::time::Duration;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
