//! What a process has done so far.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Name, rate};

/// Counts, shared by the handlers of a process.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    settled: AtomicU64,
    /// In nanoseconds on the machine's monotonic clock, as all times here.
    first: AtomicU64,
    last: AtomicU64,
    /// The CPU time that the process had used when work began, in nanoseconds.
    cpu_before: AtomicU64,
    latencies: Mutex<Vec<u64>>,
}

/// The counts of a process, or of all processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Messages settled.
    pub(crate) settled: u64,
    first: u64,
    last: u64,
    /// The CPU time since work began, in nanoseconds.
    cpu: u64,
    /// In nanoseconds.
    latencies: Vec<u64>,
}

impl Tally {
    /// Records that work begins; only the first time counts.
    pub(crate) fn begin(&self) {
        if self.first.load(Ordering::Relaxed) == 0 {
            // The first caller has the earliest time, apart from the time that this call takes.
            let set = self.first.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed);
            if set.is_ok() {
                let cpu = read(ClockId::ProcessCPUTime);
                self.cpu_before.store(cpu, Ordering::Relaxed);
            }
        }
    }

    /// Counts this many messages as settled.
    pub(crate) fn settle(&self, messages: u64) {
        self.settled.fetch_add(messages, Ordering::Relaxed);
        self.last.fetch_max(now(), Ordering::Relaxed);
    }

    /// Records that a message was picked up that was enqueued at `sent`.
    pub(crate) fn picked_up(&self, sent: u64) {
        let latency = now().saturating_sub(sent);
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
    }

    /// Returns the counts; their CPU time is 0, because to read it costs some.
    pub(super) fn count(&self) -> Count {
        Count {
            cpu: 0,
            settled: self.settled.load(Ordering::Relaxed),
            first: self.first.load(Ordering::Relaxed),
            last: self.last.load(Ordering::Relaxed),
            latencies: self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Returns the counts with the CPU time.
    pub(super) fn count_with_cpu(&self) -> Count {
        let before = self.cpu_before.load(Ordering::Relaxed);
        let cpu = read(ClockId::ProcessCPUTime).saturating_sub(before);
        Count { cpu, ..self.count() }
    }
}

impl Count {
    /// Adds the counts of another process.
    pub(super) fn add(mut self, other: &Self) -> Self {
        self.settled += other.settled;
        self.first = match (self.first, other.first) {
            (0, first) | (first, 0) => first,
            (one, other) => one.min(other),
        };
        self.last = self.last.max(other.last);
        self.cpu += other.cpu;
        self.latencies.extend(&other.latencies);
        self
    }

    /// Returns when the first handler began; 0 if none has.
    pub(crate) fn began(&self) -> u64 {
        self.first
    }

    /// Returns how many messages are held.
    pub(crate) fn held(&self) -> usize {
        self.latencies.len()
    }

    /// Returns the time from the first handler's start to the last message settled.
    pub(crate) fn time(&self) -> Option<Duration> {
        (self.settled > 0).then(|| Duration::from_nanos(self.last.saturating_sub(self.first)))
    }

    /// Returns the rate of a drain, and the CPU time for each message settled.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let time = self.time().unwrap_or(Duration::from_secs(1));
        let each = Duration::from_nanos(self.cpu.checked_div(self.settled).unwrap_or(0));
        let cpu = Figure { name: Name::CpuOfEach, value: each.as_secs_f64() * 1e6 };
        vec![rate(self.settled, time), cpu]
    }

    /// Returns the latencies.
    pub(crate) fn latencies(&self) -> anyhow::Result<Histogram<u64>> {
        let mut histogram = Histogram::new(3)?;
        for latency in &self.latencies {
            histogram.record(*latency)?;
        }
        Ok(histogram)
    }
}

/// Returns the time on the machine's monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanos).unwrap_or_default()
}
