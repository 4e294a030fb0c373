//! The processes of a run that are not the product's own programs: senders and recorders built on
//! its libraries, consumers by the SQL contract, and the program that `rowmq-consumer exec` and
//! `rowmq-consumer pool` run.

pub(crate) mod caller;
pub(crate) mod recorder;
pub(crate) mod sender;
pub(crate) mod witness;

use std::path::PathBuf;

use crate::tag::Actor;

/// The identity of a process in its run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Identity {
    /// Its number.
    #[arg(long, value_parser = actor)]
    pub(crate) actor: Actor,
    /// The file to which it writes what it sees.
    #[arg(long)]
    pub(crate) record: PathBuf,
}

fn actor(text: &str) -> Result<Actor, std::num::ParseIntError> {
    text.parse().map(Actor)
}
