//! Judges whether a series is flat.
//!
//! A line is fitted by least squares through the medians of the minutes after the warm-up. The
//! median of a minute covers one restart of every process, so the saw-tooth of the restarts and
//! single outliers leave no trace in it. The standard error of the slope, `s / sqrt(Sxx)` with
//! `s² = SSR / (n - 2)`, is that of any textbook (NIST/SEMATECH e-Handbook of Statistical Methods,
//! 4.4.3 and 7.2). Growth over the window, slope times length, fails if it is more than
//!
//! * three standard errors: of a thousand flat series with even noise, one or two exceed that, and
//! * the floor of its kind: what allocators, caches and pools move without leaking.
//!
//! Only growth fails: what shrinks does not leak. The residuals of memory are not independent, so
//! the standard error alone would be too strict there. The floors are for that.

use std::time::Duration;

use super::series::{Kind, Series};

/// What is skipped at the beginning: the sixth part, and at least two minutes. Caches fill, and
/// what is kept for a time reaches its level.
pub(super) fn warm_up(run: Duration) -> Duration {
    (run / 6).max(Duration::from_secs(120))
}

/// A shorter run is not judged: fewer than eight minutes after the warm-up say nothing about a
/// slope.
pub(super) const SHORTEST: Duration = Duration::from_secs(600);

/// The length of the stretches whose medians are fitted: each process restarts once in it.
const STRETCH: f64 = 60.0;

/// Growth within this many standard errors is noise.
const ERRORS: f64 = 3.0;

/// The most transactions that InnoDB may have left to purge, at any moment after the warm-up. The
/// load commits some hundred a second, so this is a purge that is a minute behind.
pub(super) const HISTORY_BOUND: f64 = 20_000.0;

/// The series of this name is the server's.
pub(super) const SERVER: &str = "server";

/// What the server says that it has allocated.
pub(super) const ALLOCATED: &str = "server (its own account)";

/// The growth over the whole window that is never called a leak, for a series of this level.
fn floor(series: &Series, level: f64) -> f64 {
    match series.key.kind {
        // Its caches: threads, tables, prepared statements. 2 % of it.
        Kind::Memory if [SERVER, ALLOCATED].contains(&&*series.key.of) => level * 0.02,
        // An arena of the allocator more, and what it does not give back: MiB.
        Kind::Memory => 4.0,
        // A server keeps the threads and files of the most sessions that it ever had at once, and
        // the longer it runs the more that is.
        Kind::Descriptors | Kind::Threads if series.key.of == SERVER => level * 0.1,
        // A pool that opens a connection when it is needed.
        Kind::Descriptors | Kind::Threads | Kind::Sessions => 4.0,
        // Two seconds of the load.
        Kind::Rows => 100.0,
        Kind::History => HISTORY_BOUND,
    }
}

/// What a series is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does not grow beyond noise.
    Flat,
    /// It grows.
    Grows,
    /// It never exceeds its bound.
    Bounded,
    /// It exceeds its bound.
    BeyondBound,
    /// The run was too short to tell.
    NotJudged,
}

impl Verdict {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Grows => "GROWS",
            Self::Bounded => "bounded",
            Self::BeyondBound => "BEYOND ITS BOUND",
            Self::NotJudged => "not judged",
        }
    }

    pub(super) fn is_failure(self) -> bool {
        matches!(self, Self::Grows | Self::BeyondBound)
    }
}

/// What became of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Judgement {
    /// The medians of the first and the last minute; of the first and last sample if nothing is
    /// judged.
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) most: f64,
    pub(super) per_hour: f64,
    /// The growth over the window that still is noise, or the bound.
    pub(super) allowed: f64,
    pub(super) verdict: Verdict,
}

/// Judges a series of a run of this length.
pub(super) fn judge(series: &Series, run: Duration) -> Judgement {
    if run < SHORTEST {
        return unjudged(series);
    }
    let skipped = warm_up(run).as_secs_f64();
    let window: Vec<_> = series.points.iter().copied().filter(|(at, _)| *at >= skipped).collect();
    let minutes = medians(&window, skipped);
    let value_of = |minute: Option<&(f64, f64)>| minute.map_or(0.0, |(_, value)| *value);
    let (start, end) = (value_of(minutes.first()), value_of(minutes.last()));
    let line = Line::through(&minutes);
    let length = STRETCH * count(minutes.len());
    let growth = line.slope * length;
    let most = most(&window);
    let (allowed, verdict) = if series.key.kind == Kind::History {
        let bounded = most <= HISTORY_BOUND;
        (HISTORY_BOUND, if bounded { Verdict::Bounded } else { Verdict::BeyondBound })
    } else {
        let allowed = (ERRORS * line.error * length).max(floor(series, start));
        (allowed, if growth <= allowed { Verdict::Flat } else { Verdict::Grows })
    };
    Judgement { start, end, most, per_hour: line.slope * 3600.0, allowed, verdict }
}

/// Only shows the first and the last sample.
fn unjudged(series: &Series) -> Judgement {
    let value_of = |point: Option<&(f64, f64)>| point.map_or(0.0, |(_, value)| *value);
    Judgement {
        start: value_of(series.points.first()),
        end: value_of(series.points.last()),
        most: most(&series.points),
        per_hour: 0.0,
        allowed: 0.0,
        verdict: Verdict::NotJudged,
    }
}

fn most(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, value)| *value).fold(0.0, f64::max)
}

