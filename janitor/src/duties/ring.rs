//! Ring: wakes idle workers for messages that have come.

mod bells;
mod demand;

use std::time::Duration;

use rowmq_core::Result;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{RowId, TopicId};
use rowmq_core::store::doctor;
use rowmq_core::store::doorbell;
use rowmq_core::store::floor::{self, Floor, Pulse};
use serde::Serialize;
use tokio::time::Instant;

use self::bells::Bells;
use self::demand::Demand;
use crate::duty::{Duty, Sweep};

/// The pause between looks for new messages while workers listen. A message waits for half of this
/// time in the mean.
const LOOK: Duration = Duration::from_micros(2500);

/// The same after no message has come for a while: 2.5 ms would cost the server 5 to 7 % of a core
/// for nothing, whether a client or a loop in a procedure looks (0.12 ms to 0.2 ms a look).
const SILENT_LOOK: Duration = Duration::from_millis(7);

/// How long that while is.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// The pause for a while after messages came and no worker waited: the workers claim by themselves,
/// and the server has better work to do.
const BUSY_LOOK: Duration = Duration::from_millis(10);

/// How long that while is.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// How often it looks for workers while none listens.
const REST: Duration = Duration::from_millis(300);

/// The sweeper waits at least this many times as long as its last look for new rows and its rings
/// took. A look at a quiet server takes 0.3 ms, nearly all of it for the round trip.
const LOOK_SHARE: u32 = 3;

/// The same for looks at every topic, whose cost grows with the number of topics.
const WALK_SHARE: u32 = 50;

/// How often it reads the rules: as often as a worker that does not wait.
const RULES: Duration = Duration::from_millis(200);

/// The longest time between looks at every topic: as long as consumers rely on the sweeper.
const WALK_CAP: Duration = Duration::from_secs(5);

/// What a run of [`Ring`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct RingReport {
    /// Workers that are rung while they are idle.
    pub listeners: usize,
    /// Rings since this sweeper began.
    pub rung: u64,
}

/// Wakes one idle worker for each topic with new messages, more if messages remain, and every
/// listening member of a broadcast group.
///
/// It finds most messages by one look at the newest rows, whatever the number of topics. What that
/// look cannot find (rows that were committed late, or are ready again), looks at every topic find.
#[derive(Debug, Default)]
pub struct Ring {
    bells: Bells,
    demand: Demand,
    /// Since when this session has worked; bells are taken anew in another one.
    session_since: Option<Instant>,
    /// Whether locks reach every worker: Galera's are per node.
    locks_count: bool,
    /// The newest row that a look has seen.
    newest: Option<RowId>,
    rules: Option<Pulse>,
    /// The last publications for broadcast groups.
    floors: Vec<Floor>,
    walk_at: Option<Instant>,
    rules_at: Option<Instant>,
    /// Until when it looks less often.
    busy_until: Option<Instant>,
    /// When a look has last found anything.
    found_at: Option<Instant>,
    look_after: Duration,
    rung: u64,
}

impl Ring {
    /// Begins anew: with another session, or after an error. In the second case the session lets go
    /// of its bells first, so that the consumers poll until it takes them again.
    async fn begin(&mut self, sweep: &mut Sweep<'_>) -> Result<()> {
        let let_go = async |conn: &mut Link| doorbell::drop_all(conn).await;
        if !self.bells.is_empty() {
            sweep.session.call("let go of the bells", let_go).await?;
        }
        let variables =
            sweep.session.call("look around", async |conn| doctor::variables(conn).await);
        let locks_count = !variables.await?.is_on("wsrep_on");
        *self = Self {
            session_since: Some(sweep.steady_since),
            locks_count,
            rung: self.rung,
            ..Self::default()
        };
        Ok(())
    }

    /// Looks at the newest rows and at the ends of the streams.
    async fn look(&mut self, session: &mut Session, now: Instant) -> Result<()> {
        let newest = self.newest.unwrap_or(RowId(0));
        let look = async |conn: &mut Link| doorbell::arrivals(conn, newest).await;
        let arrivals = session.call("look for new messages", look).await?;
        let mut found = !arrivals.rows.is_empty();
        for (topic, row) in arrivals.rows {
            self.newest = self.newest.max(Some(row));
            self.demand.arrived(topic, now);
        }
        for (stream, ever) in arrivals.streams {
            found |= self.demand.grown(stream, ever, now);
        }
        if found || self.found_at.is_none() {
            self.found_at = Some(now);
        }
        Ok(())
    }

    /// The shortest pause before the next look.
    fn pause(&self, now: Instant) -> Duration {
        if self.busy_until.is_some_and(|until| now < until) {
            BUSY_LOOK
        } else if self.found_at.is_some_and(|at| now >= at + SILENT_AFTER) {
            SILENT_LOOK
        } else {
            LOOK
        }
    }

