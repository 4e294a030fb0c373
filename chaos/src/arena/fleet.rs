//! All processes of a run.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use rand::Rng;
use rand::seq::IndexedRandom;
use rowmq_core::connection::ServerUrl;
use tokio::task::JoinHandle;

use super::member::{Member, Program, Role};
use super::{Hook, Queue, accounts};
use crate::stream::{BROADCAST, Group, STREAM};
use crate::topics::{BURST, CALLS, EFFECTS, HOOK, LEDGER, PROGRAM, URGENT, WORK};

/// How often the harness looks for ended processes.
const SUPERVISION: Duration = Duration::from_millis(50);

/// How long a process may take to end after TERM: longer than a consumer's drain and a producer's
/// patience with a server that is away.
const ENDING: Duration = Duration::from_secs(60);

/// The longest work with a message of the stream.
const STREAM_WORK_MS: u64 = 20;

/// The longest work with a message of the topics whose messages are handled one after the other.
const CALL_WORK_MS: u64 = 50;

/// How much work the fleet gets.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Load {
    /// Messages a second through the producer's lanes.
    #[arg(long, default_value_t = 150.0, value_name = "PER-SECOND")]
    pub(crate) rate: f64,
    /// The longest work of a handler, in milliseconds.
    #[arg(long, default_value_t = 400, value_name = "MILLISECONDS")]
    pub(crate) work_ms: u64,
    /// Consumers that are the target of the faults.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(crate) consumers: usize,
    /// Messages that each of them handles at once.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub(crate) concurrency: usize,
}

/// The fleet; see the module.
pub(crate) struct Fleet {
    members: Arc<Mutex<Vec<Arc<Member>>>>,
    root: ServerUrl,
    queue: Queue,
    folder: PathBuf,
    programs: PathBuf,
    supervisor: JoinHandle<()>,
}

