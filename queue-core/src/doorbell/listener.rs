//! The listener: an actor that waits for a worker's bell.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Shared;
use crate::connection::{Link, Session, SessionKind};
use crate::model::{Result, TopicId, WorkerId};
use crate::store::doorbell::{self, Heard};

/// The longest that one statement waits, in seconds.
const WAIT: u32 = 5;

/// How long the server may take to answer beside that.
const ANSWER: Duration = Duration::from_secs(5);

/// The pause before the first retry after a failure; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How soon to wait again for a bell that nobody holds. The sweeper takes a bell back a fraction of
/// a millisecond after it has rung.
const TAKEN_BACK: Duration = Duration::from_millis(5);

/// A bell that has been found free this many times in a row is not being taken back.
const FREE: u32 = 4;

pub(super) struct Listener {
    shared: Arc<Shared>,
    worker: WorkerId,
    instance: Uuid,
    session: Option<Session>,
    /// The topics in the worker's row.
    told: Vec<TopicId>,
    /// How often in a row nobody has held the bell.
    free: u32,
    /// When it last looked for messages itself.
    looked: Instant,
    pause: Duration,
}

impl Listener {
    pub(super) fn new(shared: Arc<Shared>, worker: WorkerId, instance: Uuid) -> Self {
        Self {
            shared,
            worker,
            instance,
            session: None,
            told: Vec::new(),
            free: 0,
            looked: Instant::now(),
            pause: PAUSE,
        }
    }

    pub(super) async fn run(mut self, ended: CancellationToken) {
        let mut idle = self.shared.idle.subscribe();
        while !ended.is_cancelled() {
            // Only a token, a channel and a timer are waited on here, never the connection.
            tokio::select! {
                biased;
                () = ended.cancelled() => break,
                waits = idle.wait_for(|topics| *topics > 0) => if waits.is_err() { break },
            }
            let pause = match self.listen().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::debug!(worker.id = %self.worker, %error, "No bell; polling instead.");
                    self.shared.set_ringing(false);
                    let pause = self.pause;
                    self.pause = (pause * 2).min(LONGEST_PAUSE);
                    pause
                }
            };
            if !pause.is_zero() {
                ended.run_until_cancelled(tokio::time::sleep(pause)).await;
            }
        }
    }

    /// Waits for the bell once. Returns how long to pause before the next time.
    async fn listen(&mut self) -> Result<Duration> {
        self.tell().await?;
        let was_ringing = *self.shared.ringing.borrow();
        // At first it only asks whether anybody holds the bell.
        let seconds = if was_ringing { self.wait() } else { 0 };
        let instance = self.instance;
        let wait = async |conn: &mut Link| doorbell::wait(conn, instance, seconds).await;
        let session = self.session().await?;
        let asked = Instant::now();
        let heard = session.call("wait for the doorbell", wait).await?;
        self.pause = PAUSE;
        if heard == Heard::Absent {
            self.free += 1;
            // The bell may have been taken, and rung, after the server saw that it was free.
            if was_ringing && asked.elapsed() > TAKEN_BACK {
                self.rang();
                self.look().await?;
            }
            if was_ringing && self.free < FREE {
                return Ok(TAKEN_BACK);
            }
            self.shared.set_ringing(false);
            return Ok(PAUSE);
        }
        self.free = 0;
        if !was_ringing {
            tracing::debug!(worker.id = %self.worker, "A sweeper rings.");
            self.shared.set_ringing(true);
        }
        if heard == Heard::Ring {
            self.rang();
        }
        // What was committed before the bell was held was rung for in vain.
        if !was_ringing || heard == Heard::Ring || self.looked.elapsed() >= self.shared.safety {
            self.look().await?;
        }
        Ok(Duration::ZERO)
    }

    fn rang(&self) {
        self.shared.rings.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// How long one statement waits, in seconds.
    fn wait(&self) -> u32 {
        u32::try_from(self.shared.safety.as_secs()).unwrap_or(WAIT).clamp(1, WAIT)
    }

    /// Finds which of the worker's topics have messages, and wakes their consumers.
    async fn look(&mut self) -> Result<()> {
        self.looked = Instant::now();
        let topics = self.told.clone();
        let ready = if let [only] = topics[..] {
            vec![only]
        } else {
            let look = async |conn: &mut Link| doorbell::ready(conn, &topics).await;
            self.session().await?.call("look for topics with messages", look).await?
        };
        self.shared.ring_for(&ready);
        Ok(())
    }

    /// Records the topics in the worker's row, unless they are there.
    async fn tell(&mut self) -> Result<()> {
        let ids = self.shared.ids();
        if ids == self.told {
            return Ok(());
        }
        let (worker, instance) = (self.worker, self.instance);
        let listen = async |conn: &mut Link| doorbell::listen(conn, worker, instance, &ids).await;
        self.session().await?.call("listen to the doorbell", listen).await?;
        self.told = ids;
        Ok(())
    }

    async fn session(&mut self) -> Result<&mut Session> {
        let session = match self.session.take().filter(|session| !session.is_lost()) {
            Some(session) => session,
            None => {
                let deadline = Duration::from_secs(WAIT.into()) + ANSWER;
                Session::open(&self.shared.url, SessionKind::Plain, deadline).await?
            }
        };
        Ok(self.session.insert(session))
    }
}

impl Drop for Listener {
    /// Also after a panic: a consumer that believes it will be rung does not poll.
    fn drop(&mut self) {
        self.shared.set_ringing(false);
    }
}
