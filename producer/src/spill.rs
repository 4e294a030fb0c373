//! The spill journal: keeps messages on this machine's disk until the server accepts them.
//!
//! While the journal holds anything, every new message goes behind it, so that the order is kept.
//! One process owns the directory at a time; one of its threads does all file work; one actor sends
//! from the journal.

mod aside;
mod cursor;
mod drain;
mod format;
mod journal;
mod open;
mod record;
mod set_aside;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::{Arc, mpsc};

use rowmq_core::{Error, Result};
use tokio::sync::{oneshot, watch};

use self::cursor::Intent;
pub(crate) use self::drain::Drain;
pub(crate) use self::journal::NotAppended;
use self::journal::{Group, JournalState};
pub(crate) use self::record::Record;
use self::set_aside::{Interest, SetAside};
use self::thread::Command;
use crate::error::SendError;
use crate::options::SpillOptions;

/// A handle to the journal. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Spill {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<JournalState>,
    set_aside: Arc<SetAside>,
}

/// A message, or messages sent together, in the spill journal.
#[derive(Debug, Clone)]
pub struct Spilled {
    number: u64,
    state: watch::Receiver<JournalState>,
    set_aside: Arc<SetAside>,
    /// As long as one of these exists, records that were put aside are remembered.
    _interest: Interest,
}

impl Spilled {
    /// Waits until the server has stored them. They are sent whether or not a caller waits.
    ///
    /// # Errors
    /// [`SendError::Refused`] or [`SendError::Unknown`] when they cannot be sent from the journal
    /// and are in a file of its directory instead; [`SendError::Closed`] when this producer is
    /// closed: they stay in the journal, and the next producer with its directory sends them.
    pub async fn stored(&self) -> Result<(), SendError> {
        let mut state = self.state.clone();
        let settled = |state: &JournalState| state.settled > self.number;
        state.wait_for(settled).await.map_err(|_| SendError::Closed)?;
        self.set_aside.why(self.number).map_or(Ok(()), |why| Err(why.of_one()))
    }
}

impl Spill {
    /// Opens the journal on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Spill`].
    pub(crate) async fn open(options: &SpillOptions) -> Result<Self> {
        let set_aside = Arc::new(SetAside::default());
        let (commands, state) = thread::start(options, Arc::clone(&set_aside)).await?;
        Ok(Self { commands, state, set_aside })
    }

    /// Whether new messages have to go behind those in the journal.
    pub(crate) fn is_filled(&self) -> bool {
        !self.state().is_empty()
    }

    pub(crate) fn state(&self) -> JournalState {
        *self.state.borrow()
    }

    /// Waits until something is in it. May be dropped while it waits.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub(crate) async fn filled(&self) -> Result<(), SendError> {
        let mut state = self.state.clone();
        let filled = state.wait_for(|state| !state.is_empty()).await;
        filled.map(drop).map_err(|_| SendError::Closed)
    }

    /// Waits until nothing is in it. May be dropped while it waits.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    pub(crate) async fn emptied(&self) -> Result<(), SendError> {
        let mut state = self.state.clone();
        state.wait_for(JournalState::is_empty).await.map(drop).map_err(|_| SendError::Closed)
    }

    /// Waits until the journal's state changes. May be dropped while it waits.
    pub(crate) async fn changed(&self) {
        let mut state = self.state.clone();
        state.mark_unchanged();
        // Closed: the caller learns that from its next command.
        drop(state.changed().await);
    }

    /// Appends records to the journal, all of them or none, and returns the number of the first
    /// once they are on the disk. They are handed back if they are not.
    pub(crate) async fn append(
        &self,
        records: Vec<Record>,
    ) -> Result<Spilled, (Option<NotAppended>, Vec<Record>)> {
        // Taken before they can be put aside.
        let interest = self.set_aside.interest();
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::SendError(command)) =
            self.commands.send(Command::Append { records, reply })
        {
            return Err((None, command.into_records()));
        }
        match answer.await {
            Ok(Ok(number)) => Ok(self.spilled(number, interest)),
            Ok(Err((why, records))) => Err((Some(why), records)),
            Err(_) => Err((None, Vec::new())),
        }
    }

    fn spilled(&self, number: u64, interest: Interest) -> Spilled {
        let (state, set_aside) = (self.state.clone(), Arc::clone(&self.set_aside));
        Spilled { number, state, set_aside, _interest: interest }
    }

    /// The next batch to be sent.
    async fn peek(&self) -> Result<Group, Error> {
        self.ask(Command::Peek).await
    }

    /// Records what is about to be sent, and how far the journal is settled.
    async fn intend(&self, intent: Option<Intent>) -> Result<(), Error> {
        self.ask(|reply| Command::Intend { intent, reply }).await
    }

    /// Settles the group: it is stored, or it cannot be, and is kept in a file.
    async fn settle(&self, group: Arc<Group>, unsent: Option<SendError>) -> Result<(), Error> {
        self.ask(|reply| Command::Settle { group, unsent, reply }).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        drop(self.commands.send(command(reply)));
        answer.await.unwrap_or_else(|_| Err(thread::ended()))
    }

    /// Waits until the thread has ended and the directory is free.
    pub(crate) async fn closed(&self) {
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
    }

    /// Ends the thread and releases the directory; what is in the journal stays.
    pub(crate) async fn close(&self) {
        drop(self.ask(Command::Close).await);
    }
}

impl Spilled {
    /// The message `n` places behind the first.
    pub(crate) fn nth(&self, n: usize) -> Self {
        Self { number: self.number + n as u64, ..self.clone() }
    }
}
