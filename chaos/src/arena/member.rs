//! One process of the fleet, restarted whenever it ends, as a service manager does.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmq_core::connection::ServerUrl;
use rowmq_test::proxy::FaultProxy;
use rustix::process::{Pid, Signal, kill_process};

use super::next_actor;
use crate::record::Record;
use crate::tag::Actor;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends messages.
    Sender,
    /// Sends messages, through a journal on its disk while the server is away.
    Spiller,
    /// Sends messages by the SQL contract, in transactions.
    Enqueuer,
    /// Handles messages and records them.
    Recorder,
    /// Handles messages by the SQL contract and records them.
    Caller,
    /// The product's own `rowmq-consumer`.
    Consumer,
    /// The product's own `rowmq-janitor`.
    Janitor,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Spiller => "spiller",
            Self::Enqueuer => "enqueuer",
            Self::Recorder => "recorder",
            Self::Caller => "caller",
            Self::Consumer => "consumer",
            Self::Janitor => "janitor",
        }
    }
}

/// How long after its end a process is restarted.
const RESTART: Duration = Duration::from_millis(300);

/// The arguments of a process, made from its number and its record's path.
pub(crate) type Arguments = Box<dyn Fn(Actor, &Path) -> Vec<String> + Send + Sync>;

/// How a process is started.
pub(crate) struct Program {
    pub(crate) role: Role,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Arguments,
    pub(crate) settings: Vec<(String, String)>,
}

/// A place in the fleet, filled by one process after the other.
pub(crate) struct Member {
    program: Program,
    /// The proxy through which the process reaches the server. A cluster is reached directly, past
    /// the proxy.
    pub(crate) proxy: FaultProxy,
    url: ServerUrl,
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    actor: Actor,
    /// Extra environment variables of the next process.
    oddities: Vec<(String, String)>,
    child: Option<Child>,
    ended: Instant,
    retired: bool,
    /// How many processes ended otherwise than well.
    failures: usize,
}

impl Member {
    pub(crate) async fn start(
        program: Program,
        server: &ServerUrl,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let proxy = FaultProxy::start(server).await;
        // A cluster is reached directly: what dies is the server itself.
        let url = if server.servers().len() > 1 { server.clone() } else { proxy.url(server) };
        let state = State {
            actor: Actor(0),
            oddities: Vec::new(),
            child: None,
            ended: Instant::now(),
            retired: false,
            failures: 0,
        };
        let member =
            Self { program, proxy, url, folder: folder.to_owned(), state: Mutex::new(state) };
        member.launch(&mut member.state())?;
        Ok(member)
    }

    pub(crate) fn role(&self) -> Role {
        self.program.role
    }

    /// Returns the process that currently fills the place.
    pub(crate) fn actor(&self) -> Actor {
        self.state().actor
    }

    /// Returns the id of that process, if it lives.
    pub(crate) fn id(&self) -> Option<u32> {
        self.state().child.as_ref().map(Child::id)
    }

    /// Returns how many processes of this place have ended otherwise than well.
    pub(crate) fn failures(&self) -> usize {
        self.state().failures
    }

    /// Sends a signal; returns false if there is no process to receive it.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let state = self.state();
        let Some(child) = &state.child else { return false };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Starts the next process if the last one has ended. Returns the status of one that has just
    /// ended.
    pub(crate) fn supervise(&self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        let mut state = self.state();
        if let Some(child) = &mut state.child {
            let Some(status) = child.try_wait()? else { return Ok(None) };
            state.child = None;
            state.ended = Instant::now();
            state.failures += usize::from(!status.success());
            return Ok(Some(status));
        }
        if !state.retired && state.ended.elapsed() >= RESTART {
            self.launch(&mut state)?;
        }
        Ok(None)
    }

    /// Ends the process with TERM; no other follows.
    pub(crate) fn retire(&self) {
        self.state().retired = true;
        // It may have ended already.
        self.signal(Signal::TERM);
    }

    /// Returns whether no process follows the current one.
    pub(crate) fn is_retired(&self) -> bool {
        self.state().retired
    }

    /// Lets another process follow again.
    pub(crate) fn recall(&self) {
        self.state().retired = false;
    }

    /// Sets environment variables of the next processes, instead of those set before.
    pub(crate) fn set(&self, oddities: &[(&str, &str)]) {
        let oddities = oddities.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        self.state().oddities = oddities.collect();
    }

    /// Returns where the process serves its metrics, once it has logged that.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        let said = std::fs::read_to_string(self.said(self.actor())).ok()?;
        let line = said.lines().find(|line| line.contains("Metrics are served."))?;
        line.split_once("address=")?.1.split_whitespace().next()?.parse().ok()
    }

    /// Returns the file with a process's output.
    fn said(&self, actor: Actor) -> PathBuf {
        self.folder.join(format!("{actor}-{}.err", self.program.role.word()))
    }

    /// Returns whether a process fills the place.
    pub(crate) fn runs(&self) -> bool {
        self.state().child.is_some()
    }

    fn launch(&self, state: &mut State) -> anyhow::Result<()> {
        let actor = next_actor();
        let record = format!("records/{actor}-{}.log", self.program.role.word());
        let record = self.folder.join(record);
        // A process that is killed before it writes anything still has a record.
        drop(Record::open(&record)?);
        let said = std::fs::File::create(self.said(actor))?;
        let child = Command::new(&self.program.path)
            .args((self.program.arguments)(actor, &record))
            .env("ROWMQ_URL", self.url.expose())
            .env("ROWMQ_METRICS", "0")
            .envs(self.program.settings.iter().map(|(name, value)| (name, value)))
            .envs(state.oddities.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .with_context(|| format!("Cannot start {}", self.program.path.display()))?;
        state.actor = actor;
        state.child = Some(child);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Kills the process; no other follows.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.retired = true;
        if let Some(child) = &mut state.child {
            // It may have ended already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}
