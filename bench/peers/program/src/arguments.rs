use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::Messages;

/// Loads one peer of the queue and prints what came out as one line of JSON.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The database, `mysql://user:password@host:port/database`, or the broker.
    #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
    pub(crate) url: String,
    #[command(subcommand)]
    pub(crate) case: Case,
}

/// What is measured.
#[derive(Debug, Clone, Subcommand)]
pub enum Case {
    /// Sends messages by the peer's best means.
    Enqueue {
        /// It ends when so many messages were sent, by all producers together,
        #[arg(long)]
        messages: u64,
        /// or after so many seconds.
        #[arg(long, value_parser = seconds)]
        seconds: Option<Duration>,
        /// The body of a message, in bytes.
        #[arg(long, default_value_t = 200)]
        body: usize,
        /// How many producers send at once, on a connection each.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        producers: u32,
        /// How many messages a producer sends before it waits until all are stored.
        #[arg(
            long,
            default_value_t = Messages::BATCH,
            value_parser = clap::value_parser!(u64).range(1..),
        )]
        batch: u64,
    },
    /// Stores a backlog as fast as the server takes it.
    Fill {
        /// How many messages.
        #[arg(long)]
        messages: u64,
        /// The body of a message, in bytes.
        #[arg(long, default_value_t = 200)]
        body: usize,
    },
    /// Handles a backlog by a handler that does nothing.
    Drain {
        /// It ends when so many different messages were handled,
        #[arg(long)]
        messages: u64,
        /// How many consumers, of the size the peer does best with.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        consumers: u32,
        /// or after so many seconds.
        #[arg(long, value_parser = seconds)]
        seconds: Duration,
        /// Delete what was handled, where the peer would keep it.
        #[arg(long)]
        delete: bool,
    },
}

impl Case {
    /// How many batches a fill stores at once, each on its own connection. Four keep the server
    /// busy on two cores.
    pub const FILLERS: u32 = 4;

    /// How many producers send at once.
    #[must_use]
    pub fn producers(&self) -> u32 {
        match *self {
            Self::Enqueue { producers, .. } => producers,
            Self::Fill { .. } => Self::FILLERS,
            Self::Drain { .. } => 0,
        }
    }

    /// Its name on the command line and in the report.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Enqueue { .. } => "enqueue",
            Self::Fill { .. } => "fill",
            Self::Drain { .. } => "drain",
        }
    }

    pub(crate) fn messages(&self) -> u64 {
        match *self {
            Self::Enqueue { messages, .. }
            | Self::Fill { messages, .. }
            | Self::Drain { messages, .. } => messages,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, like 10".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
