//! The duties, one in each file.

mod backlog;
mod depths;
mod promote;
mod prune;
mod rescue;
mod restore;
mod retain;
mod ring;
mod sequence;
mod tick;
mod watch;
mod weigh;

pub use self::backlog::{Backlogs, BacklogsReport};
pub use self::depths::{Depths, DepthsReport};
pub use self::promote::{Promote, PromoteReport};
pub use self::prune::{Prune, PruneReport};
pub use self::rescue::{Rescue, RescueOptions, RescueReport};
pub use self::restore::{Restore, RestoreReport};
pub use self::retain::{Retain, RetainReport};
pub use self::ring::{Ring, RingReport};
pub use self::sequence::{Sequence, SequenceReport};
pub use self::tick::{Tick, TickReport};
pub use self::watch::{Watch, WatchReport};
pub use self::weigh::{Weigh, WeighReport};
