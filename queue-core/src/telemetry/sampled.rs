//! Gauges that show only the latest measurement.

use std::collections::HashMap;
use std::fmt;

use metrics::{Gauge, Label, counter, gauge};

/// The gauges that one duty sets. A gauge keeps its last value for as long as the process lives. So
/// a gauge that the latest measurement did not set is set to "not a number", and [`is_known`] makes
/// the endpoint leave it out. This happens to the gauges of a deleted topic, and to all gauges when
/// another process sweeps.
#[derive(Default)]
pub struct Gauges {
    known: HashMap<Series, Shown>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    name: &'static str,
    labels: Vec<(&'static str, String)>,
}

struct Shown {
    gauge: Gauge,
    is_fresh: bool,
}

/// Whether a line of the text that Prometheus scrapes holds a value.
#[must_use]
pub fn is_known(line: &str) -> bool {
    !line.ends_with(" NaN")
}

impl Gauges {
    /// Sets a gauge.
    pub fn set(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let labels: Vec<_> = labels.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        let shown = self.known.entry(Series { name, labels }).or_insert_with_key(|series| {
            let labels = series.labels.iter().map(|(key, text)| Label::new(*key, text.clone()));
            Shown { gauge: gauge!(name, labels.collect::<Vec<_>>()), is_fresh: true }
        });
        shown.gauge.set(value);
        shown.is_fresh = true;
    }

    /// Ends a measurement of everything: gauges that it has not set have no value any more.
    pub fn look_ended(&mut self) {
        self.known.retain(|_, shown| {
            if !shown.is_fresh {
                shown.gauge.set(f64::NAN);
            }
            std::mem::take(&mut shown.is_fresh)
        });
    }

    /// Forgets all values, because another process measures now.
    pub fn forget(&mut self) {
        for (_, shown) in self.known.drain() {
            shown.gauge.set(f64::NAN);
        }
    }

    /// Sets a counter to a total that was counted elsewhere.
    pub fn set_total(name: &'static str, topic: &str, total: u64) {
        counter!(name, "topic" => topic.to_owned()).absolute(total);
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.forget();
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gauges").field("known", &self.known.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BACKLOG_DEPTH, BACKLOG_FULL};

    #[test]
    fn what_a_look_did_not_see_is_known_no_longer() {
        let mut gauges = Gauges::default();
        let see = |gauges: &mut Gauges, topic| {
            gauges.set(BACKLOG_DEPTH, &[("topic", topic)], 1.0);
            gauges.set(BACKLOG_FULL, &[("topic", topic)], 1.0);
        };
        see(&mut gauges, "gone");
        see(&mut gauges, "there");
        gauges.look_ended();
        assert_eq!(gauges.known.len(), 4);
        see(&mut gauges, "there");
        gauges.look_ended();
        let left: Vec<_> = gauges.known.keys().map(|series| series.labels[0].1.as_str()).collect();
        assert_eq!(left, ["there", "there"]);
        gauges.forget();
        assert!(gauges.known.is_empty());
    }

    #[test]
    fn a_line_without_a_number_says_nothing() {
        assert!(!is_known("queue_depth{topic=\"a\",state=\"dead\"} NaN"));
        assert!(is_known("queue_depth{topic=\"NaN\",state=\"dead\"} 0"));
        assert!(is_known("# TYPE queue_depth gauge"));
    }
}
