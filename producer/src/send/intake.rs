//! What has been read and not yet sent: a buffer between the thread that reads and the task that
//! sends, bounded in messages and bytes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rowmq_core::NewMessage;
use tokio::sync::Notify;

/// The most items in the buffer: two of the largest batches.
const MOST_ITEMS: usize = 20_000;

/// The most bytes in the buffer, unless a single message is larger.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The most bytes in one batch, unless a single message is larger: it must finish within a lease
/// even on a slow line.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// An item of the input.
#[derive(Debug)]
pub(crate) struct Item {
    /// Its number, from 1.
    pub(crate) number: u64,
    /// The input's position after it, in bytes.
    pub(crate) end: u64,
    /// The message, or why it is none.
    pub(crate) message: Result<NewMessage, String>,
}

impl Item {
    fn bytes(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.body.len())
    }
}

/// The buffer.
#[derive(Default)]
pub(crate) struct Intake {
    state: Mutex<State>,
    room: Condvar,
    filled: Notify,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    end: Option<anyhow::Result<()>>,
    stopped: bool,
}

impl Intake {
    /// Puts an item in, and waits for room; false once the reading is ended. Blocks the thread.
    pub(crate) fn put(&self, item: Item) -> bool {
        let mut state = self.state();
        let full = |state: &State| {
            !state.stopped
                && (state.items.len() >= MOST_ITEMS
                    || (!state.items.is_empty() && state.bytes + item.bytes() > MOST_BYTES))
        };
        while full(&state) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped {
            return false;
        }
        state.bytes += item.bytes();
        state.items.push_back(item);
        self.filled.notify_one();
        true
    }

    /// Ends the input: it is complete, or could not be read further.
    pub(crate) fn end(&self, end: anyhow::Result<()>) {
        self.state().end = Some(end);
        self.filled.notify_one();
    }

    /// Returns up to `limit` of the items that are there, as soon as there is one; none at the end.
    /// May be dropped while it waits.
    ///
    /// # Errors
    /// Why the input could not be read further, once all items before that are taken.
    pub(crate) async fn take(&self, limit: usize) -> anyhow::Result<Vec<Item>> {
        loop {
            {
                let mut state = self.state();
                if !state.items.is_empty() {
                    let batch = state.batch(limit);
                    self.room.notify_one();
                    return Ok(batch);
                }
                if let Some(end) = state.end.take() {
                    state.end = Some(Ok(()));
                    return end.map(|()| Vec::new());
                }
            }
            self.filled.notified().await;
        }
    }

    /// Stops the reading; returns whether input was left.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state();
        state.stopped = true;
        self.room.notify_one();
        !state.items.is_empty() || state.end.is_none()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn batch(&mut self, limit: usize) -> Vec<Item> {
        let mut bytes = 0;
        let fitting = self.items.iter().take(limit).take_while(|item| {
            bytes += item.bytes();
            bytes <= BATCH_BYTES
        });
        let n = fitting.count().max(1);
        let batch: Vec<Item> = self.items.drain(..n).collect();
        self.bytes -= batch.iter().map(Item::bytes).sum::<usize>();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(number: u64, bytes: usize) -> Item {
        Item { number, end: 0, message: Ok(NewMessage::new(vec![0; bytes])) }
    }

    #[tokio::test]
    async fn a_batch_is_bounded_in_messages_and_bytes() {
        let intake = Intake::default();
        for (number, bytes) in [(1, 10), (2, 10), (3, 10), (4, 3 << 20), (5, 3 << 20), (6, 9 << 20)]
        {
            assert!(intake.put(item(number, bytes)));
        }
        intake.end(Ok(()));
        let mut taken = Vec::new();
        loop {
            let batch = intake.take(2).await.expect("nothing failed");
            if batch.is_empty() {
                break;
            }
            taken.push(batch.iter().map(|item| item.number).collect::<Vec<_>>());
        }
        assert_eq!(taken, [vec![1, 2], vec![3, 4], vec![5], vec![6]]);
        assert!(!intake.stop(), "nothing was left");
    }

    #[tokio::test]
    async fn a_reader_waits_for_room_and_ends_when_stopped() {
        let intake = std::sync::Arc::new(Intake::default());
        let reader = std::thread::spawn({
            let intake = std::sync::Arc::clone(&intake);
            move || (1_u64..).find(|number| !intake.put(item(*number, 1 << 20)))
        });
        assert_eq!(intake.take(1).await.expect("nothing failed").len(), 1);
        assert!(intake.stop(), "input was left");
        let last = reader.join().expect("no panic").expect("it was asked to stop");
        assert!(last <= 18, "{last}: 16 MiB wait at most, and one was taken");
    }

    #[tokio::test]
    async fn what_was_read_before_a_failure_comes_first() {
        let intake = Intake::default();
        intake.put(item(1, 1));
        intake.end(Err(anyhow::anyhow!("the disk is gone")));
        assert_eq!(intake.take(9).await.expect("read before").len(), 1);
        assert!(intake.take(9).await.is_err());
    }
}
