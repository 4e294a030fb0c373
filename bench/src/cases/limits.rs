//! The case of topics with limits on their claims.

use std::num::NonZeroU32;
use std::time::Duration;

use rowmq_core::model::{Limits, Rate};

use super::BASE;
use crate::case::{Member, Scale};
use crate::load::{Claimer, Drain, Limited, Load};

const FREE: &str = "no limit";

/// The same, by sessions that claim and settle by SQL.
const FREE_BY_SQL: &str = "by SQL, no limit";

/// So many keys that a claim seldom meets one twice.
const MANY: u32 = 5_000;

/// So few that most messages wait for their key.
const FEW: u32 = 8;

/// More messages than one look of a claim covers, and fewer than all looks of one claim.
const BLOCKED: u64 = 10_000;

pub(super) fn members(scale: &Scale) -> Vec<Member> {
    let drain = Drain { backlog: scale.backlog / 8, ..BASE };
    let load = |limits: Limits| Limited { drain, limits, keys: at_least_one(MANY), blocked: 0 };
    let running = |n: u32| Limits { max_running: NonZeroU32::new(n), ..Limits::default() };
    let per_key = Limits { max_running_per_key: NonZeroU32::new(1), ..Limits::default() };
    // A hundred times the actual rate.
    let rate = Rate::new(at_least_one(1_000_000), Duration::from_secs(1)).ok();
    let few = Limited {
        drain: Drain { backlog: scale.backlog / 40, limit: Duration::from_secs(20), ..drain },
        keys: at_least_one(FEW),
        ..load(per_key)
    };
    let limited = |name: &str, load: Limited| Member::new(name, Load::Limited(load)).against(FREE);
    let drain = Drain { by: Claimer::CallAll, ..few.drain };
    let sql = Limited { drain, ..load(Limits::default()) };
    let by_sql = |name: &str, limits: Limits| {
        Member::new(name, Load::Limited(Limited { limits, ..sql })).against(FREE_BY_SQL)
    };
    vec![
        Member::new(FREE, Load::Limited(load(Limits::default()))),
        // As many as four processes have handlers, and then half as many.
        limited("at most 64 at once", load(running(64))),
        limited("at most 32 at once", load(running(32))),
        limited("one of a key, 5,000 keys", load(per_key)),
        limited("one of a key, 8 keys", few),
        limited(
            "one of a key, behind 10,000 of full keys",
            Limited { blocked: BLOCKED, ..load(per_key) },
        ),
        limited("a rate far above", load(Limits { rate, ..Limits::default() })),
        Member::new(FREE_BY_SQL, Load::Limited(sql)),
        by_sql("by SQL, at most 64 at once", running(64)),
        by_sql("by SQL, one of a key, 5,000 keys", per_key),
        by_sql("by SQL, a rate far above", Limits { rate, ..Limits::default() }),
    ]
}

fn at_least_one(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN)
}
