//! The follower: an actor that opens a stream, rings for its events, and opens another stream when
//! it ends.

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

/// The pause before the first retry; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest pause. A follower without the privilege keeps retrying at this interval: the
/// privilege may have been granted since.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How many beats may be missing before the stream counts as failed.
const BEATS: u32 = 4;

/// Starts the follower on its own thread, so that a handler that blocks its runtime delays no ring.
pub(super) fn start(house: Arc<House>, beat: Duration, stop: CancellationToken) -> Result<()> {
    let follower = Follower { house, patience: beat * BEATS, warned: false, pause: PAUSE };
    actor::spawn("rowmq-doorbell", move || async move {
        let house = Arc::clone(&follower.house);
        // The follower can be dropped at any await: no other task needs its result, and its
        // connection closes with it.
        stop.run_until_cancelled(follower.run()).await;
        set_ringing(&house, false);
    })
}

struct Follower {
    house: Arc<House>,
    /// How long it may receive nothing from its own process.
    patience: Duration,
    warned: bool,
    pause: Duration,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let house = Arc::clone(&self.house);
            // A separate task, because the driver panics on a truncated event.
            let heard = tokio::spawn(listen(house, self.patience)).await;
            let rang = self.house.ringing.borrow().to_owned();
            set_ringing(&self.house, false);
            if rang {
                (self.warned, self.pause) = (false, PAUSE);
            }
            let error = heard.unwrap_or_else(|panic| gone(&panic.to_string()));
            self.report(&error);
            tokio::time::sleep(self.pause.mul_f64(crate::chance::between(0.75..=1.0))).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Logs one warning each time that the doorbell stops ringing or cannot begin.
    fn report(&mut self, error: &Error) {
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

/// Follows one stream to its end. Returns the error that ended it.
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
                // Messages may have been committed while no stream was open.
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
