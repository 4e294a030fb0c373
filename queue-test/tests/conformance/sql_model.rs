//! Random sequences of SQL sessions over two topics, beside a worker of the library, against a
//! model of what each session holds. A delivery that a session was given and has begun to settle
//! stays the session's, whatever it and others do, until it is settled, cancelled or given back;
//! and each message ends once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::Row;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rowmq_core::cancellation::{Attempt, Cancellation, Claims};
use rowmq_core::connection::Session;
use rowmq_core::model::Settlement;
use rowmq_core::worker::Worker;
use rowmq_core::{MsgId, NewMessage, Topic, enqueue};
use rowmq_test::until;

use crate::scene::{Scene, all, bodies, settle};
use crate::sql_consumer::SqlConsumer;

const SEQUENCES: u64 = 8;
const STEPS: usize = 50;
const SESSIONS: usize = 2;

/// Keeps every claim from inserting its record, and from being given back.
const HOLD_CLAIMS: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; \
     SELECT * FROM queue_claim FOR UPDATE";

/// A delivery that a session was given.
#[derive(Debug, Clone)]
struct Live {
    topic: usize,
    delivery: String,
    body: String,
    /// A settle of its claim was tried: the topic's next claim no longer gives it back.
    kept: bool,
}

impl Live {
    fn claim(&self) -> &str {
        self.delivery.rsplit_once('.').unwrap().0
    }
}

struct Play {
    scene: Scene,
    topics: [Topic; 2],
    sessions: Vec<(SqlConsumer, Vec<Live>)>,
    worker: Worker,
    admin: Session,
    /// The messages that have not ended.
    messages: BTreeMap<String, (usize, MsgId)>,
    sent: usize,
    rng: StdRng,
    steps: Vec<String>,
}

/// Prints which sequence failed.
impl Drop for Play {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.steps.join("\n"));
        }
    }
}