impl Fleet {
    /// Creates a fleet without processes on the server of `root`; each will use the account of its
    /// role.
    pub(crate) fn new(root: ServerUrl, queue: Queue, folder: &Path) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("Cannot find the harness's own program")?;
        let programs = this.parent().context("a program is in a folder")?.to_owned();
        let members: Arc<Mutex<Vec<Arc<Member>>>> = Arc::default();
        let watched = Arc::clone(&members);
        let supervisor = tokio::spawn(async move {
            loop {
                tokio::time::sleep(SUPERVISION).await;
                let members = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for member in members {
                    match member.supervise() {
                        Ok(Some(status)) => tracing::info!(
                            process.actor = %member.actor(), %status,
                            process.role = member.role().word(), "A process has ended."
                        ),
                        Ok(None) => {}
                        Err(error) => tracing::error!(%error, "A process cannot be started."),
                    }
                }
            }
        });
        Ok(Self { members, root, queue, folder: folder.to_owned(), programs, supervisor })
    }

    /// Starts the processes of an ordinary run.
    pub(crate) async fn muster(
        &self,
        load: Load,
        quiet: Duration,
        seed: u64,
    ) -> anyhow::Result<()> {
        let hook = Hook::start(&self.folder.join("records")).await?;
        for _ in 0..2 {
            self.add_janitor(&[]).await?;
        }
        let groups = Group::ALL.map(Group::topic);
        let mut topics = vec![WORK, LEDGER, EFFECTS, BURST, BROADCAST];
        topics.extend(groups.iter().map(String::as_str));
        // One process of each name reads; the others with that name stand by.
        for &member in Group::MEMBERS.iter().cycle().take(load.consumers) {
            self.add_recorder(&topics, load.concurrency, Some(member)).await?;
        }
        for _ in 0..2 {
            let groups = [Group::Ordered, Group::Booked].map(Group::topic);
            let topics = groups.into_iter().chain([CALLS, URGENT].map(str::to_owned));
            let topics = topics.map(|topic| format!("--topic={topic}"));
            let fixed = std::iter::once("call".to_owned()).chain(topics).collect();
            self.add_actor(Role::Caller, fixed).await?;
        }
        let witness = self.programs.join("chaos").display().to_string();
        let records = self.folder.join("records").display().to_string();
        for kind in ["exec", "pool"] {
            let program = ["--", &witness, "witness", "--records", &records];
            let consumer = [&[kind, PROGRAM, "--concurrency", "2"][..], &program].concat();
            self.add_consumer(&consumer).await?;
        }
        let url = format!("http://{}/", hook.address);
        self.add_consumer(&["webhook", HOOK, &url, "--allow", "127.0.0.1"]).await?;
        let sender = |topic, rate| SenderLoad { topic, rate, work_ms: load.work_ms, quiet, seed };
        self.add_sender(sender(WORK, load.rate), &[]).await?;
        let journal = self.folder.join("journal").display().to_string();
        self.add_sender(sender(WORK, load.rate / 5.0), &["--spill-dir", &journal]).await?;
        self.add_sender(sender(LEDGER, load.rate / 5.0), &["--think-ms", "200"]).await?;
        self.add_sender(sender(EFFECTS, load.rate / 5.0), &["--batch", "4"]).await?;
        // Each of its consumers handles one message after the other.
        let calls = SenderLoad { work_ms: load.work_ms.min(CALL_WORK_MS), ..sender(CALLS, 10.0) };
        self.add_sender(calls, &["--batch", "2"]).await?;
        let urgent = SenderLoad { topic: URGENT, rate: 5.0, ..calls };
        self.add_sender(urgent, &["--batch", "2"]).await?;
        self.add_sender(sender(PROGRAM, 4.0), &["--batch", "2"]).await?;
        self.add_sender(sender(HOOK, 10.0), &["--batch", "4"]).await?;
        // An ordered group handles one message of a partition after the other.
        let work_ms = load.work_ms.min(STREAM_WORK_MS);
        let to_stream = SenderLoad { work_ms, ..sender(STREAM, load.rate / 15.0) };
        for think in ["200", "20"] {
            self.add_sender(to_stream, &["--stream", "--think-ms", think]).await?;
        }
        self.add_sender(to_stream, &["--stream", "--batch", "4"]).await?;
        Ok(())
    }

    /// Starts a worker of each client, beside the other consumers by the SQL contract.
    pub(crate) async fn add_clients(&self, clients: &[Client], ops: &Path) -> anyhow::Result<()> {
        let path = ops.join("client");
        let account = accounts::url_for(&self.root, self.queue, Role::Caller)?;
        for client in clients {
            let [name, recorder] = client.recorder();
            let arguments = move |_, record: &Path| {
                let record = record.display().to_string();
                [name, recorder, &record, CALLS, URGENT].map(str::to_owned).into()
            };
            let (arguments, settings) = (Box::new(arguments), Vec::new());
            let program = Program { role: Role::Caller, path: path.clone(), arguments, settings };
            self.start(program, &account).await?;
        }
        Ok(())
    }

    pub(crate) async fn add_janitor(
        &self,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Arc<Member>> {
        let account = accounts::url_for(&self.root, self.queue, Role::Janitor)?;
        self.add_janitor_of(&account, settings).await
    }

    /// Adds a janitor with another account.
    pub(crate) async fn add_janitor_of(
        &self,
        account: &ServerUrl,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Arc<Member>> {
        let program =
            self.program(Role::Janitor, "rowmq-janitor", Box::new(|_, _| Vec::new()), settings);
        self.start(program, account).await
    }

    pub(crate) async fn add_recorder(
        &self,
        topics: &[&str],
        concurrency: usize,
        member: Option<Group>,
    ) -> anyhow::Result<Arc<Member>> {
        let mut fixed = vec!["record".to_owned(), format!("--concurrency={concurrency}")];
        fixed.extend(topics.iter().map(|topic| format!("--topic={topic}")));
        fixed.extend(member.map(|member| format!("--broadcast-member={member}")));
        self.add_actor(Role::Recorder, fixed).await
    }

    async fn add_consumer(&self, arguments: &[&str]) -> anyhow::Result<Arc<Member>> {
        let fixed: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        self.add(Role::Consumer, "rowmq-consumer", Box::new(move |_, _| fixed.clone()), &[]).await
    }

    pub(crate) async fn add_sender(
        &self,
        load: SenderLoad<'_>,
        more: &[&str],
    ) -> anyhow::Result<Arc<Member>> {
        let mut fixed = vec![
            "send".to_owned(),
            format!("--topic={}", load.topic),
            format!("--rate={}", load.rate),
            format!("--work-ms={}", load.work_ms),
            format!("--seed={}", load.seed),
            format!("--quiet-seconds={}", load.quiet.as_secs()),
        ];
        fixed.extend(more.iter().map(|&word| word.to_owned()));
        let role = match more.first() {
            Some(&"--spill-dir") => Role::Spiller,
            Some(&"--by-sql") => Role::Enqueuer,
            _ => Role::Sender,
        };
        self.add_actor(role, fixed).await
    }

    /// Adds a process that gets these arguments in addition to its identity.
    pub(crate) async fn add_actor(
        &self,
        role: Role,
        fixed: Vec<String>,
    ) -> anyhow::Result<Arc<Member>> {
        let arguments = move |actor, record: &Path| {
            let own = [format!("--actor={actor}"), format!("--record={}", record.display())];
            fixed.iter().cloned().chain(own).collect()
        };
        self.add(role, "chaos", Box::new(arguments), &[]).await
    }

    async fn add(
        &self,
        role: Role,
        program: &str,
        arguments: super::member::Arguments,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Arc<Member>> {
        let account = accounts::url_for(&self.root, self.queue, role)?;
        self.start(self.program(role, program, arguments, settings), &account).await
    }

    fn program(
        &self,
        role: Role,
        name: &str,
        arguments: super::member::Arguments,
        settings: &[(&str, &str)],
    ) -> Program {
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        Program { role, path: self.path_of(name), arguments, settings: settings.collect() }
    }

    /// Returns the path of a program of the workspace.
    pub(crate) fn path_of(&self, program: &str) -> PathBuf {
        self.programs.join(program)
    }

    async fn start(&self, program: Program, server: &ServerUrl) -> anyhow::Result<Arc<Member>> {
        let member = Arc::new(Member::start(program, server, &self.folder).await?);
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&member));
        Ok(member)
    }

    /// Returns every member of this role.
    pub(crate) fn all(&self, role: Role) -> Vec<Arc<Member>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter(|member| member.role() == role).cloned().collect()
    }

    /// Returns every member.
    pub(crate) fn everybody(&self) -> Vec<Arc<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Picks a member of this role.
    pub(crate) fn pick(&self, role: Role, rng: &mut impl Rng) -> anyhow::Result<Arc<Member>> {
        choose(self.all(role), rng)
    }

    /// Picks a consumer, three of four by the library and one by the SQL contract: a run of 300 s
    /// hits few, and rates how fast the messages of the library's come back.
    pub(crate) fn pick_consumer(&self, rng: &mut impl Rng) -> anyhow::Result<Arc<Member>> {
        let mut roles = [Role::Recorder, Role::Caller];
        if rng.random_bool(0.25) {
            roles.reverse();
        }
        self.pick(roles[0], rng).or_else(|_| self.pick(roles[1], rng))
    }

    /// Ends members for good with TERM, and waits until they have ended.
    pub(crate) async fn dismiss(&self, members: &[Arc<Member>]) -> anyhow::Result<()> {
        self.send_away(members).await?;
        let gone = |member: &Arc<Member>| members.iter().any(|other| Arc::ptr_eq(member, other));
        let mut all = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|member| !gone(member));
        Ok(())
    }

    /// Ends members with TERM, waits until they have ended, and leaves their places empty until
    /// they are recalled.
    pub(crate) async fn send_away(&self, members: &[Arc<Member>]) -> anyhow::Result<()> {
        for member in members {
            member.retire();
        }
        let deadline = tokio::time::Instant::now() + ENDING;
        for member in members {
            while member.runs() {
                let patience = tokio::time::Instant::now() < deadline;
                ensure!(patience, "{} {} does not end", member.role().word(), member.actor());
                tokio::time::sleep(SUPERVISION).await;
            }
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.supervisor.abort();
        // Something else may still hold a member: its process ends with the run.
        self.everybody().iter().for_each(|member| member.end());
    }
}

fn choose(mut members: Vec<Arc<Member>>, rng: &mut impl Rng) -> anyhow::Result<Arc<Member>> {
    members.retain(|member| !member.is_retired());
    members.choose(rng).cloned().context("the fleet has no such member")
}

/// A package for another language. `ops/client` runs programs with it.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Client {
    /// The package in `clients/python`.
    Python,
    /// The package in `clients/node`.
    Node,
    /// The package in `clients/php`.
    Php,
}

impl Client {
    /// Returns the arguments of `ops/client` for a worker that records what it handles.
    fn recorder(self) -> [&'static str; 2] {
        match self {
            Self::Python => ["python", "clients/python/tests/recorder.py"],
            // These run in a copy of the tests' folder.
            Self::Node => ["node", "recorder.mjs"],
            Self::Php => ["php", "recorder.php"],
        }
    }
}

/// What a sender sends, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SenderLoad<'t> {
    pub(crate) topic: &'t str,
    /// Messages a second.
    pub(crate) rate: f64,
    pub(crate) work_ms: u64,
    /// In this time every handler succeeds at its first try.
    pub(crate) quiet: Duration,
    pub(crate) seed: u64,
}
