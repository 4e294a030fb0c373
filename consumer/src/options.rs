use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use rowmq_core::Topic;
use rowmq_core::model::MemberName;
use rowmq_core::worker::{ClaimStrategy, WorkerOptions};
use serde::{Deserialize, Serialize};

use crate::breaker::{Breaker, ErrorRate};
use crate::error::Error;

/// Whether an idle consumer waits to be woken by the sweeper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum DoorbellMode {
    /// The consumer polls.
    Off,
    /// The consumer waits for the sweeper's ring, and polls while no sweeper rings. This is the
    /// default.
    #[default]
    Auto,
}

/// How a consumer works, for all its topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerOptions {
    /// After this silence the server drops the worker's sessions, and other workers take its
    /// claims. A shorter lease rescues the messages of a frozen consumer sooner; if it is too
    /// short, a slow network makes workers count as dead.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How often the worker beats; at most a quarter of the lease.
    #[serde(with = "humantime_serde")]
    pub beat: Duration,
    /// How long handlers may go on after the consumer was asked to stop.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    /// How ready messages are claimed.
    pub claim_strategy: ClaimStrategy,
    /// How many handlers run at once over all topics, which share them by their
    /// [weights](TopicOptions::weight). `None`: each topic has its own concurrency, independent of
    /// the others.
    pub concurrency: Option<NonZeroUsize>,
    /// Whether topics that do not exist are created with the default settings.
    pub auto_create_topics: bool,
    /// Whether the consumer sweeps when no janitor does.
    pub sweep: bool,
    /// Whether the consumer waits to be woken while it is idle, instead of polling.
    pub doorbell: DoorbellMode,
    /// How often an idle consumer looks for messages all the same while the doorbell is active: in
    /// one statement for all its topics.
    #[serde(with = "humantime_serde")]
    pub safety_poll: Duration,
    /// The name of this consumer as a member of broadcast groups. Its positions are stored under
    /// the name, and it resumes there after a restart. Without a name they are only in memory.
    pub member: Option<MemberName>,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            lease: WorkerOptions::LEASE,
            beat: WorkerOptions::LEASE / 4,
            drain: Duration::from_secs(25),
            claim_strategy: ClaimStrategy::default(),
            concurrency: None,
            auto_create_topics: false,
            sweep: true,
            doorbell: DoorbellMode::default(),
            safety_poll: Duration::from_secs(5),
            member: None,
        }
    }
}

impl ConsumerOptions {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |name, value: Duration, fix| {
            Err(Error::Setting { name, value: format!("{} ms", value.as_millis()), fix })
        };
        if self.lease < Duration::from_secs(2) {
            return refuse("lease", self.lease, "the server counts whole seconds, use 2 s or more");
        }
        if self.beat.is_zero() || self.beat > self.lease / 4 {
            return refuse("beat", self.beat, "use at most a quarter of the lease");
        }
        if self.safety_poll.is_zero() {
            return refuse("safety_poll", self.safety_poll, "use more than nothing, such as 5s");
        }
        Ok(())
    }

    /// Refuses a member's name if no topic is a broadcast group.
    pub(crate) fn check_member(
        &self,
        topics: impl IntoIterator<Item = Arc<Topic>>,
    ) -> Result<(), Error> {
        match &self.member {
            Some(name) if topics.into_iter().all(|topic| topic.broadcast().is_none()) => {
                Err(Error::Setting {
                    name: "member",
                    value: name.to_string(),
                    fix: "only members of a broadcast group have names, and none is consumed; \
                          leave it out",
                })
            }
            _ => Ok(()),
        }
    }
}

/// How one topic is consumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicOptions {
    /// How many handlers run at once. With 1, messages are handled strictly in order.
    pub concurrency: usize,
    /// The topic's share of the consumer's concurrency beside other topics that have work: weight 3
    /// gets three times the handlers' time of weight 1. Other topics use what a topic does not
    /// need.
    pub weight: NonZeroU32,
    /// The longest run; `None`: no limit. The topic's own limit also applies.
    #[serde(with = "humantime_serde")]
    pub timeout: Option<Duration>,
    /// The most messages of one claim. Claims adapt to how fast handlers are: beyond the free
    /// handlers at most 50 ms of work and about 16 MiB of bodies are claimed. Messages that have
    /// waited for a second because handlers became slow are given back.
    pub max_batch: u32,
    /// The share of failures at which the topic is paused: this consumer claims no more of its
    /// messages, and gives back those that no handler has begun. `None`: never.
    pub pause_on_errors: Option<ErrorRate>,
    /// How long such a pause is. Afterwards one message is tried: if it is handled, the topic goes
    /// on; if it fails, the pause starts again.
    #[serde(with = "humantime_serde")]
    pub pause_for: Duration,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self {
            concurrency: 16,
            weight: NonZeroU32::MIN,
            timeout: None,
            max_batch: 1000,
            pause_on_errors: None,
            pause_for: Duration::from_secs(30),
        }
    }
}

impl TopicOptions {
    pub(crate) fn breaker(&self) -> Option<Breaker> {
        self.pause_on_errors.map(|rate| Breaker::new(rate, self.pause_for))
    }
}