impl Play {
    async fn new(seed: u64) -> Self {
        let scene = Scene::new().await;
        let topics = [scene.topic.clone(), scene.db.topic("u").await];
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let mut consumer = SqlConsumer::new(scene.db.url()).await;
            consumer.run("SET SESSION innodb_lock_wait_timeout = 1").await;
            consumer.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
            sessions.push((consumer, Vec::new()));
        }
        let (worker, admin) = (scene.worker().await, scene.db.session().await);
        Self {
            scene,
            topics,
            sessions,
            worker,
            admin,
            messages: BTreeMap::new(),
            sent: 0,
            rng: StdRng::seed_from_u64(seed),
            steps: vec![format!("sequence {seed}")],
        }
    }

    async fn step(&mut self) {
        let (of, topic) = (self.rng.random_range(0..SESSIONS), self.rng.random_range(0..2));
        match self.rng.random_range(0..40) {
            0..5 => self.send(topic).await,
            5..15 => self.claim(of, topic).await,
            15..21 => self.settle(of, "ack").await,
            21..23 => self.settle(of, "release").await,
            23..27 => self.settle_and_roll_back(of).await,
            27..32 => self.fail_to_claim(of, topic, true).await,
            32 => self.fail_to_claim(of, topic, false).await,
            33..35 => self.cancel_any().await,
            35..37 => self.cancel_unseen(of).await,
            37 => self.suspect(topic).await,
            _ => self.work_by_library(topic).await,
        }
        self.look().await;
    }

    fn say(&mut self, step: String) {
        self.steps.push(step);
    }

    async fn send(&mut self, topic: usize) {
        for _ in 0..self.rng.random_range(1..4) {
            let message = NewMessage::new(format!("m{}", self.sent));
            enqueue(&mut self.scene.conn, &self.topics[topic].name, &message).await.unwrap();
            self.messages.insert(format!("m{}", self.sent), (topic, message.msg_id));
            self.say(format!("send m{} to {topic}", self.sent));
            self.sent += 1;
        }
    }

    /// Forgets what any claim of the topic, whatever its outcome, may give back.
    fn forget_unsaid(&mut self, of: usize, topic: usize) {
        self.sessions[of].1.retain(|live| live.topic != topic || live.kept);
    }

    fn is_live(&self, body: &str) -> bool {
        self.sessions.iter().any(|(_, live)| live.iter().any(|one| one.body == body))
    }

    async fn claim(&mut self, of: usize, topic: usize) {
        let limit = self.rng.random_range(1..4);
        self.forget_unsaid(of, topic);
        let name = self.topics[topic].name.to_string();
        let claimed = self.sessions[of].0.claim_of(&name, limit).await;
        for one in claimed {
            self.say(format!("{of} claims {} of {topic}: {}", one.body, one.delivery));
            assert!(!self.is_live(&one.body), "{} is handed out twice", one.body);
            assert!(self.messages.contains_key(&one.body), "{} was over", one.body);
            let (delivery, body) = (one.delivery, one.body);
            self.sessions[of].1.push(Live { topic, delivery, body, kept: false });
        }
    }

    /// Makes a claim wait for a lock until it is killed or times out.
    async fn fail_to_claim(&mut self, of: usize, topic: usize, killed: bool) {
        self.say(format!("{of} fails to claim of {topic}, killed: {killed}"));
        self.forget_unsaid(of, topic);
        let call = format!("CALL queue_claim('{}', 2, NULL)", self.topics[topic].name);
        self.scene.sql(HOLD_CLAIMS).await;
        let (consumer, _) = &mut self.sessions[of];
        let (id, ended) = (consumer.id().await, AtomicBool::new(!killed));
        let claim = async {
            let answer = consumer.tried(&call).await;
            ended.store(true, Ordering::Relaxed);
            answer
        };
        let kill = async {
            // Where nothing is ready, the claim does not wait.
            while !ended.load(Ordering::Relaxed) {
                if self.scene.lock_waits().await > 0 {
                    self.scene.sql(&format!("KILL QUERY {id}")).await;
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let (answer, ()) = tokio::join!(claim, kill);
        assert_eq!(answer.map_or(Vec::<Row>::new(), |rows| rows).len(), 0);
        self.scene.sql("ROLLBACK").await;
        // A kill may come late, and then hits this statement.
        until("the session is mended", async || {
            self.sessions[of].0.tried("ROLLBACK").await.is_ok()
        })
        .await;
    }

    /// Picks one of the session's deliveries to settle.
    fn pick(&mut self, of: usize) -> Option<Live> {
        let picked = self.sessions[of].1.choose(&mut self.rng)?.clone();
        self.keep(picked.claim());
        Some(picked)
    }

    /// Marks a claim whose delivery was named: the session has received it.
    fn keep(&mut self, claim: &str) {
        let all = self.sessions.iter_mut().flat_map(|(_, live)| live);
        all.filter(|one| one.claim() == claim).for_each(|one| one.kept = true);
    }

    fn over(&mut self, body: &str) {
        for (_, live) in &mut self.sessions {
            live.retain(|one| one.body != body);
        }
        assert!(self.messages.remove(body).is_some(), "{body} is over twice");
    }

    async fn settle(&mut self, of: usize, verdict: &str) {
        let Some(live) = self.pick(of) else { return };
        self.say(format!("{of}: {verdict} {} {}", live.body, live.delivery));
        let call = format!("CALL queue_settle('{}', '{verdict}', NULL, NULL)", live.delivery);
        let answer = self.sessions[of].0.tried(&call).await;
        assert!(answer.is_ok(), "{verdict} of {live:?} is refused: {answer:?}");
        if verdict == "ack" {
            self.over(&live.body);
        }
        self.sessions[of].1.retain(|one| one.body != live.body);
        assert_eq!(self.sessions[of].0.tried(&call).await.unwrap_err(), 31015, "settled twice");
    }

    async fn settle_and_roll_back(&mut self, of: usize) {
        let Some(live) = self.pick(of) else { return };
        self.say(format!("{of} rolls back its ack of {} {}", live.body, live.delivery));
        let (consumer, _) = &mut self.sessions[of];
        consumer.run("START TRANSACTION").await;
        consumer.run(&format!("CALL queue_settle('{}', 'ack', NULL, NULL)", live.delivery)).await;
        consumer.run("ROLLBACK").await;
    }

    async fn take_away(&mut self, body: &str) {
        self.say(format!("cancel {body}"));
        let (topic, id) = self.messages[body];
        let mut cancellation = Cancellation::new(&self.topics[topic], id);
        let answer = cancellation.attempt(&mut self.admin, Claims::TakeAway).await.unwrap();
        assert!(matches!(answer, Attempt::Cancelled(_)), "{body}: {answer:?}");
        self.over(body);
    }

    /// Cancels a message; a session that holds it notices when it settles.
    async fn cancel(&mut self, body: &str) {
        let held = self.sessions.iter().enumerate().find_map(|(of, (_, live))| {
            live.iter().find(|one| one.body == body).map(|one| (of, one.clone()))
        });
        self.take_away(body).await;
        if let Some((of, live)) = held {
            let ack = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", live.delivery);
            assert_eq!(self.sessions[of].0.tried(&ack).await.unwrap_err(), 31015, "{live:?}");
            self.keep(live.claim());
        }
    }

    async fn cancel_any(&mut self) {
        let all: Vec<_> = self.messages.keys().cloned().collect();
        if let Some(body) = all.choose(&mut self.rng) {
            self.cancel(body).await;
        }
    }

    /// Cancels one message of a claim, and acks another in a snapshot that does not show the
    /// cancel.
    async fn cancel_unseen(&mut self, of: usize) {
        let held = &self.sessions[of].1;
        let of_one_claim =
            held.iter().zip(held.iter().skip(1)).find(|(a, b)| a.claim() == b.claim());
        let Some((live, other)) = of_one_claim.map(|(a, b)| (a.clone(), b.body.clone())) else {
            return;
        };
        self.say(format!("{of} acks {}, and does not see:", live.body));
        self.sessions[of].0.run("START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
        self.take_away(&other).await;
        let ack = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", live.delivery);
        self.sessions[of].0.run(&ack).await;
        self.sessions[of].0.run("COMMIT").await;
        self.over(&live.body);
        self.keep(live.claim());
    }

    /// Makes a ready message a suspect.
    async fn suspect(&mut self, topic: usize) {
        self.say(format!("a suspect in {topic}"));
        let id = self.topics[topic].id.0;
        let one = format!("topic_id = {id} AND worker_id = 0 AND priority < 10 LIMIT 1");
        self.scene.sql(&format!("UPDATE queue_message SET priority = 105 WHERE {one}")).await;
    }

    async fn work_by_library(&mut self, topic: usize) {
        let claimed = self.worker.claim(self.topics[topic].id, 2).await.unwrap().deliveries;
        for body in bodies(&claimed) {
            self.say(format!("the library acks {body}"));
            assert!(!self.is_live(&body), "{body} is handed out twice");
            self.over(&body);
        }
        settle(&self.worker, all(&claimed, &Settlement::Ack)).await;
    }

    /// Checks that everything the model holds is held.
    async fn look(&mut self) {
        let claimed = "SELECT COALESCE(GROUP_CONCAT(CONCAT(worker_id, '.', claim_no, '.', id)), '') \
             FROM queue_message WHERE worker_id > 0";
        let claimed = self.scene.text(claimed).await;
        let claimed: Vec<_> = claimed.split(',').collect();
        for live in self.sessions.iter().flat_map(|(_, live)| live) {
            assert!(
                claimed.contains(&live.delivery.as_str()),
                "released under its owner: {live:?}"
            );
        }
    }

    /// Checks that every session can still claim, suspects too, and leaves nothing.
    async fn end(mut self) {
        for of in 0..SESSIONS {
            while !self.sessions[of].1.is_empty() {
                self.settle(of, "ack").await;
            }
        }
        for of in 0..SESSIONS {
            // The claim gives back what was claimed and not handed out.
            for topic in 0..2 {
                self.claim(of, topic).await;
                while !self.sessions[of].1.is_empty() {
                    self.settle(of, "ack").await;
                }
            }
        }
        for of in 0..SESSIONS {
            self.send(0).await;
            self.scene.sql("UPDATE queue_message SET priority = 105 WHERE worker_id = 0").await;
            until(&format!("session {of} claims suspects"), async || {
                let topic = self.rng.random_range(0..2);
                self.claim(of, topic).await;
                while !self.sessions[of].1.is_empty() {
                    self.settle(of, "ack").await;
                }
                self.messages.is_empty()
            })
            .await;
        }
        assert_eq!(self.scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn random_sequences_of_sql_sessions_lose_release_and_double_nothing() {
    for seed in 0..SEQUENCES {
        let mut play = Play::new(seed).await;
        for _ in 0..STEPS {
            play.step().await;
        }
        play.end().await;
    }
}
