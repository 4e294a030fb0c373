//! A measured figure with its unit, and its spread over several rounds.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Messages or statements a second.
    PerSecond,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Mebibytes.
    Mebibytes,
    /// Percent of one core.
    Percent,
    /// Rows per message.
    PerMessage,
    /// A number of messages.
    Messages,
}

/// One figure of one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Which figure.
    pub(crate) name: Name,
    /// Its value.
    pub(crate) value: f64,
}

/// The meaning of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Name {
    /// Messages a second.
    Rate,
    /// Messages a second in the last quarter of the run.
    LateRate,
    /// The median latency.
    P50,
    /// The 99th percentile of the latency.
    P99,
    /// Statements a second that the server counted.
    Statements,
    /// CPU time of a process while it had nothing to do.
    Cpu,
    /// CPU time of the server while nothing had to be done.
    ServerCpu,
    /// CPU time of the processes for each message.
    CpuOfEach,
    /// The most memory a process had resident.
    Resident,
    /// That memory at half of the messages.
    ResidentHalfway,
    /// Rows that the server read in the order of an index, per message.
    Walked,
    /// Messages that ran a second time.
    SecondRuns,
}

impl Name {
    /// Returns the unit.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Self::Rate | Self::LateRate | Self::Statements => Unit::PerSecond,
            Self::P50 | Self::P99 => Unit::Millis,
            Self::Cpu | Self::ServerCpu => Unit::Percent,
            Self::CpuOfEach => Unit::Micros,
            Self::Resident | Self::ResidentHalfway => Unit::Mebibytes,
            Self::Walked => Unit::PerMessage,
            Self::SecondRuns => Unit::Messages,
        }
    }

    /// Returns its name for a column.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Rate => "messages/s",
            Self::LateRate => "messages/s, last quarter",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Statements => "statements/s",
            Self::Cpu => "CPU",
            Self::ServerCpu => "server CPU",
            Self::CpuOfEach => "CPU/message",
            Self::Resident => "resident",
            Self::ResidentHalfway => "resident halfway",
            Self::Walked => "rows walked/message",
            Self::SecondRuns => "second runs",
        }
    }
}

/// One round of one load.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sample {
    /// Its figures.
    pub(crate) figures: Vec<Figure>,
    /// The curve for a plot: seconds and messages settled, or milliseconds and the share of
    /// messages picked up by then.
    pub(crate) curve: Vec<(f64, f64)>,
    /// What was measured, where only the program of another queue can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl Sample {
    /// Creates a sample without a curve.
    pub(crate) fn of(figures: impl Into<Vec<Figure>>) -> Self {
        Self { figures: figures.into(), ..Self::default() }
    }

    /// Returns the value of a figure.
    pub(crate) fn value(&self, name: Name) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// Returns a rate.
pub(crate) fn rate(messages: u64, time: Duration) -> Figure {
    let seconds = time.as_secs_f64().max(1e-9);
    Figure { name: Name::Rate, value: count(messages) / seconds }
}

/// Returns a count as a number to calculate with: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
pub(crate) fn count(n: u64) -> f64 {
    n as f64
}

/// Returns a duration in milliseconds.
pub(crate) fn millis(name: Name, time: Duration) -> Figure {
    Figure { name, value: time.as_secs_f64() * 1e3 }
}

/// Returns a quantile of times in nanoseconds.
pub(crate) fn quantile(name: Name, times: &Histogram<u64>) -> Figure {
    let at = if name == Name::P50 { 0.5 } else { 0.99 };
    millis(name, Duration::from_nanos(times.value_at_quantile(at)))
}

/// The spread of several rounds of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Spread {
    /// Computes the spread of the rounds' values; `None` without any.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = match middle.checked_sub(1).and_then(|lower| values.get(lower)) {
            Some(lower) if values.len().is_multiple_of(2) => f64::midpoint(*lower, upper),
            _ => upper,
        };
        Some(Self { median, min, max })
    }
}

/// A value with its unit, as people read it: with three significant digits.
pub(crate) struct Shown(pub(crate) f64, pub(crate) Unit);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        match unit {
            Unit::PerSecond if value >= 9_950.0 => write!(f, "{:.0} k", value / 1e3),
            Unit::PerSecond if value >= 995.0 => write!(f, "{:.1} k", value / 1e3),
            Unit::PerSecond if value >= 100.0 => write!(f, "{value:.0}"),
            Unit::PerSecond => write!(f, "{value:.1}"),
            Unit::Millis if value >= 10.0 => write!(f, "{value:.0} ms"),
            Unit::Millis => write!(f, "{value:.1} ms"),
            Unit::Micros => write!(f, "{value:.2} µs"),
            Unit::Mebibytes => write!(f, "{value:.0} MiB"),
            Unit::Percent => write!(f, "{value:.1} %"),
            Unit::Messages => write!(f, "{value:.0}"),
            Unit::PerMessage if value >= 100.0 => write!(f, "{value:.0}"),
            Unit::PerMessage => write!(f, "{value:.1}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_ones() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(of(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
    }

    #[test]
    fn figures_are_shown_with_the_digits_that_count() {
        assert_eq!(Shown(65_432.0, Unit::PerSecond).to_string(), "65 k");
        assert_eq!(Shown(2_345.0, Unit::PerSecond).to_string(), "2.3 k");
        assert_eq!(Shown(12.34, Unit::PerSecond).to_string(), "12.3");
        assert_eq!(Shown(2.34, Unit::Millis).to_string(), "2.3 ms");
        assert_eq!(Shown(1.04, Unit::PerMessage).to_string(), "1.0");
        assert_eq!(Shown(123.4, Unit::PerMessage).to_string(), "123");
    }
}
