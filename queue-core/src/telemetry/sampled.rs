//! Gauges that tell what a sweeper has seen in the database.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use metrics::{Gauge, Label, counter, gauge};

use super::{
    BACKLOG_BYTES, BACKLOG_DEPTH, BACKLOG_FULL, DEPTH, GROUP_POSITION, LAG, LAG_SECONDS,
    LIST_PROVED, OLDEST_SECONDS, RETENTION_USED, SERVER_CONNECTIONS, SERVER_CONNECTIONS_LIMIT,
    SERVER_DURABLE, SERVER_HISTORY, SERVER_INFO, SERVER_SEMI_SYNC, STREAM_APPENDED,
    STREAM_MESSAGES, STREAM_OLDEST, TABLE_BYTES, TOPIC_BYTES, WORKERS_ALIVE,
};
use crate::doctor::ServerState;
use crate::store::inspect::Depth;
use crate::store::server::TableSize;
use crate::store::stream::member::MemberStanding;
use crate::store::stream::standing::Standing;
use crate::stream::MemberName;
use crate::topic::{Backlog, Weight};

/// The gauges that one duty sets. A gauge keeps its last value for as long as the process lives, so
/// what was not seen again (a topic that was deleted; all of it, once another process sweeps) is
/// set to "not a number", which [`is_known`] tells the endpoint to leave out.
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

/// Whether a line of the text that Prometheus scrapes says something.
#[must_use]
pub fn is_known(line: &str) -> bool {
    !line.ends_with(" NaN")
}

impl Gauges {
    fn set(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let labels: Vec<_> = labels.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        let shown = self.known.entry(Series { name, labels }).or_insert_with_key(|series| {
            let labels = series.labels.iter().map(|(key, text)| Label::new(*key, text.clone()));
            Shown { gauge: gauge!(name, labels.collect::<Vec<_>>()), is_fresh: true }
        });
        shown.gauge.set(value);
        shown.is_fresh = true;
    }

    /// Ends a look at everything: what it has not set is there no longer.
    pub fn look_ended(&mut self) {
        self.known.retain(|_, shown| {
            if !shown.is_fresh {
                shown.gauge.set(f64::NAN);
            }
            std::mem::take(&mut shown.is_fresh)
        });
    }

    /// Nothing is known any more: somebody else looks now.
    pub fn forget(&mut self) {
        for (_, shown) in self.known.drain() {
            shown.gauge.set(f64::NAN);
        }
    }

    /// What the last sweep saw.
    pub fn swept(&mut self, workers_alive: usize, list_proved: bool) {
        self.set(WORKERS_ALIVE, &[], workers_alive as f64);
        self.set(LIST_PROVED, &[], yes(list_proved));
    }

    /// What was measured of a topic that has a limit.
    pub fn backlog(&mut self, topic: &str, backlog: Backlog) {
        self.set(BACKLOG_DEPTH, &[("topic", topic)], backlog.depth as f64);
        if let Some(bytes) = backlog.bytes {
            self.set(BACKLOG_BYTES, &[("topic", topic)], bytes as f64);
        }
        self.set(BACKLOG_FULL, &[("topic", topic)], yes(backlog.full));
    }

    /// A topic's depth.
    pub fn depth(&mut self, topic: &str, depth: &Depth) {
        let states = [
            ("unsettled", depth.unsettled),
            ("claimed", depth.claimed),
            ("scheduled", depth.scheduled),
            ("dead", depth.dead),
        ];
        for (state, n) in states {
            self.set(DEPTH, &[("topic", topic), ("state", state)], n as f64);
        }
        let age = Duration::from_millis(depth.oldest_age_ms.unwrap_or(0));
        self.set(OLDEST_SECONDS, &[("topic", topic)], age.as_secs_f64());
    }

