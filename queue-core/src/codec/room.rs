//! Room in memory for decoded bodies.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::Codecs;

/// The bytes of a unit: the semaphore counts in 32 bits.
const UNIT: usize = 1024;

/// The units that hold this many bytes.
pub(super) fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).min(u32::MAX as usize)
}

/// Room for decoded bodies, until it is dropped.
#[derive(Debug)]
pub struct Room(Option<OwnedSemaphorePermit>);

impl Codecs {
    /// Waits for room for bodies of up to [`limit`](Codecs::limit) bytes together; their size is
    /// not known before they are decoded. Safe to drop half-way.
    pub async fn room(&self) -> Room {
        let wanted = units(self.limit.min(self.budget));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // It fails only where the semaphore is closed, which this one never is.
        Room(Arc::clone(&self.free).acquire_many_owned(wanted).await.ok())
    }
}

impl Room {
    /// Gives back the room beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(held) = &mut self.0 {
            let spare = held.num_permits().saturating_sub(units(bytes));
            drop(held.split(spare));
        }
    }
}
