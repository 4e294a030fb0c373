//! Faults, drawn from the seed.

use std::rc::Rc;
use std::time::Duration;

use rowmq_core::connection::simulation::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::server::{Fate, Fates};
use crate::settings::Weather;
use crate::stage::Stage;
use crate::stream::rewind;
use crate::troupe::{Part, Troupe};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// KILL of one connection, as by an administrator or a network.
    KillConnection,
    /// Both sessions of a consumer end, and it cannot connect for a moment shorter than the grace.
    Reconnect,
    /// The server's clock is set forward an hour, or back again.
    StepClock,
    /// A foreign transaction locks messages for a moment.
    Stranger,
    KillJanitor,
    FreezeJanitor,
    KillSender,
    /// A process that cancels messages is killed, and another one starts. The requests of the
    /// killed one expire by themselves.
    KillCanceller,
    /// kill -9; another consumer starts.
    KillConsumer,
    /// The host of a consumer loses power.
    CutConsumer,
    FreezeConsumer,
    /// Packets between the server and a consumer, janitor or sender are swallowed.
    Hole(Part),
    CrashServer,
    /// `max_connections` is reached.
    FewConnections,
    ReadOnly,
    Fates,
    /// An operator resets a group to an earlier offset, or has it handle a stretch again.
    Rewind,
}

/// Longer than two looks (8 ms apart); together with a probe (50 ms), the pauses of a worker that
/// tries to reconnect and a slow answer still within the grace (300 ms).
const RECONNECT: Duration = Duration::from_millis(120);

/// How far the clock is wrong, in microseconds.
const HOUR: i64 = 3_600_000_000;

const MILD: [Fault; 8] = [
    Fault::Reconnect,
    Fault::KillConnection,
    Fault::KillConnection,
    Fault::StepClock,
    Fault::KillJanitor,
    Fault::FreezeJanitor,
    Fault::KillSender,
    Fault::Fates,
];

const WILD: [Fault; 18] = [
    Fault::KillConnection,
    Fault::StepClock,
    Fault::Stranger,
    Fault::KillJanitor,
    Fault::FreezeJanitor,
    Fault::KillSender,
    Fault::KillCanceller,
    Fault::KillConsumer,
    Fault::KillConsumer,
    Fault::CutConsumer,
    Fault::FreezeConsumer,
    Fault::FreezeConsumer,
    Fault::Hole(Part::Consumer),
    Fault::Hole(Part::Sender),
    Fault::CrashServer,
    Fault::FewConnections,
    Fault::ReadOnly,
    Fault::Fates,
];

/// Does damage until it is time to stop, then repairs everything.
pub(crate) async fn storm(
    stage: &Rc<Stage>,
    troupe: &mut Troupe,
    crashes: &mut mpsc::UnboundedReceiver<String>,
) {
    let faults: &[Fault] = match stage.settings.weather {
        Weather::Calm => &[],
        Weather::Mild => &MILD,
        Weather::Wild => &WILD,
    };
    let end = Instant::now() + stage.settings.faulty;
    while Instant::now() < end {
        let pause = sleep(Duration::from_millis((100 + stage.below(1500)).into()));
        if let Ok(Some(name)) = timeout_at(pause, crashes).await {
            kill(stage, troupe, &name, false).await;
            continue;
        }
        if !faults.is_empty() {
            let rewinds = stage.settings.stream.is_some() && faults == WILD.as_slice();
            let fault = match rewinds && stage.below(5) == 0 {
                true => Fault::Rewind,
                false if stage.settings.late && stage.below(2) == 0 => Fault::Fates,
                false => faults[stage.below(faults.len() as u32) as usize],
            };
            stage.server.note(&format!("fault: {fault:?}"));
            strike(stage, troupe, fault).await;
        }
    }
    mend(stage, troupe);
}

/// Waits for the next crash, unless `pause` ends first.
async fn timeout_at(
    pause: tokio::time::Sleep,
    crashes: &mut mpsc::UnboundedReceiver<String>,
) -> Result<Option<String>, tokio::time::error::Elapsed> {
    let left = pause.deadline().saturating_duration_since(Instant::now());
    timeout(left, crashes.recv()).await
}

/// Kills a process and starts another one in its place.
pub(crate) async fn kill(stage: &Rc<Stage>, troupe: &mut Troupe, name: &str, cut: bool) {
    if let Some(part) = troupe.kill(name, cut).await {
        stage.doze(300).await;
        troupe.start(part);
    }
}

