//! What every page is given.

use rowmq_core::store::stream::holding::GroupClaim;
use rowmq_core::store::stream::member::MemberStanding;
use rowmq_core::store::stream::standing::Standing;
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use crate::link::Link;
use crate::login::Logins;
use crate::per_look::PerLook;
use crate::runs::Runs;
use crate::sampler::Live;
use crate::settings::Rules;
use crate::throttle::Throttle;

/// What every page is given.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) rules: Rules,
    pub(crate) logins: Logins,
    pub(crate) throttle: Throttle,
    /// The way in while no users are named.
    pub(crate) link: Option<Link>,
    pub(crate) database: Database,
    /// The database and the server, for people.
    pub(crate) place: String,
    pub(crate) live: Live,
    pub(crate) parts: PerLook<Parts>,
    pub(crate) runs: Runs,
    /// What is open for long ends by it.
    pub(crate) ending: CancellationToken,
}

/// What the partitions and the members of a group tell.
#[derive(Debug)]
pub(crate) enum Parts {
    Claiming { partitions: Vec<Standing>, claims: Vec<GroupClaim> },
    Broadcast { members: Vec<MemberStanding> },
}
