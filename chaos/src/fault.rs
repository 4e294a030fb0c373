//! The faults: each a function that strikes, waits as long as the fault lasts, and heals.

mod admin;
mod burst;
mod clock;
mod connection;
mod deletion;
mod group;
mod janitor;
mod load;
mod network;
mod process;
mod resource;
mod scrape;
mod server;
mod stranger;

use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::rngs::SmallRng;

use crate::arena::Arena;
use crate::record::Event;

/// Longer than the lease (10 s), the grace and a sweep.
const BEYOND_LEASE: Duration = Duration::from_secs(13);

/// How a fault is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// With no other fault within ten seconds, so that its cost can be measured; in storms too.
    Alone,
    /// Together with others.
    Storm,
    /// In every storm, so that no run is without it.
    EveryStorm,
    /// Only when it is requested by name.
    OnDemand,
}

/// A kind of fault.
pub(crate) struct Fault {
    /// Its name in `--faults`.
    pub(crate) name: &'static str,
    /// The rows of the fault matrix (docs/faults.md) that it stands for.
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

/// All faults.
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
        "kill-spiller",
        "F1",
        Storm,
        process::kill_spiller,
        "kill -9, several times, of a producer with a journal while the server is away from it"
    ),
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
        "many-janitors",
        "F14",
        Storm,
        janitor::many_janitors,
        "four more janitors at once, for a while"
    ),
    fault!(
        "janitor-without-process",
        "F15",
        Storm,
        janitor::janitor_without_process,
        "janitors take over that do not see the consumers' connections"
    ),
    fault!(
        "read-only",
        "F19",
        Storm,
        resource::read_only,
        "the server takes no writes for up to 20 s"
    ),
    fault!(
        "exhaust-connections",
        "F36",
        Storm,
        resource::exhaust_connections,
        "another account takes every connection while members of the fleet are cut"
    ),
    fault!(
        "fill-disk",
        "F12",
        OnDemand,
        resource::fill_disk,
        "the disk of the server's data is full (root only)"
    ),
    fault!(
        "long-transaction",
        "F30",
        Storm,
        load::long_transaction,
        "a snapshot held open, and an idle transaction that has locked the first messages"
    ),
    fault!(
        "deadlock-storm",
        "F13",
        Storm,
        load::deadlock_storm,
        "eight strangers lock crossing ranges of the queue's tables"
    ),
    fault!(
        "hang-handlers",
        "F23",
        Storm,
        load::hang_handlers,
        "handlers block the threads of their runtime beyond the lease"
    ),
    fault!(
        "scrape-storm",
        "F37",
        Storm,
        scrape::scrape_storm,
        "a hundred clients scrape the metrics, and more never finish their request"
    ),
    fault!(
        "wrong-clocks",
        "F17",
        Storm,
        clock::wrong_clocks,
        "wrong time zones and clocks of processes, other time zones of the server's sessions"
    ),
    fault!(
        "step-clock",
        "F17",
        OnDemand,
        clock::step_clock,
        "the server's clock jumps by an hour, to and fro"
    ),
    fault!(
        "hold-locks",
        "F42",
        Storm,
        stranger::hold_locks,
        "a login without privileges holds every name lock it can guess, until the run is over"
    ),
    fault!(
        "operate",
        "F40",
        Storm,
        admin::operate,
        "rowmq looks at everything, closes a topic and opens it again"
    ),
    fault!(
        "purge-topic",
        "F40",
        Storm,
        admin::purge_topic,
        "a topic is deleted with all its messages while they are handled"
    ),
    fault!(
        "delete-topic",
        "F40",
        Storm,
        deletion::delete_topic,
        "a topic is deleted and made again while transactions that think send to it"
    ),
    fault!(
        "cancel-messages",
        "F40",
        EveryStorm,
        admin::cancel_messages,
        "messages are cancelled while they wait and while they are handled"
    ),
    fault!(
        "migrate",
        "F31",
        Storm,
        admin::migrate,
        "a migration behind an idle transaction, everybody behind the migration"
    ),
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
    fault!(
        "kill-connection",
        "F6",
        Storm,
        connection::kill_connection,
        "KILL of a connection, whatever it does, or of dozens"
    ),
    fault!(
        "kill-statements",
        "F41",
        Storm,
        connection::kill_statements,
        "KILL QUERY of what connections execute, hundreds of times"
    ),
    fault!(
        "drop-reply",
        "F6 F10",
        Storm,
        connection::drop_reply,
        "a statement, mostly COMMIT, is executed, its reply vanishes, its connection is cut"
    ),
    fault!(
        "cut-before",
        "F6 F10",
        Storm,
        connection::cut_before,
        "a connection is cut before a statement, mostly COMMIT, arrives"
    ),
    fault!(
        "strand",
        "F10",
        Storm,
        connection::strand,
        "a COMMIT or a part of a claim arrives seconds later, after its process has reconnected"
    ),
    fault!(
        "cut-in-claim",
        "F8",
        Storm,
        connection::cut_in_claim,
        "a consumer's packets vanish in a transaction that holds row locks"
    ),
    fault!(
        "cut-life",
        "F24",
        Storm,
        connection::cut_life,
        "the packets of one of a worker's two sessions vanish beyond its lease"
    ),
    fault!(
        "half-open",
        "F7",
        Storm,
        connection::half_open,
        "connections close at one end, and the other end does not learn it"
    ),
    fault!(
        "reset-network",
        "F6",
        Storm,
        network::reset_network,
        "every connection of a process, or of all, is cut; new ones pass"
    ),
    fault!(
        "refuse-network",
        "F9",
        Storm,
        network::refuse_network,
        "no new connection is accepted for seconds"
    ),
    fault!(
        "slow-network",
        "F11",
        Storm,
        network::slow_network,
        "50-800 ms more each way for a process, or for all"
    ),
    fault!(
        "reuse-ids",
        "F5",
        Storm,
        server::reuse_ids,
        "the server restarts, and strangers get the connection ids of frozen consumers"
    ),
    fault!(
        "reset-group",
        "F35",
        EveryStorm,
        group::reset_group,
        "a group of a stream is put back to where it was, or to the beginning"
    ),
    fault!(
        "replay-group",
        "F35",
        EveryStorm,
        group::replay_group,
        "a group of a stream is to handle a range once more"
    ),
    fault!(
        "crash-under-burst",
        "F4",
        OnDemand,
        burst::crash_under_burst,
        "kill -9 of the server while 50,000 messages a second arrive"
    ),
];

impl Fault {
    /// Returns the faults of these names; without names, all except those on demand.
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

    /// Returns whether it is the kill -9 of a consumer, which is measured most.
    pub(crate) fn kills(&self) -> bool {
        self.name == "kill-consumer"
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