/// Returns the middle and the median of each stretch that has samples.
fn medians(window: &[(f64, f64)], from: f64) -> Vec<(f64, f64)> {
    let mut medians = Vec::new();
    let mut rest = window;
    let mut end = from + STRETCH;
    while !rest.is_empty() {
        let (stretch, later) = rest.split_at(rest.partition_point(|(at, _)| *at < end));
        let mut values: Vec<f64> = stretch.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        if let Some(&upper) = values.get(values.len() / 2) {
            let lower = values[(values.len() - 1) / 2];
            medians.push((end - STRETCH / 2.0, f64::midpoint(lower, upper)));
        }
        (rest, end) = (later, end + STRETCH);
    }
    medians
}

/// A line through points.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// By how much it rises in a second.
    slope: f64,
    /// The standard error of that.
    error: f64,
}

impl Line {
    /// Fits by least squares. Fewer than three points have no line.
    fn through(points: &[(f64, f64)]) -> Self {
        if points.len() < 3 {
            return Self::default();
        }
        let n = count(points.len());
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
        let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(x, y)| of(x, y)).sum::<f64>();
        let sxx = sum(&|x, _| (x - mean_x).powi(2));
        let slope = sum(&|x, y| (x - mean_x) * (y - mean_y)) / sxx;
        let residuals = sum(&|x, y| (y - mean_y - slope * (x - mean_x)).powi(2));
        Self { slope, error: (residuals / (n - 2.0) / sxx).sqrt() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "some hundred points")]
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::super::series::Key;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A series of an hour, with a sample each five seconds: `value` of the second, and noise.
    fn an_hour(kind: Kind, of: &str, noise: f64, value: impl Fn(f64) -> f64) -> Series {
        let mut rng = SmallRng::seed_from_u64(7);
        let points = (0..720).map(|i| f64::from(i) * 5.0);
        let points = points.map(|at| (at, value(at) + rng.random_range(-noise..=noise)));
        Series { key: Key::new(kind, of), points: points.collect() }
    }

    fn verdict(kind: Kind, noise: f64, value: impl Fn(f64) -> f64) -> Verdict {
        judge(&an_hour(kind, "a", noise, value), HOUR).verdict
    }

    #[test]
    fn a_flat_series_with_noise_is_flat() {
        assert_eq!(verdict(Kind::Memory, 20.0, |_| 30.0), Verdict::Flat);
        assert_eq!(verdict(Kind::Rows, 3_000.0, |_| 9_000.0), Verdict::Flat);
        assert_eq!(verdict(Kind::Sessions, 0.0, |_| 40.0), Verdict::Flat);
    }

    #[test]
    fn a_leak_of_a_hundredth_a_minute_grows() {
        let leak = |level: f64| move |at: f64| level * (1.0 + at / 6_000.0);
        assert_eq!(verdict(Kind::Memory, 1.0, leak(30.0)), Verdict::Grows);
        assert_eq!(verdict(Kind::Descriptors, 2.0, leak(40.0)), Verdict::Grows);
        assert_eq!(verdict(Kind::Rows, 100.0, leak(1_000.0)), Verdict::Grows);
        let server = an_hour(Kind::Memory, SERVER, 5.0, leak(400.0));
        assert_eq!(judge(&server, HOUR).verdict, Verdict::Grows);
    }

    #[test]
    fn a_slow_leak_under_noise_that_is_larger_grows() {
        let leak = |at: f64| 30.0 + at / 600.0;
        let series = an_hour(Kind::Memory, "a", 10.0, leak);
        let judgement = judge(&series, HOUR);
        assert_eq!(judgement.verdict, Verdict::Grows, "{judgement:?}");
        assert!((judgement.per_hour - 6.0).abs() < 2.0, "{judgement:?}");
    }

    #[test]
    fn a_step_while_it_warms_up_is_no_growth() {
        let step = |at: f64| if at < 550.0 { 10.0 } else { 90.0 };
        assert_eq!(verdict(Kind::Memory, 1.0, step), Verdict::Flat);
    }

    #[test]
    fn what_shrinks_is_flat() {
        assert_eq!(verdict(Kind::Memory, 1.0, |at| 90.0 - at / 60.0), Verdict::Flat);
    }

    #[test]
    fn a_growth_below_the_floor_is_flat() {
        assert_eq!(verdict(Kind::Memory, 0.0, |at| 30.0 + at / 1_000.0), Verdict::Flat);
        assert_eq!(verdict(Kind::Rows, 0.0, |at| at / 60.0), Verdict::Flat);
    }

    #[test]
    fn a_history_is_judged_by_its_most_and_not_by_its_slope() {
        assert_eq!(verdict(Kind::History, 100.0, |at| 500.0 + at), Verdict::Bounded);
        let peak =
            |at: f64| if (1_999.0..2_001.0).contains(&at) { 2.0 * HISTORY_BOUND } else { 500.0 };
        assert_eq!(verdict(Kind::History, 100.0, peak), Verdict::BeyondBound);
        let early = |at: f64| if at < 500.0 { 2.0 * HISTORY_BOUND } else { 500.0 };
        assert_eq!(verdict(Kind::History, 100.0, early), Verdict::Bounded);
    }

    #[test]
    fn a_short_run_is_not_judged() {
        let series = an_hour(Kind::Memory, "a", 0.0, |at| at);
        assert_eq!(judge(&series, SHORTEST / 2).verdict, Verdict::NotJudged);
        assert_eq!(judge(&series, SHORTEST).verdict, Verdict::Grows);
    }
}
