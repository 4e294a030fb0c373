//! The faults: each a function that strikes, waits as long as the fault lasts, and heals.

mod network;
mod process;
mod server;

use futures_util::future::BoxFuture;
use rand::rngs::SmallRng;

use crate::arena::Arena;
use crate::record::Event;

/// How a fault is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// With nothing else within ten seconds, so that what it costs can be measured; in storms too.
    Alone,
    /// Together with others.
    Storm,
    /// Only when it is asked for by name.
    OnDemand,
}

/// A kind of fault.
pub(crate) struct Fault {
    /// What `--faults` calls it.
    pub(crate) name: &'static str,
    /// The rows of the fault matrix (docs/guarantees.md) that it stands for.
    pub(crate) rows: &'static str,
    /// What happens, for people.
    pub(crate) what: &'static str,
    pub(crate) setting: Setting,
    strike: for<'a> fn(&'a Arena, &'a mut SmallRng) -> BoxFuture<'a, anyhow::Result<()>>,
}

/// A row of the catalogue.
macro_rules! fault {
    ($name:literal, $rows:literal, $setting:ident, $strike:path, $what:literal) => {
        Fault {
            name: $name,
            rows: $rows,
            what: $what,
            setting: Setting::$setting,
            strike: |arena, rng| Box::pin($strike(arena, rng)),
        }
    };
}

/// Every fault there is.
pub(crate) static CATALOGUE: &[Fault] = &[
    fault!("kill-consumer", "F1", Alone, process::kill_consumer, "kill -9 of a consumer"),
    fault!(
        "freeze-consumer",
        "F3",
        Alone,
        process::freeze_consumer,
        "STOP of a consumer beyond its lease, then CONT"
    ),
    fault!(
        "cut-consumer",
        "F7",
        Alone,
        network::cut_consumer,
        "a consumer's packets vanish beyond its lease"
    ),
    fault!(
        "cut-all",
        "F9",
        Storm,
        network::cut_all,
        "everybody's packets vanish, for a moment or beyond every lease"
    ),
    fault!(
        "crash-server",
        "F4",
        Storm,
        server::crash_server,
        "kill -9 of the server, then a start"
    ),
    fault!("restart-server", "F4", Storm, server::restart_server, "the server restarts in order"),
    fault!(
        "stall-server",
        "F11",
        Storm,
        server::stall_server,
        "STOP of the server, for a moment or beyond every lease, then CONT"
    ),
    fault!("kill-producer", "F1", Storm, process::kill_producer, "kill -9 of a producer"),
    fault!(
        "stop-consumer",
        "F25",
        Storm,
        process::stop_consumer,
        "TERM of a consumer, now and then twice"
    ),
    fault!("kill-janitor", "F14", Storm, process::kill_janitor, "kill -9 of a janitor"),
    fault!("freeze-janitor", "F16", Storm, process::freeze_janitor, "STOP of a janitor, then CONT"),
    fault!(
        "abort-before-ack",
        "F2",
        Storm,
        process::abort_before_ack,
        "a handler takes its consumer down between its effect and the ack"
    ),
    fault!(
        "poison",
        "F20 F21",
        Storm,
        process::poison,
        "a message takes down every consumer that handles it"
    ),
];

impl Fault {
    /// The faults of these names; all that need not be asked for if there are none.
    pub(crate) fn named(names: &[String]) -> anyhow::Result<Vec<&'static Self>> {
        if names.is_empty() {
            return Ok(CATALOGUE.iter().filter(|f| f.setting != Setting::OnDemand).collect());
        }
        let find = |name: &String| {
            CATALOGUE.iter().find(|fault| fault.name == name).ok_or_else(|| {
                anyhow::anyhow!("There is no fault '{name}': --list-faults shows them.")
            })
        };
        names.iter().map(find).collect()
    }

    /// Strikes and heals.
    pub(crate) async fn strike(&self, arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
        let fault = self.name.to_owned();
        arena.record.note(&Event::Strike { fault: fault.clone() })?;
        let struck = (self.strike)(arena, rng).await;
        arena.record.note(&Event::Heal { fault })?;
        struck
    }
}
