use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rowmq_core::codec::Encoding;
use rowmq_core::model::RetryPolicy;
use rowmq_core::{Error, TopicName};

/// How a producer sends.
#[derive(Debug, Clone)]
pub struct ProducerOptions {
    /// How many batches may be in flight at once, each on a connection of its own; further sends
    /// wait for a free lane. Default 4. Connections are opened when needed, and closed after half a
    /// [`lease`](Self::lease) without work.
    pub lanes: NonZeroU32,
    /// Whether the first message to a topic that does not exist creates it, with default settings.
    /// Default off: a misspelt name would become a topic that no consumer reads.
    pub auto_create_topics: bool,
    /// When and for how long messages are sent again.
    pub resend: ResendPolicy,
    /// How long storing one batch may take, and the silence after which the server drops a
    /// connection of this producer. A batch that is being stored holds the lock of its lane, so a
    /// network that swallows packets delays the answer by about this long. Default 10 s, the same
    /// as a consumer's lease.
    pub lease: Duration,
    /// The codecs that the producer encodes bodies with, before anything else, so the spill journal
    /// holds encoded bodies too. Default none. A consumer must know the codecs before the first
    /// message comes.
    pub encoding: Encoding,
    /// How messages of [`send`](crate::Producer::send) and
    /// [`send_async`](crate::Producer::send_async) are collected.
    pub batching: Batching,
    /// Where messages go while the server does not accept them. Default none: the producer then
    /// tries them for the [`ResendPolicy`]'s time, and their sender waits. If a topic is full, the
    /// sender waits for room even with a journal.
    pub spill: Option<SpillOptions>,
    /// Notified of failed tries and of batches that are sent again.
    pub on_progress: Option<ProgressListener>,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            lanes: NonZeroU32::MIN.saturating_add(3),
            auto_create_topics: false,
            resend: ResendPolicy::default(),
            lease: Duration::from_secs(10),
            encoding: Encoding::none(),
            batching: Batching::default(),
            spill: None,
            on_progress: None,
        }
    }
}

/// How [`Producer::send`](crate::Producer::send) and
/// [`send_async`](crate::Producer::send_async) collect messages into batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batching {
    /// How long the first message of a batch of `send_async` waits for others while no batch of its
    /// topic is in flight. Default zero: a message that comes alone goes at once, and those that
    /// arrive while a batch is in flight form the next one. `send` never waits for others.
    pub linger: Duration,
    /// The most messages in a batch. Default 500: a transaction of some 5 ms.
    pub max_messages: NonZeroUsize,
    /// The most bytes in a batch, unless a single message is larger. Default 1 MiB, so that a batch
    /// finishes well within the [`lease`](ProducerOptions::lease) even on a slow line.
    pub max_bytes: NonZeroUsize,
    /// How many bytes of accepted messages may be without an outcome; further sends wait. A message
    /// counts half a kilobyte besides its own bytes. Default 32 MiB, as Kafka's `buffer.memory`.
    pub buffer_bytes: NonZeroU32,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            linger: Duration::ZERO,
            max_messages: NonZeroUsize::MIN.saturating_add(499),
            max_bytes: NonZeroUsize::MIN.saturating_add((1 << 20) - 1),
            buffer_bytes: NonZeroU32::MIN.saturating_add((32 << 20) - 1),
        }
    }
}

/// A journal on this machine's disk, for messages that the server does not accept now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillOptions {
    /// The directory, for this producer alone and for one database. It is created if it does not
    /// exist, readable by this user only: it holds bodies as they are.
    pub dir: PathBuf,
    /// The most bytes that the journal holds. Default 1 GiB. While it is full, senders wait for
    /// room as long as the [`ResendPolicy`] allows, and then fail with
    /// [`SendError::SpillFull`](crate::SendError::SpillFull).
    pub limit_bytes: NonZeroU64,
    /// For how long a batch is tried at the server before it goes into an empty journal. A try that
    /// is under way is awaited, behind a cut cable for up to a [`lease`](ProducerOptions::lease).
    /// Default 1 s: less than a restart of the server takes, and more than a deadlock or a failover
    /// that only a connection notices.
    pub after: Duration,
}

impl SpillOptions {
    /// A journal in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            limit_bytes: NonZeroU64::MIN.saturating_add((1 << 30) - 1),
            after: Duration::from_secs(1),
        }
    }
}

/// When and for how long messages are sent again until the server acknowledges them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResendPolicy {
    /// The waits between tries. Default `exponential 50ms..500ms`: a server that is back, or the
    /// new writer of a cluster, is found within half a second.
    pub backoff: RetryPolicy,
    /// How often a batch is tried again at most. Default: as often as `give_up_after` allows.
    pub max_resends: Option<u32>,
    /// For how long a batch is tried, counted from the call or the acceptance of its first message.
    /// Default 2 min, as Kafka's `delivery.timeout.ms`. At least one try is made, and the last may
    /// end later, by its own deadline. After 24 h the janitor prunes an unused lane, so beyond that
    /// the outcome of a batch in doubt can no longer be found out.
    pub give_up_after: Duration,
}

impl Default for ResendPolicy {
    fn default() -> Self {
        Self {
            backoff: RetryPolicy::Exponential {
                base: Duration::from_millis(50),
                cap: Duration::from_millis(500),
            },
            max_resends: None,
            give_up_after: Duration::from_secs(120),
        }
    }
}

/// What a [`ProgressListener`] gets while a batch is not acknowledged.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A try failed; the next one comes after `wait`.
    Waiting {
        /// Where the batch goes.
        topic: &'a TopicName,
        /// How many messages it has.
        messages: usize,
        /// How long until the next try.
        wait: Duration,
        /// The failure.
        error: &'a Error,
    },
    /// A batch that an earlier try handed to the server is sent again.
    Resending {
        /// Where the batch goes.
        topic: &'a TopicName,
        /// How many messages it has.
        messages: usize,
    },
    /// Messages are in the spill journal now.
    Spilled {
        /// Where they go.
        topic: &'a TopicName,
        /// How many they are.
        messages: usize,
    },
    /// Messages of the spill journal are stored now.
    Drained {
        /// Where they went.
        topic: &'a TopicName,
        /// How many they are.
        messages: usize,
    },
    /// Messages of the spill journal that cannot be sent from it go into a file in its directory.
    SetAside {
        /// Where they were to go.
        topic: &'a TopicName,
        /// How many they are.
        messages: usize,
    },
}

/// A function that follows a send that takes longer than one try. It is called between database
/// calls and should return at once.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(Progress<'_>) + Send + Sync>);

impl ProgressListener {
    /// Wraps the function.
    pub fn new(listener: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn tell(&self, progress: Progress<'_>) {
        (self.0)(progress);
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressListener")
    }
}
