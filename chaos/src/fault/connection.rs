//! Faults of single connections and statements: a connection is killed, cut at one end or goes
//! dark, a statement is killed, and a statement or its reply is lost.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rowmq_test::proxy::{FaultProxy, Side, statement};

use super::BEYOND_LEASE;
use crate::arena::{Arena, Member, Role};
use crate::record::{Event, Hit};

/// How long to wait for a statement: an idle process may not send it at all.
const SPRING: Duration = Duration::from_secs(8);

const COMMIT: &str = "COMMIT";

/// The statements of a consumer that claims.
const CLAIM: [&str; 3] = [statement::LOCK_READY, "UPDATE queue_message", statement::RECORD_CLAIM];

/// Other statements of processes: a consumer settles, is declared dead, takes its name lock and
/// beats; a producer reads its topic, looks up the outcome of a batch, and inserts.
const OTHER: [&str; 8] = [
    statement::ACK,
    statement::CHANGE_WORKER,
    statement::TAKE_NAME_LOCK,
    statement::PULSE,
    statement::READ_TOPIC,
    statement::FENCE_LANE,
    "INSERT INTO queue_message",
    "BEGIN",
];

/// Runs one KILL, or a storm of them; half of them hit connections that are executing something.
pub(super) async fn kill_connection(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let kills = if rng.random_ratio(1, 3) { rng.random_range(15..40) } else { 1 };
    for _ in 0..kills {
        let mut sessions = arena.sessions().await.unwrap_or_default();
        if rng.random() && sessions.iter().any(|listed| listed.busy) {
            sessions.retain(|listed| listed.busy);
        }
        if let Some(victim) = sessions.choose(rng) {
            broken(arena, victim.port)?;
            arena.kill(victim.id).await?;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
    }
    Ok(())
}

/// For some seconds, kills the statements that connections execute, but not the connections.
pub(super) async fn kill_statements(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let rounds = rng.random_range(10..60);
    for _ in 0..rounds {
        let sessions = arena.sessions().await.unwrap_or_default();
        let victims: Vec<_> = sessions.choose_multiple(rng, 20).collect();
        for victim in &victims {
            broken(arena, victim.port)?;
        }
        let pause = Duration::from_millis(rng.random_range(1..4));
        arena.kill_statements(victims.iter().map(|victim| victim.id), pause).await?;
    }
    Ok(())
}

/// Drops the reply to a statement that was executed: mostly one that commits.
pub(super) async fn drop_reply(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let statement = statement(rng);
    spring(arena, rng, |proxy| proxy.drop_reply_after(statement)).await?;
    Ok(())
}

/// Drops a statement before it is executed: mostly one that commits.
pub(super) async fn cut_before(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let statement = statement(rng);
    spring(arena, rng, |proxy| proxy.cut_before(statement)).await?;
    Ok(())
}

/// Holds up a statement that commits, or a part of a claim, until long after its process has
/// reconnected (H6).
pub(super) async fn strand(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let statement = match rng.random_range(0..4) {
        0 => CLAIM[rng.random_range(0..3)],
        1 => statement::STORE_IN_LANE,
        _ => COMMIT,
    };
    if let Some(victim) = spring(arena, rng, |proxy| proxy.strand(statement)).await? {
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..9_000))).await;
        victim.proxy.release();
    }
    Ok(())
}

/// Makes a connection go dark in a transaction that holds row locks.
pub(super) async fn cut_in_claim(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let statement = [statement::RECORD_CLAIM, COMMIT][rng.random_range(0..2)];
    let victim = arena.fleet.pick(Role::Recorder, rng)?;
    trap(arena, &victim, |proxy| proxy.darken_at(statement)).await?;
    Ok(())
}

/// Makes one of a worker's two sessions go dark beyond its lease, while the other lives.
pub(super) async fn cut_life(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick(Role::Recorder, rng)?;
    let (Ok(sessions), Ok(workers)) = (arena.sessions_of(&victim).await, arena.workers().await)
    else {
        return Ok(());
    };
    let life = rng.random();
    let chosen = sessions.iter().find(|listed| {
        workers.iter().any(|pair| listed.id == if life { pair.life } else { pair.work })
    });
    if let Some(chosen) = chosen {
        broken(arena, chosen.port)?;
        victim.proxy.darken(chosen.port);
        tokio::time::sleep(BEYOND_LEASE).await;
    }
    Ok(())
}

/// Closes one end of connections, without a notice to the other end.
pub(super) async fn half_open(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = anybody(arena, rng)?;
    let side = if rng.random() { Side::Client } else { Side::Server };
    let mut ports = victim.proxy.ports();
    if let (Some(&one), true) = (ports.choose(rng), rng.random()) {
        ports = vec![one];
    }
    for port in ports {
        broken(arena, port)?;
        victim.proxy.cut(port, side);
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..5_000))).await;
    Ok(())
}

fn statement(rng: &mut SmallRng) -> &'static str {
    match rng.random_range(0..6) {
        0 => CLAIM[rng.random_range(0..CLAIM.len())],
        1 => OTHER[rng.random_range(0..OTHER.len())],
        2..4 => statement::STORE_IN_LANE,
        _ => COMMIT,
    }
}

fn anybody(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<std::sync::Arc<Member>> {
    let role = match rng.random_range(0..9) {
        0 => Role::Janitor,
        8 => Role::Caller,
        1 => Role::Consumer,
        2..4 => Role::Sender,
        4 => Role::Spiller,
        _ => Role::Recorder,
    };
    arena.fleet.pick(role, rng)
}

/// Arms a trap at some process and waits for it; returns the process if the trap has sprung.
async fn spring(
    arena: &Arena,
    rng: &mut SmallRng,
    arm: impl Fn(&FaultProxy),
) -> anyhow::Result<Option<std::sync::Arc<Member>>> {
    let victim = anybody(arena, rng)?;
    let sprung = trap(arena, &victim, arm).await?;
    Ok(sprung.then_some(victim))
}

async fn trap(arena: &Arena, victim: &Member, arm: impl Fn(&FaultProxy)) -> anyhow::Result<bool> {
    arm(&victim.proxy);
    let sprung = tokio::time::timeout(SPRING, victim.proxy.sprung()).await.is_ok();
    if sprung {
        arena.record.note(&Event::Hit { actor: victim.actor().0, how: Hit::Broken })?;
    } else {
        victim.proxy.disarm();
    }
    Ok(sprung)
}

/// Records whose connection this was.
fn broken(arena: &Arena, port: u16) -> anyhow::Result<()> {
    let fleet = arena.fleet.everybody();
    if let Some(member) = fleet.iter().find(|member| member.proxy.ports().contains(&port)) {
        arena.record.note(&Event::Hit { actor: member.actor().0, how: Hit::Broken })?;
    }
    Ok(())
}
