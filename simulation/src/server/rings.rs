//! What happens to the answers of sessions that were rung: wake-ups are lost, late and doubled.

use std::time::Duration;

use rowmq_core::connection::simulation::Answer;

use super::Server;

/// How often a wake-up meets each fate, in a hundred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RingFates {
    /// The session is told that it has heard nothing.
    pub(crate) lost: u32,
    /// The session is told late.
    pub(crate) late: u32,
    /// How late at most, in milliseconds.
    pub(crate) late_by: u32,
    /// The session is told twice.
    pub(crate) doubled: u32,
}

/// What became of wake-ups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WakeUps {
    /// Sessions that were rung.
    pub rung: usize,
    /// Those of them that were told nothing.
    pub lost: usize,
    /// Those that were told late.
    pub late: usize,
    /// Those that were told twice.
    pub doubled: usize,
}

/// How the server answers a session that was rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Echo {
    /// At once, and once.
    Plain,
    /// As if it had heard nothing.
    Lost,
    /// After this time.
    Late(Duration),
    /// At once, and its next wait as well.
    Doubled,
}

/// Returns whether the text is that of a wait for a bell.
pub(super) fn is_wait(text: &str) -> bool {
    text.ends_with(" AS rang")
}

/// Returns whether the answer says that a bell rang which a sweeper held.
pub(super) fn is_rung(answer: &Answer) -> bool {
    let says = |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|bytes| bytes[0] == 1);
    answer.rows.first().is_some_and(|row| row.values.iter().all(says))
}

/// Makes the answer say that the bell has not rung.
pub(super) fn hush(answer: &mut Answer) {
    for row in &mut answer.rows {
        if let Some(Some(rang)) = row.values.last_mut() {
            rang.fill(0);
        }
    }
}

impl Server {
    /// Draws how a session that was rung is answered, and counts it.
    pub(super) fn echo(&self) -> Echo {
        let fates = self.ring_fates.get();
        let mut wake_ups = self.wake_ups.get();
        wake_ups.rung += 1;
        let mut echo = Echo::Plain;
        if fates != RingFates::default() {
            let at = self.below(100);
            if at < fates.lost {
                wake_ups.lost += 1;
                echo = Echo::Lost;
            } else if at < fates.lost + fates.late {
                wake_ups.late += 1;
                echo = Echo::Late(Duration::from_millis(self.below(fates.late_by).into()));
            } else if at < fates.lost + fates.late + fates.doubled {
                wake_ups.doubled += 1;
                echo = Echo::Doubled;
            }
        }
        self.wake_ups.set(wake_ups);
        echo
    }
}
