//! The gauges of the duties: what each duty has seen in the database.

use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::doctor::ServerState;
use rowmq_core::model::{Backlog, MemberName};
use rowmq_core::store::inspect::Depth;
use rowmq_core::store::server::TableSize;
use rowmq_core::store::stream::member::MemberProgress;
use rowmq_core::store::stream::progress::GroupProgress;
use rowmq_core::telemetry::{
    self, BACKLOG_BYTES, BACKLOG_DEPTH, BACKLOG_FULL, DEPTH, GROUP_POSITION, LAG, LAG_SECONDS,
    LIST_PROVED, OLDEST_SECONDS, RETENTION_USED, SERVER_CONNECTIONS, SERVER_CONNECTIONS_LIMIT,
    SERVER_DURABLE, SERVER_HISTORY, SERVER_INFO, SERVER_SEMI_SYNC, STREAM_APPENDED,
    STREAM_MESSAGES, STREAM_OLDEST, TABLE_BYTES, TOPIC_BYTES, WORKERS_ALIVE,
};
use rowmq_core::topic::Weight;

/// The gauges that one duty sets.
#[derive(Debug, Default)]
pub(crate) struct Gauges(telemetry::Gauges);

impl Gauges {
    /// Ends a look at everything, and clears what was not set during it.
    pub(crate) fn look_ended(&mut self) {
        self.0.look_ended();
    }

    /// Clears all gauges, because another process measures now.
    pub(crate) fn forget(&mut self) {
        self.0.forget();
    }

    /// Sets what the last sweep saw.
    pub(crate) fn swept(&mut self, workers_alive: usize, list_proved: bool) {
        self.0.set(WORKERS_ALIVE, &[], workers_alive as f64);
        self.0.set(LIST_PROVED, &[], yes(list_proved));
    }

    /// Sets what was measured of a topic that has a limit.
    pub(crate) fn backlog(&mut self, topic: &str, backlog: Backlog) {
        self.0.set(BACKLOG_DEPTH, &[("topic", topic)], backlog.depth as f64);
        if let Some(bytes) = backlog.bytes {
            self.0.set(BACKLOG_BYTES, &[("topic", topic)], bytes as f64);
        }
        self.0.set(BACKLOG_FULL, &[("topic", topic)], yes(backlog.full));
    }

    /// Sets a topic's depth.
    pub(crate) fn depth(&mut self, topic: &str, depth: &Depth) {
        let states = [
            ("unsettled", depth.unsettled),
            ("claimed", depth.claimed),
            ("scheduled", depth.scheduled),
            ("dead", depth.dead),
        ];
        for (state, n) in states {
            self.0.set(DEPTH, &[("topic", topic), ("state", state)], n as f64);
        }
        let age = Duration::from_millis(depth.oldest_age_ms.unwrap_or(0));
        self.0.set(OLDEST_SECONDS, &[("topic", topic)], age.as_secs_f64());
    }

    /// Sets how far a group is, and how long its stream keeps the messages that the group has not
    /// finished.
    pub(crate) fn lag(
        &mut self,
        group: &str,
        progress: &[GroupProgress],
        kept_for: Option<Duration>,
    ) {
        let messages: u64 = progress.iter().map(|one| one.lag).sum();
        let oldest = progress.iter().filter_map(GroupProgress::age).max().unwrap_or_default();
        let position: u64 = progress.iter().map(|one| one.mark.0).sum();
        self.set_lag(group, messages, oldest, kept_for);
        self.0.set(GROUP_POSITION, &[("topic", group)], position as f64);
    }

    /// Sets how far the named members of a broadcast group are: the slowest of them, by messages
    /// and by time. The names are not labels: there may be many.
    pub(crate) fn lag_of_members(
        &mut self,
        group: &str,
        progress: &[MemberProgress],
        kept_for: Option<Duration>,
    ) {
        let mut messages: HashMap<&MemberName, (u64, u64)> = HashMap::new();
        for progress in progress {
            let member = messages.entry(&progress.member).or_default();
            *member = (member.0 + progress.lag, member.1 + progress.next.0);
        }
        let most = messages.values().map(|(lag, _)| *lag).max().unwrap_or_default();
        let oldest = progress.iter().filter_map(MemberProgress::age).max().unwrap_or_default();
        self.set_lag(group, most, oldest, kept_for);
        // The member that is furthest behind.
        if let Some(position) = messages.values().map(|(_, next)| *next).min() {
            self.0.set(GROUP_POSITION, &[("topic", group)], position as f64);
        }
    }

    fn set_lag(
        &mut self,
        group: &str,
        messages: u64,
        oldest: Duration,
        kept_for: Option<Duration>,
    ) {
        self.0.set(LAG, &[("topic", group)], messages as f64);
        self.0.set(LAG_SECONDS, &[("topic", group)], oldest.as_secs_f64());
        if let Some(kept_for) = kept_for {
            let used = oldest.as_secs_f64() / kept_for.as_secs_f64();
            self.0.set(RETENTION_USED, &[("topic", group)], used);
        }
    }

    /// Sets what a topic's messages weigh.
    pub(crate) fn weight(&mut self, topic: &str, weight: &Weight) {
        self.0.set(TOPIC_BYTES, &[("topic", topic)], weight.bytes as f64);
        let Some(log) = &weight.log else { return };
        let oldest = Duration::from_millis(log.oldest_age_ms.unwrap_or(0));
        self.0.set(STREAM_MESSAGES, &[("topic", topic)], log.messages as f64);
        self.0.set(STREAM_OLDEST, &[("topic", topic)], oldest.as_secs_f64());
        telemetry::Gauges::set_total(STREAM_APPENDED, topic, log.appended);
    }

    /// Sets what the server reports about itself; what this account may not read is absent.
    pub(crate) fn server(&mut self, state: &ServerState) {
        self.0.set(SERVER_INFO, &[("product", state.product), ("version", &state.version)], 1.0);
        self.0.set(SERVER_DURABLE, &[], yes(state.durable));
        let maybe = [
            (SERVER_SEMI_SYNC, state.semi_sync.map(yes)),
            (SERVER_HISTORY, state.history.map(|length| length as f64)),
            (SERVER_CONNECTIONS, state.connections.map(|open| open as f64)),
            (SERVER_CONNECTIONS_LIMIT, state.connections_limit.map(|limit| limit as f64)),
        ];
        for (name, value) in maybe {
            if let Some(value) = value {
                self.0.set(name, &[], value);
            }
        }
    }

    /// Sets how large the tables are.
    pub(crate) fn tables(&mut self, tables: &[TableSize]) {
        for table in tables {
            self.0.set(TABLE_BYTES, &[("table", table.name)], table.bytes as f64);
        }
    }
}

fn yes(is: bool) -> f64 {
    f64::from(u8::from(is))
}
