use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

/// Messages with consecutive numbers and bodies of one size.
#[derive(Debug, Clone)]
pub struct Messages {
    first: u64,
    count: u64,
    body: usize,
}

impl Messages {
    /// Messages in one batch of a fill. In one statement, more are no faster than 1000 on either
    /// server.
    pub const BATCH: u64 = 1000;

    /// Bytes of bodies in one batch of a fill, well below the 16 MiB a server takes.
    const BATCH_BYTES: usize = 4 << 20;

    /// Numbers begin at the time in nanoseconds, so that messages of two programs that ran after
    /// each other never share one.
    pub(crate) fn new(count: u64, body: usize) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let first = u64::try_from(now).context("The clock of this machine is wrong")?;
        Ok(Self { first, count, body })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their numbers, all different.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + Send + use<> {
        self.first..self.first + self.count
    }

    /// Their bodies, each with its number in its first eight bytes, for a peer that stores bytes.
    pub fn payloads(&self) -> impl Iterator<Item = Vec<u8>> + Send + use<> {
        let body = self.body.max(size_of::<u64>());
        self.numbers().map(move |number| {
            let mut payload = vec![b'x'; body];
            payload[..size_of::<u64>()].copy_from_slice(&number.to_be_bytes());
            payload
        })
    }

    /// The number in such a body.
    ///
    /// # Errors
    ///
    /// The body is too short.
    pub fn number_in(payload: &[u8]) -> anyhow::Result<u64> {
        let number = payload.first_chunk().context("A message has no number")?;
        Ok(u64::from_be_bytes(*number))
    }

    /// The body of each.
    #[must_use]
    pub fn body(&self) -> String {
        "x".repeat(self.body)
    }

    /// Splits them into one share for each producer, as equal as possible.
    pub(crate) fn shares(&self, producers: u32) -> Vec<Self> {
        let producers = u64::from(producers);
        let start = |index| self.count * index / producers;
        (0..producers).map(|index| self.part(start(index), start(index + 1))).collect()
    }

    /// Batches of at most `size` messages, in order.
    pub fn batches(&self, size: u64) -> impl Iterator<Item = Self> + Send + use<> {
        let (all, size) = (self.clone(), size.max(1));
        let starts = (0..self.count.div_ceil(size)).map(move |index| index * size);
        starts.map(move |start| all.part(start, all.count.min(start + size)))
    }

    /// Batches that fit one statement of a fill.
    pub(crate) fn statements(&self) -> impl Iterator<Item = Self> + Send + use<> {
        let fitting = Self::BATCH_BYTES / self.body.max(1);
        self.batches(Self::BATCH.min(u64::try_from(fitting).unwrap_or(Self::BATCH)))
    }

    fn part(&self, start: u64, end: u64) -> Self {
        Self { first: self.first + start, count: end - start, body: self.body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_batches_hold_every_number_once_and_in_order() {
        let messages = Messages { first: 7, count: 2_503, body: 200 };
        let all: Vec<_> = messages.numbers().collect();
        let shares = messages.shares(4);
        assert_eq!(shares.len(), 4);
        let shared: Vec<_> = shares.iter().flat_map(Messages::numbers).collect();
        assert_eq!(shared, all);
        let batches: Vec<_> = messages.statements().collect();
        assert_eq!(batches.iter().map(Messages::count).collect::<Vec<_>>(), [1000, 1000, 503]);
        assert_eq!(batches.iter().flat_map(Messages::numbers).collect::<Vec<_>>(), all);
    }

    #[test]
    fn a_payload_has_the_bytes_of_the_body_and_holds_the_number() {
        let messages = Messages { first: 7, count: 2, body: 200 };
        let payloads: Vec<_> = messages.payloads().collect();
        assert!(payloads.iter().all(|payload| payload.len() == 200));
        let numbers = payloads.iter().map(|payload| Messages::number_in(payload).unwrap());
        assert_eq!(numbers.collect::<Vec<_>>(), [7, 8]);
        assert!(Messages::number_in(&[0; 7]).is_err());
    }

    #[test]
    fn a_statement_of_large_bodies_has_fewer_rows() {
        let messages = Messages { first: 0, count: 1000, body: 64 << 10 };
        assert_eq!(messages.statements().map(|batch| batch.count()).max(), Some(64));
    }
}
