//! The state that all pages share.

use rowmq_core::store::stream::holding::GroupClaim;
use rowmq_core::store::stream::member::MemberProgress;
use rowmq_core::store::stream::progress::GroupProgress;
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use crate::link::Link;
use crate::login::Logins;
use crate::per_look::PerLook;
use crate::runs::Runs;
use crate::sampler::Live;
use crate::settings::Rules;
use crate::throttle::Throttle;

/// The state that all pages share.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) rules: Rules,
    pub(crate) logins: Logins,
    pub(crate) throttle: Throttle,
    /// The link to sign in by while no users are named.
    pub(crate) link: Option<Link>,
    pub(crate) database: Database,
    /// The database and the server, for people.
    pub(crate) place: String,
    pub(crate) live: Live,
    pub(crate) parts: PerLook<Parts>,
    pub(crate) runs: Runs,
    /// Cancelled when long-lived answers have to end.
    pub(crate) ending: CancellationToken,
}

/// The positions of a group's partitions and members.
#[derive(Debug)]
pub(crate) enum Parts {
    Claiming { partitions: Vec<GroupProgress>, claims: Vec<GroupClaim> },
    Broadcast { members: Vec<MemberProgress> },
}
