//! Receivers that wait while messages are ready. A wake-up may be lost, but then the receiver looks
//! for messages itself.

use std::collections::BTreeMap;
use std::time::Duration;

use rowmq_core::Priority;
use rowmq_core::model::{Limits, MsgId};
use tokio::time::Instant;

use super::{Share, Stage, messages};
use crate::model::{Row, Value};
use crate::server::RingFates;

/// How soon a message is begun that a receiver is rung for. It may have committed after a later
/// one, so that only a look at every topic finds it.
const RUNG_WITHIN: Duration = Duration::from_secs(2);

/// How many safety times may pass before a receiver looks for messages whose wake-ups are lost: a
/// late wake-up may end a wait early for another message, and the next wait may be as long as the
/// safety time.
const WAITS: u32 = 2;

/// How long a claim may take, and the next check may be away.
const CLAIMED_WITHIN: Duration = Duration::from_millis(500);

/// A receiver.
#[derive(Debug)]
struct Watch {
    is_receiving: bool,
    held: u32,
    /// Since when that is so.
    since: Instant,
}

/// Who waits for messages, and which messages wait.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    receivers: BTreeMap<String, Watch>,
    /// When each row that is ready was first seen, by its id and delivery number.
    ready: BTreeMap<(i128, i128), (Share, Instant)>,
}

impl Vigil {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Watch)) {
        let since = Instant::now();
        let new = Watch { is_receiving: false, held: 0, since };
        let watch = self.receivers.entry(name.to_owned()).or_insert(new);
        change(watch);
        watch.since = since;
    }

    /// Records whether a receiver asks for a message.
    pub(crate) fn receives(&mut self, name: &str, is_receiving: bool) {
        self.change(name, |watch| watch.is_receiving = is_receiving);
    }

    /// Records that a receiver has got a message.
    pub(crate) fn takes(&mut self, name: &str) {
        self.change(name, |watch| watch.held += 1);
    }

    /// Records that it has settled one.
    pub(crate) fn settles(&mut self, name: &str) {
        self.change(name, |watch| watch.held = watch.held.saturating_sub(1));
    }

    /// Records that a receiver has ended.
    pub(crate) fn leaves(&mut self, name: &str) {
        self.receivers.remove(name);
    }

    /// Returns a message that has been ready for longer than `most` while a receiver had nothing
    /// else to do.
    fn missed(&self, most: Duration) -> Option<(Share, String)> {
        let idle = |watch: &Watch| watch.is_receiving && watch.held == 0;
        let idle = self.receivers.iter().filter(|(_, watch)| idle(watch));
        let (name, since) = idle.map(|(name, watch)| (name, watch.since)).min_by_key(|it| it.1)?;
        let longest = self.ready.values().min_by_key(|(_, since)| *since)?;
        let both = since.max(longest.1).elapsed();
        let what = format!("it is ready, and {name} has waited for {} ms", both.as_millis());
        (both > most).then_some((longest.0, what))
    }
}

impl Stage {
    /// Checks that no message is ready for long while a receiver waits for its bell, if no fault
    /// but lost and late wake-ups is possible.
    pub(crate) fn check_bells(&self) {
        let Some(bells) = self.settings.bells else { return };
        // A limit may keep a message waiting.
        if self.settings.limits != Limits::default() {
            return;
        }
        let most = if bells.fates == RingFates::default() {
            RUNG_WITHIN
        } else {
            let late_by = Duration::from_millis(bells.fates.late_by.into());
            bells.safety * WAITS + late_by + CLAIMED_WITHIN
        };
        self.see_ready();
        let missed = self.vigil.borrow().missed(most);
        if let Some((share, what)) = missed {
            self.recorder.borrow_mut().violated(share, what);
        }
    }

    /// Records which rows are ready. A suspect waits until its receiver holds nothing.
    fn see_ready(&self) {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table("queue_message")];
        let place = |column| table.definition.place(column).expect("a column");
        let [topic, priority, id] = ["topic_id", "priority", "id"].map(place);
        let [message, worker, no] = ["msg_id", "worker_id", "delivery_no"].map(place);
        let of_topic = self.topic_id.get();
        let ready = messages(table).filter(|row| {
            row[topic].number() == i128::from(of_topic.0)
                && row[worker].number() == 0
                && row[priority].number() <= i128::from(Priority::LAST.level())
        });
        let of = |bytes: &Value| -> Share {
            (of_topic, MsgId::from_bytes(&bytes.text()).expect("an id"))
        };
        let known = |row: &Row| ((row[id].number(), row[no].number()), of(&row[message]));
        let ready: BTreeMap<_, _> = ready.map(known).collect();
        let (mut vigil, now) = (self.vigil.borrow_mut(), Instant::now());
        vigil.ready.retain(|row, _| ready.contains_key(row));
        for (row, share) in ready {
            vigil.ready.entry(row).or_insert((share, now));
        }
    }
}
