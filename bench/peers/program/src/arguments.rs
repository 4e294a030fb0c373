use std::time::Duration;

use clap::{Parser, Subcommand};

/// Loads one peer of the queue and prints what came out as one line of JSON.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// The database: `mysql://user:password@host:port/database`.
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
        /// How many messages, of all producers together.
        #[arg(long)]
        messages: u64,
        /// The body of a message, in bytes.
        #[arg(long, default_value_t = 200)]
        body: usize,
        /// How many producers send at once, on a connection each.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        producers: u32,
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
    },
}

impl Case {
    /// How many statements a fill runs at once, each on its own connection. Four keep the server
    /// busy on two cores.
    pub const FILLERS: u32 = 4;

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
