//! The settings that a seed draws before its history begins.

use std::num::NonZeroU32;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rowmq_core::model::{Limits, OnDone, Rate};
use rowmq_core::worker::ClaimStrategy;

use super::Cast;
use crate::rules::Subject;
use crate::server::RingFates;
use crate::settings::{Bells, Settings, Streamed, Weather};

pub(super) fn settings(seed: u64, cast: Cast) -> Settings {
    // A separate generator, so that adding or removing a setting does not change the faults of a
    // seed.
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5e77);
    let drawn = match rng.random_range(0..8) {
        0 => Weather::Calm,
        1 | 2 => Weather::Mild,
        _ => Weather::Wild,
    };
    let weather = cast.weather.unwrap_or(drawn);
    let poison = if weather == Weather::Wild && rng.random_range(0..3) == 0 {
        rng.random_range(7..20)
    } else {
        0
    };
    let settings = Settings {
        weather,
        rule: cast.without,
        late: cast.late,
        lease: Duration::from_secs(rng.random_range(2..=3)),
        consumers: rng.random_range(1..=3),
        janitors: rng.random_range(1..=2),
        senders: rng.random_range(1..=3),
        strategy: match rng.random_range(0..8) {
            0 | 1 => ClaimStrategy::UpdateThenSelect,
            2 => ClaimStrategy::UpdateLimit,
            _ => ClaimStrategy::SkipLocked,
        },
        on_done: if rng.random_range(0..3) == 0 {
            OnDone::Keep(Duration::from_secs(9000))
        } else {
            OnDone::Delete
        },
        max_run_time: max_run_time(weather, &mut rng),
        faulty: Duration::from_secs(rng.random_range(3..=9)),
        poison,
        dead_letter_topic: rng.random_range(0..3) == 0,
        searchable: rng.random_range(0..3) == 0,
        dedupe: rng.random_range(0..6) == 0,
        traced: rng.random_range(0..3) == 0,
        limits: limits(&mut rng),
        cancellers: 0,
        cancels: 0,
        operators: 0,
        checkpoints: false,
        told: false,
        receives: false,
        bells: None,
        stream: None,
    };
    let drawn = if rng.random_range(0..3) == 0 { Subject::Stream } else { Subject::Queue };
    let settings = match cast.subject.unwrap_or(drawn) {
        Subject::Stream => streaming(settings, &mut rng),
        Subject::Queue => settings,
    };
    let (drawn, checkpoints) = (rng.random_range(0..=1), rng.random_range(0..3) == 0);
    let (cancellers, cancels) = if cast.cancels { (1, 60) } else { (drawn, 8) };
    let told = weather == Weather::Calm || rng.random_range(0..5) == 0;
    let receives = settings.stream.is_none() && (rng.random_range(0..3) == 0 || cast.bells);
    // A receiver needs some suspects to handle.
    let poison = match settings.poison {
        0 if receives && weather == Weather::Wild => 9,
        drawn => drawn,
    };
    // In wild weather, a statement may arrive so late that it enqueues to a deleted topic, and its
    // message gets another topic: there is nothing to judge.
    let operators = if weather == Weather::Wild { 0 } else { rng.random_range(0..=1) };
    let rung = receives && (rng.random_range(0..3) > 0 || cast.bells);
    let bells = rung.then(|| bells(weather, &mut rng));
    let settings = Settings { cancellers, cancels, operators, checkpoints, told, ..settings };
    Settings { poison, receives, bells, ..settings }
}

/// Draws how receivers wait for their bells. Where every wake-up is lost, they look often by
/// themselves: the history must end.
fn bells(weather: Weather, rng: &mut SmallRng) -> Bells {
    let fates = match rng.random_range(0..4) {
        _ if weather == Weather::Calm => RingFates::default(),
        0 => RingFates::default(),
        1 => RingFates { lost: 100, ..RingFates::default() },
        _ => RingFates { lost: 20, late: 20, late_by: 2000, doubled: 20 },
    };
    let seconds = if fates.lost == 100 { 1 } else { rng.random_range(1..=5) };
    Bells { safety: Duration::from_secs(seconds), fates }
}

/// Draws a limit for a third of the topics. In wild weather some handlers run longer; in mild
/// weather none does, but the clock steps further.
fn max_run_time(weather: Weather, rng: &mut SmallRng) -> Option<Duration> {
    if weather == Weather::Calm || rng.random_range(0..3) != 0 {
        return None;
    }
    Some(match weather {
        Weather::Wild => Duration::from_millis(rng.random_range(100..1000)),
        _ => Duration::from_secs(60),
    })
}

/// Draws small limits for a third of the topics: there is little to do at a time.
fn limits(rng: &mut SmallRng) -> Limits {
    if rng.random_range(0..3) != 0 {
        return Limits::default();
    }
    let rate = Rate::new(NonZeroU32::MIN.saturating_add(19), Duration::from_secs(1));
    Limits {
        max_running: NonZeroU32::new(rng.random_range(0..=4)),
        max_running_per_key: NonZeroU32::new(rng.random_range(0..=1)),
        rate: rate.ok().filter(|_| rng.random_range(0..4) == 0),
    }
}

/// Turns the settings into those of a stream, which has no dedupe windows, limits or search of its
/// own. Dead letters of several groups cannot be distinguished in one topic.
fn streaming(settings: Settings, rng: &mut SmallRng) -> Settings {
    let groups: Vec<bool> = (0..rng.random_range(1..=2)).map(|_| rng.random()).collect();
    let (partitions, kept_for) = (rng.random_range(1..=3), rng.random_range(2..=20));
    Settings {
        dead_letter_topic: settings.dead_letter_topic && groups.len() == 1,
        searchable: false,
        dedupe: false,
        limits: Limits::default(),
        stream: Some(Streamed {
            partitions,
            groups,
            retention: Duration::from_secs(kept_for),
            pages: kept_for % 2 == 0,
        }),
        ..settings
    }
}
