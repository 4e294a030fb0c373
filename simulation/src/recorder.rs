//! What really happened, as the participants report it. The recorder never reads the queue's
//! tables.

mod cancels;
mod checkpoints;
mod holding;
mod judge;
mod totals;

use std::collections::{BTreeMap, BTreeSet};

use rowmq_core::Delivery;
use rowmq_core::model::{ClaimNo, MsgId, Settlement, TopicId, WorkerId};
use rowmq_core::worker::SettleOutcome;
use tokio::time::Instant;

pub(crate) use self::cancels::Answer;
pub use self::cancels::Cancelled;
use self::cancels::Wish;
use self::checkpoints::Save;
pub(crate) use self::checkpoints::Saved;
pub(crate) use self::judge::{EndState, Share};
pub(crate) use self::totals::Totals;
use crate::rules::Rule;
use crate::settings::{Settings, Weather};

/// What the sender knows about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Its sender waits or has died, or the outcome is in doubt.
    Unknown,
    Stored,
    NotStored,
}

#[derive(Debug)]
struct Run {
    consumer: String,
    /// The worker that had claimed it when it began; none if its claim had been taken back by then.
    worker: Option<WorkerId>,
    no: u32,
    claim: ClaimNo,
    asked: Option<Settlement>,
    outcome: Option<SettleOutcome>,
    over: bool,
    /// Acked together with an effect.
    in_transaction: bool,
    /// At some moment its worker may have held nothing else.
    alone: bool,
    /// It must be the only message that its worker handles.
    suspect: bool,
    /// It has saved a checkpoint, or tried to.
    has_checkpoint: bool,
    /// Its handler got the answer that there is no checkpoint, though one was stored.
    missed_checkpoint: bool,
}

impl Run {
    fn is_final(&self) -> bool {
        self.asked.is_some() && !self.is_given_back()
    }

    /// Returns whether the message was given back on purpose.
    fn is_given_back(&self) -> bool {
        use Settlement::{Release, Retry, RetryAt, Snooze};
        matches!(self.asked, Some(Retry { .. } | RetryAt { .. } | Snooze { .. } | Release))
    }
}

#[derive(Debug)]
struct Story {
    /// The numbers, among all events, of its sending and of the report that it is stored.
    sending: u64,
    stored: u64,
    /// Its group was reset to before it: its deliveries are counted from the start again.
    rewound: bool,
    sent: Sent,
    /// No fault may cause a second run of it.
    strict: bool,
    runs: Vec<Run>,
    /// Deliveries that were charged with a crash although no handler had started.
    charged_unrun: usize,
    /// The wishes to cancel it.
    wishes: Vec<Wish>,
    /// The checkpoints of its handlers.
    saves: Vec<Save>,
    events: Vec<String>,
}

/// The stories of all messages, and the violations in them.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Instant,
    stories: BTreeMap<Share, Story>,
    /// The readers that get each message.
    pub(crate) readers: Vec<TopicId>,
    /// Groups that are being reset.
    rewinding: BTreeSet<TopicId>,
    /// Counts events.
    events: u64,
    wrong: Option<(Share, String)>,
    rule: Option<Rule>,
    /// Runs may outlast their claim, so that a consumer runs more than it holds.
    overdue: bool,
    /// The messages are those of a stream.
    in_stream: bool,
    /// When each process was last woken from a freeze.
    woken: BTreeMap<String, Instant>,
    /// All runs.
    pub(crate) deliveries: usize,
    pub(crate) fenced: usize,
    pub(crate) repeated: usize,
    /// Acks committed together with an effect.
    pub(crate) effects: usize,
    /// Messages whose cancellation was confirmed.
    pub(crate) cancelled: Cancelled,
    /// Runs that went on from the checkpoint of an earlier run.
    pub(crate) resumed: usize,
    /// What each worker has counted.
    totals: Totals,
}

fn share(delivery: &Delivery) -> Share {
    (delivery.topic_id, delivery.msg_id)
}