    /// Looks at the workers, and at every topic that one of them listens to.
    async fn walk(&mut self, session: &mut Session, now: Instant) -> Result<()> {
        if self.bells.refresh(session, now).await? {
            let kinds = async |conn: &mut Link| doorbell::kinds(conn).await;
            self.demand.know(session.call("read the kinds of topics", kinds).await?);
        }
        if self.bells.is_empty() {
            return Ok(());
        }
        let topics: Vec<TopicId> = self.bells.topics().collect();
        let look = async |conn: &mut Link| doorbell::ready(conn, &topics).await;
        let ready = session.call("look for topics with messages", look).await?;
        self.demand.walked(&topics, &ready, now);
        Ok(())
    }

    /// Reads the rules; those that wait are rung if they have changed.
    async fn read_rules(&mut self, session: &mut Session) -> Result<()> {
        let pulse = async |conn: &mut Link| floor::pulse(conn).await;
        let pulse = session.call("read the rules", pulse).await?;
        // A reset of a broadcast group is published as a floor.
        let mut floors = pulse.floors.clone();
        floors.retain(|floor| self.demand.is_broadcast(floor.topic));
        let rules = pulse.rules();
        if self.rules.as_ref().is_some_and(|known| *known != rules) {
            self.bells.want_all();
        }
        for floor in floors.iter().filter(|floor| !self.floors.contains(floor)) {
            self.bells.want(floor.topic);
        }
        (self.rules, self.floors) = (Some(rules), floors);
        Ok(())
    }

    /// Rings for what the looks have found.
    async fn ring(&mut self, session: &mut Session, now: Instant) -> Result<()> {
        self.bells.take_missing(session, now).await?;
        let mut due = self.demand.due(now);
        let may_claim = |topic| self.rules.as_ref().is_none_or(|rules| rules.may_claim(topic));
        due.retain(|(topic, _)| self.bells.is_listened_to(*topic) && may_claim(*topic));
        let (rung, tried) = (self.rung, !due.is_empty());
        for (topic, wanted) in due {
            if self.demand.is_broadcast(topic) {
                self.bells.want(topic);
                self.demand.rung(topic, 1, now);
                continue;
            }
            let mut woken = 0;
            while woken < wanted && self.bells.ring_one(session, topic).await? {
                woken += 1;
            }
            self.demand.rung(topic, woken, now);
            self.rung += u64::from(woken);
        }
        self.rung += self.bells.ring_wanted(session, now).await?;
        if self.rung > rung {
            self.busy_until = None;
        } else if tried {
            self.busy_until = Some(now + BUSY_FOR);
        }
        Ok(())
    }
}

impl Duty for Ring {
    const NAME: &'static str = "ring";
    type Report = RingReport;

    fn interval(&self) -> Duration {
        self.look_after
    }

    fn is_notable(_report: &RingReport) -> bool {
        false
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<RingReport> {
        if self.session_since != Some(sweep.steady_since) {
            self.begin(sweep).await?;
        }
        self.look_after = REST;
        if self.locks_count {
            let now = sweep.now;
            if self.walk_at.is_none_or(|at| now >= at) {
                self.walk(sweep.session, now).await?;
                let pause = (now.elapsed() * WALK_SHARE).clamp(LOOK, WALK_CAP);
                self.walk_at = Some(Instant::now() + pause);
            }
            if self.bells.is_empty() {
                self.walk_at = None;
            } else {
                if self.rules_at.is_none_or(|at| now >= at) {
                    let began = Instant::now();
                    self.read_rules(sweep.session).await?;
                    let pause = (began.elapsed() * LOOK_SHARE).max(RULES);
                    self.rules_at = Some(Instant::now() + pause);
                }
                let began = Instant::now();
                self.look(sweep.session, now).await?;
                self.ring(sweep.session, now).await?;
                let took = began.elapsed();
                self.look_after = (took * LOOK_SHARE).clamp(self.pause(now), REST);
            }
        }
        Ok(RingReport { listeners: self.bells.len(), rung: self.rung })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_less_often_in_silence_and_least_often_while_every_worker_is_busy() {
        let found = Instant::now();
        let ring = Ring { found_at: Some(found), ..Ring::default() };
        assert_eq!(ring.pause(found), LOOK);
        assert_eq!(ring.pause(found + SILENT_AFTER), SILENT_LOOK);
        let busy = Ring { busy_until: Some(found + BUSY_FOR), ..ring };
        assert_eq!(busy.pause(found), BUSY_LOOK);
        assert_eq!(busy.pause(found + BUSY_FOR), LOOK);
    }
}