    /// How far a group has come, and how long its stream keeps what it is not through with.
    pub fn lag(&mut self, group: &str, standings: &[Standing], kept_for: Option<Duration>) {
        let messages: u64 = standings.iter().map(|standing| standing.lag).sum();
        let oldest = standings.iter().filter_map(Standing::age).max().unwrap_or_default();
        let position: u64 = standings.iter().map(|standing| standing.mark.0).sum();
        self.set_lag(group, messages, oldest, kept_for);
        self.set(GROUP_POSITION, &[("topic", group)], position as f64);
    }

    /// How far the named members of a broadcast group have come: the slowest of them, by messages
    /// and by time. Names are no labels: there may be many.
    pub fn lag_of_members(
        &mut self,
        group: &str,
        standings: &[MemberStanding],
        kept_for: Option<Duration>,
    ) {
        let mut messages: HashMap<&MemberName, (u64, u64)> = HashMap::new();
        for standing in standings {
            let member = messages.entry(&standing.member).or_default();
            *member = (member.0 + standing.lag, member.1 + standing.next.0);
        }
        let most = messages.values().map(|(lag, _)| *lag).max().unwrap_or_default();
        let oldest = standings.iter().filter_map(MemberStanding::age).max().unwrap_or_default();
        self.set_lag(group, most, oldest, kept_for);
        // The one that is furthest behind.
        if let Some(position) = messages.values().map(|(_, next)| *next).min() {
            self.set(GROUP_POSITION, &[("topic", group)], position as f64);
        }
    }

    fn set_lag(
        &mut self,
        group: &str,
        messages: u64,
        oldest: Duration,
        kept_for: Option<Duration>,
    ) {
        self.set(LAG, &[("topic", group)], messages as f64);
        self.set(LAG_SECONDS, &[("topic", group)], oldest.as_secs_f64());
        if let Some(kept_for) = kept_for {
            let used = oldest.as_secs_f64() / kept_for.as_secs_f64();
            self.set(RETENTION_USED, &[("topic", group)], used);
        }
    }

    /// What a topic's messages weigh.
    pub fn weight(&mut self, topic: &str, weight: &Weight) {
        self.set(TOPIC_BYTES, &[("topic", topic)], weight.bytes as f64);
        let Some(log) = &weight.log else { return };
        let oldest = Duration::from_millis(log.oldest_age_ms.unwrap_or(0));
        self.set(STREAM_MESSAGES, &[("topic", topic)], log.messages as f64);
        self.set(STREAM_OLDEST, &[("topic", topic)], oldest.as_secs_f64());
        counter!(STREAM_APPENDED, "topic" => topic.to_owned()).absolute(log.appended);
    }

    /// What the server says of itself; what it does not tell this account is absent.
    pub fn server(&mut self, state: &ServerState) {
        self.set(SERVER_INFO, &[("product", state.product), ("version", &state.version)], 1.0);
        self.set(SERVER_DURABLE, &[], yes(state.durable));
        let maybe = [
            (SERVER_SEMI_SYNC, state.semi_sync.map(yes)),
            (SERVER_HISTORY, state.history.map(|length| length as f64)),
            (SERVER_CONNECTIONS, state.connections.map(|open| open as f64)),
            (SERVER_CONNECTIONS_LIMIT, state.connections_limit.map(|limit| limit as f64)),
        ];
        for (name, value) in maybe {
            if let Some(value) = value {
                self.set(name, &[], value);
            }
        }
    }

    /// How large the tables are.
    pub fn tables(&mut self, tables: &[TableSize]) {
        for table in tables {
            self.set(TABLE_BYTES, &[("table", table.name)], table.bytes as f64);
        }
    }
}

fn yes(is: bool) -> f64 {
    f64::from(u8::from(is))
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

    #[test]
    fn what_a_look_did_not_see_is_known_no_longer() {
        let mut gauges = Gauges::default();
        let full = Backlog { depth: 1, bytes: None, full: true };
        gauges.backlog("gone", full);
        gauges.backlog("there", full);
        gauges.look_ended();
        assert_eq!(gauges.known.len(), 4);
        gauges.backlog("there", full);
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
