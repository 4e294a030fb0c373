//! The follower: an actor that opens a stream, rings by what it hears, and opens another one when
//! that ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::House;
use super::event::{Heard, Rung};
use super::stream::{Stream, gone};
use crate::actor;
use crate::model::{Error, Result};
use crate::telemetry;

/// The pause before the first new try; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(200);

/// A doorbell that cannot be had is asked for again this often: somebody may have granted it.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// This many beats that are not heard are no accident.
const BEATS: u32 = 4;

/// Starts the follower on a thread of its own: a handler that blocks its runtime stops no bell.
pub(super) fn start(house: Arc<House>, beat: Duration, stop: CancellationToken) -> Result<()> {
    let follower = Follower { house, patience: beat * BEATS, warned: false, pause: PAUSE };
    actor::spawn("rowmq-doorbell", move || async move {
        let house = Arc::clone(&follower.house);
        // Nothing is awaited in it that another one needs: its connection ends with it.
        stop.run_until_cancelled(follower.run()).await;
        set_ringing(&house, false);
    })
}

struct Follower {
    house: Arc<House>,
    /// How long it may hear nothing of its own process.
    patience: Duration,
    warned: bool,
    pause: Duration,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let house = Arc::clone(&self.house);
            // A task of its own: the driver panics on an event that is cut short.
            let heard = tokio::spawn(listen(house, self.patience)).await;
            let rang = self.house.ringing.borrow().to_owned();
            set_ringing(&self.house, false);
            if rang {
                (self.warned, self.pause) = (false, PAUSE);
            }
            let error = heard.unwrap_or_else(|panic| gone(&panic.to_string()));
            self.tell(&error);
            tokio::time::sleep(self.pause.mul_f64(crate::chance::between(0.75..=1.0))).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One warning for each time it stops or cannot begin.
    fn tell(&mut self, error: &Error) {
        if self.warned {
            tracing::debug!(%error, "The doorbell still does not ring.");
        } else {
            self.warned = true;
            tracing::warn!(%error, "The doorbell does not ring; polling instead.");
        }
    }
}

fn set_ringing(house: &House, now: bool) {
    telemetry::doorbell_ringing(now);
    house.ringing.send_if_modified(|ringing| std::mem::replace(ringing, now) != now);
}

/// Follows one stream to its end; what ended it.
async fn listen(house: Arc<House>, patience: Duration) -> Error {
    let mut stream = match Stream::open(&house.url).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let mut heard_us = Instant::now();
    loop {
        let heard = match stream.next().await {
            Ok(heard) => heard,
            Err(error) => return error,
        };
        if heard != Heard::Nothing {
            heard_us = Instant::now();
            if !*house.ringing.borrow() {
                tracing::info!(database = house.url.database(), "The doorbell rings.");
                set_ringing(&house, true);
                // What was committed while nobody followed.
                house.ring_all();
                house.changes.send_modify(|count| *count += 1);
            }
        } else if heard_us.elapsed() > patience {
            return gone(
                "the beats of this process are not in it: does the log leave the database out, or is the server no longer the writer?",
            );
        }
        act(&house, heard);
    }
}

fn act(house: &House, heard: Heard) {
    if matches!(heard, Heard::Floors(_) | Heard::TopicsChanged) {
        house.changes.send_modify(|count| *count += 1);
    }
    match heard {
        Heard::Messages(Rung::Everybody) | Heard::Floors(Rung::Everybody) => house.ring_all(),
        Heard::Messages(Rung::Topics(topics)) | Heard::Floors(Rung::Topics(topics)) => {
            topics.into_iter().for_each(|topic| house.ring(topic));
        }
        Heard::Nothing | Heard::Sign | Heard::TopicsChanged => {}
    }
}