async fn strike(stage: &Rc<Stage>, troupe: &mut Troupe, fault: Fault) {
    let server = &stage.server;
    let lease = stage.settings.lease.as_millis() as u32;
    let a_while = Duration::from_millis((200 + stage.below(lease * 2)).into());
    match fault {
        Fault::KillConnection => {
            let id = 1 + stage.below(server.engine.borrow().newest() as u32);
            server.kill(id.into());
        }
        Fault::Reconnect => {
            if let Some(name) = troupe.draw(Part::Consumer) {
                server.limit.set(0);
                server.ids_of(&name).into_iter().for_each(|id| server.kill(id));
                sleep(RECONNECT).await;
                server.limit.set(150);
            }
        }
        Fault::StepClock => {
            server.skew.set(if server.skew.get() == 0 { HOUR } else { 0 });
        }
        Fault::Stranger => {
            tokio::task::spawn_local(disturb(Rc::clone(stage)));
        }
        Fault::KillJanitor
        | Fault::KillSender
        | Fault::KillCanceller
        | Fault::KillConsumer
        | Fault::CutConsumer => {
            let part = match fault {
                Fault::KillJanitor => Part::Janitor,
                Fault::KillSender => Part::Sender,
                Fault::KillCanceller => Part::Canceller,
                _ => Part::Consumer,
            };
            if let Some(name) = troupe.draw(part) {
                kill(stage, troupe, &name, fault == Fault::CutConsumer).await;
            }
        }
        Fault::FreezeJanitor | Fault::FreezeConsumer => {
            let part = if fault == Fault::FreezeJanitor { Part::Janitor } else { Part::Consumer };
            if let Some(name) = troupe.draw(part) {
                troupe.freeze(&name, true);
                sleep(a_while).await;
                if stage.below(3) > 0 {
                    troupe.freeze(&name, false);
                }
            }
        }
        Fault::Hole(part) => {
            if let Some(name) = troupe.draw(part) {
                server.hole(&name).set(true);
                sleep(a_while).await;
                server.hole(&name).set(false);
            }
        }
        Fault::CrashServer => {
            server.crash();
            stage.doze(1500).await;
            server.restart();
        }
        Fault::FewConnections => {
            server.limit.set(2);
            let open = server.engine.borrow().ids();
            open.into_iter().filter(|_| stage.below(2) == 0).for_each(|id| server.kill(id));
            sleep(a_while).await;
            server.limit.set(150);
        }
        Fault::ReadOnly => {
            server.act(|engine| engine.facts.read_only = true);
            sleep(a_while).await;
            server.act(|engine| engine.facts.read_only = false);
        }
        Fault::Rewind => rewind(stage).await,
        Fault::Fates => {
            server.fates.replace(fates(stage, lease));
            sleep(a_while).await;
            server.fates.replace(Vec::new());
        }
    }
}

/// Returns the fates that statements meet for a while, in a thousand.
fn fates(stage: &Stage, lease: u32) -> Fates {
    let mild = stage.settings.weather == Weather::Mild;
    // A mild delay is shorter than a grace.
    let (late, slow) = if mild { (20, 20) } else { (lease, lease) };
    let often_late = if stage.settings.late { 60 } else { 12 };
    vec![
        (Fate::Unsent, stage.below(8)),
        (Fate::Unheard, stage.below(16)),
        (Fate::Late(late), stage.below(often_late)),
        (Fate::Slow(slow), stage.below(if mild { 4 } else { 10 })),
        (Fate::Hushed, stage.below(16)),
        (Fate::Killed, stage.below(16)),
    ]
}

/// Runs a foreign transaction that locks messages.
async fn disturb(stage: Rc<Stage>) {
    let Ok(mut conn) = stage.connect("stranger").await else { return };
    let topic = [stage.topic_id.get().0.into(), stage.below(60).into()].map(Value::number);
    let lock = "SELECT id FROM queue_message WHERE topic_id = ? AND priority = 5 AND id > ? \
         ORDER BY topic_id, priority, id LIMIT 5 FOR UPDATE SKIP LOCKED";
    if conn.run("BEGIN", &[]).await.is_ok() && conn.run(lock, &topic).await.is_ok() {
        stage.doze(2500).await;
    }
}

fn mend(stage: &Rc<Stage>, troupe: &mut Troupe) {
    let server = &stage.server;
    server.note("all faults are over");
    server.fates.replace(Vec::new());
    server.limit.set(150);
    // A retry requested while the clock was ahead is due by that clock.
    server.skew.set(HOUR);
    server.heal();
    server.act(|engine| engine.facts.read_only = false);
    if !server.is_up() {
        server.restart();
    }
    troupe.thaw();
    troupe.fill();
}