impl Recorder {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            origin: Instant::now(),
            stories: BTreeMap::new(),
            readers: Vec::new(),
            rewinding: BTreeSet::new(),
            events: 0,
            wrong: None,
            rule: settings.rule,
            overdue: settings.weather == Weather::Wild && settings.max_run_time.is_some(),
            in_stream: settings.stream.is_some(),
            woken: BTreeMap::new(),
            deliveries: 0,
            fenced: 0,
            repeated: 0,
            effects: 0,
            cancelled: Cancelled::default(),
            resumed: 0,
            totals: BTreeMap::new(),
        }
    }

    fn tell(&mut self, id: Share, event: String) -> &mut Story {
        self.events += 1;
        let at = (Instant::now() - self.origin).as_secs_f64();
        let story = self.stories.get_mut(&id).expect("a message that was sent");
        story.events.push(format!("{at:>8.3} {event}"));
        story
    }

    pub(crate) fn violated(&mut self, id: Share, what: String) {
        self.tell(id, format!("VIOLATION: {what}"));
        self.wrong.get_or_insert((id, what));
    }

    pub(crate) fn sending(&mut self, id: MsgId, sender: &str, strict: bool) {
        for reader in self.readers.clone() {
            let story = Story {
                sending: self.events,
                stored: u64::MAX,
                rewound: false,
                sent: Sent::Unknown,
                strict,
                runs: Vec::new(),
                charged_unrun: 0,
                wishes: Vec::new(),
                saves: Vec::new(),
                events: Vec::new(),
            };
            self.stories.insert((reader, id), story);
            self.tell((reader, id), format!("{sender} sends it"));
        }
    }

    pub(crate) fn sent(&mut self, id: MsgId, sent: Sent) {
        for share in self.readers.clone().into_iter().map(|reader| (reader, id)) {
            let at = self.events;
            let story = self.tell(share, format!("its sender is told: {sent:?}"));
            story.sent = sent;
            if sent == Sent::Stored {
                story.stored = at;
            }
            let ran = !story.runs.is_empty();
            if sent == Sent::NotStored && ran {
                let what = "it was handled, but its sender was told it is not stored";
                self.violated(share, what.to_owned());
            }
        }
    }

    /// Returns when a message was about to be sent, and when its sender knew that it is stored,
    /// counted in events.
    pub(crate) fn sending_and_stored(&self, share: Share) -> Option<(u64, u64)> {
        self.stories.get(&share).map(|story| (story.sending, story.stored))
    }

    /// Records that a group is being reset, or is no longer. What it handles in between may come
    /// again: it may have got its offset before the reset was committed.
    pub(crate) fn rewinding(&mut self, group: TopicId, begins: bool) {
        if begins {
            self.rewinding.insert(group);
        } else {
            self.rewinding.remove(&group);
        }
    }

    /// Records that the group will handle the message again.
    pub(crate) fn rewound(&mut self, share: Share) {
        self.tell(share, "its group is put back".to_owned()).rewound = true;
    }

    pub(crate) fn is_rewound(&self, share: Share) -> bool {
        self.stories.get(&share).is_some_and(|story| story.rewound)
    }

    /// Returns whether a handler of the group has ended with it other than by asking for a retry,
    /// or the message may have been cancelled.
    pub(crate) fn is_over(&self, share: Share) -> bool {
        self.stories
            .get(&share)
            .is_some_and(|story| story.runs.iter().any(Run::is_final) || story.may_be_cancelled())
    }

    /// Records that handlers begin with these deliveries, which were claimed together: none of them
    /// was ever the only one that the worker held.
    pub(crate) fn deliver(
        &mut self,
        consumer: &str,
        worker: Option<WorkerId>,
        deliveries: &[Delivery],
    ) {
        for delivery in deliveries {
            self.begin(consumer, worker, delivery);
        }
        worker.into_iter().for_each(|worker| self.look_into_the_hands_of(worker));
    }

    fn begin(&mut self, consumer: &str, worker: Option<WorkerId>, delivery: &Delivery) {
        let (id, no) = (share(delivery), delivery.delivery_no.0);
        self.deliveries += 1;
        let event = format!(
            "{consumer} handles delivery {no} (row {}, claim {})",
            delivery.row, delivery.claim_no
        );
        if self.rewinding.contains(&id.0) {
            self.rewound(id);
        }
        let woken = self.woken.get(consumer) == Some(&Instant::now());
        let story = self.tell(id, event);
        let at = story.runs.partition_point(|run| run.no < no);
        // A process begins what it had claimed before a freeze when it wakes, or later if it has a
        // `Receiver`, and is then fenced.
        let woken = woken || (worker.is_none() && !story.strict);
        let stale = woken && at < story.runs.len() && story.runs[at].no != no;
        let last = story.runs.last();
        let mut wrong = None;
        if story.sent == Sent::NotStored {
            wrong = Some("it was never committed".to_owned());
        } else if stale || story.rewound {
            // Nothing else can be said about it.
        } else if last.is_some_and(|last| last.no >= no) {
            wrong = Some(format!("delivery {no} follows a later one"));
        } else if let Some(ended) = story.is_ended_before(no) {
            wrong = Some(ended);
        } else if let Some(run) = story
            .runs
            .iter()
            .find(|run| run.is_final() && run.outcome == Some(SettleOutcome::Settled))
        {
            wrong = Some(format!("it comes again after delivery {} settled it", run.no));
        } else if story.strict && last.is_some_and(|last| !last.is_given_back()) {
            wrong = Some("it runs a second time without a reason".to_owned());
        }
        let repeated = last.is_some_and(|last| !last.is_given_back());
        story.runs.insert(
            at,
            Run {
                consumer: consumer.to_owned(),
                worker,
                no,
                claim: delivery.claim_no,
                asked: None,
                outcome: None,
                over: false,
                in_transaction: false,
                // What the worker held when its claim was taken back is not known.
                alone: worker.is_none(),
                suspect: delivery.priority.is_suspect(),
                has_checkpoint: false,
                missed_checkpoint: false,
            },
        );
        self.repeated += usize::from(repeated);
        if let Some(wrong) = wrong {
            self.violated(id, wrong);
        }
    }

    /// Records that a frozen process runs again.
    pub(crate) fn woke(&mut self, consumer: &str) {
        self.woken.insert(consumer.to_owned(), Instant::now());
    }

    fn run(&mut self, consumer: &str, delivery: &Delivery) -> &mut Run {
        let story = self.stories.get_mut(&share(delivery)).expect("a message that was sent");
        let (no, claim) = (delivery.delivery_no.0, delivery.claim_no);
        let is_its = |run: &Run| run.no == no && run.claim == claim && run.consumer == consumer;
        // The same delivery comes again only after its group was reset.
        let at = story.runs.iter().rposition(|run| is_its(run) && !run.over);
        let at = at.or_else(|| story.runs.iter().rposition(is_its));
        &mut story.runs[at.expect("a run")]
    }

    pub(crate) fn ask(&mut self, who: &str, delivery: &Delivery, settlement: &Settlement) {
        self.tell(
            share(delivery),
            format!("delivery {} asks for {}", delivery.delivery_no, settlement.verb()),
        );
        self.run(who, delivery).asked = Some(settlement.clone());
    }

    /// Records the worker's answer; without the rule, an unknown outcome counts as fenced.
    pub(crate) fn outcome(&mut self, who: &str, delivery: &Delivery, outcome: SettleOutcome) {
        let believed = match (outcome, self.rule) {
            (SettleOutcome::Unknown, Some(Rule::UnknownIsNotFenced)) => SettleOutcome::Fenced,
            _ => outcome,
        };
        self.told(who, delivery, believed);
    }

    pub(crate) fn told(&mut self, who: &str, delivery: &Delivery, outcome: SettleOutcome) {
        let id = share(delivery);
        self.tell(id, format!("delivery {} is told: {outcome:?}", delivery.delivery_no));
        self.fenced += usize::from(outcome == SettleOutcome::Fenced);
        let run = self.run(who, delivery);
        run.outcome = Some(outcome);
        run.over = true;
        let (worker, no, is_final) = (run.worker, run.no, run.is_final());
        let missed = run.missed_checkpoint;
        worker.into_iter().for_each(|worker| self.find_alone(worker));
        let Story { runs, rewound, .. } = &self.stories[&id];
        if outcome == SettleOutcome::Settled && !rewound {
            let later = runs.iter().any(|run| run.no > no);
            let twice = runs
                .iter()
                .filter(|run| run.is_final() && run.outcome == Some(SettleOutcome::Settled));
            if is_final && later {
                self.violated(id, format!("delivery {no} settled it though it was another's"));
            } else if twice.count() > 1 {
                self.violated(id, "it was settled twice".to_owned());
            } else if missed {
                self.violated(id, format!("delivery {no} was not told of its checkpoint"));
            }
        }
    }

    /// Records that a transactional handler found an effect of the message.
    pub(crate) fn has_effect_already(&mut self, delivery: &Delivery) {
        let what = "it is handled again after its effect was committed".to_owned();
        if !self.stories[&share(delivery)].rewound {
            self.violated(share(delivery), what);
        }
    }

    /// Records that a transaction acked the delivery together with its effect.
    pub(crate) fn committed(&mut self, who: &str, delivery: &Delivery) {
        self.effects += 1;
        self.run(who, delivery).in_transaction = true;
        self.outcome(who, delivery, SettleOutcome::Settled);
    }

    /// Records that the handler stopped without settling.
    pub(crate) fn abandon(&mut self, who: &str, delivery: &Delivery) {
        self.tell(share(delivery), format!("delivery {} is abandoned", delivery.delivery_no));
        self.run(who, delivery).over = true;
    }

    /// Records a violation that belongs to no message.
    pub(crate) fn fail(&mut self, what: String) {
        if self.wrong.is_none() {
            self.wrong = Some(((TopicId(0), MsgId(uuid::Uuid::nil())), what));
        }
    }

    /// Returns the first violation, with the story of its message.
    pub(crate) fn verdict(&self) -> Option<(Share, String, Vec<String>)> {
        let (id, what) = self.wrong.clone()?;
        let events = self.stories.get(&id).map(|story| story.events.clone()).unwrap_or_default();
        Some((id, what, events))
    }
}
