use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::invocation::Invocation;

/// The program's name where it is installed, and where it is built. The second name is used only
/// there: elsewhere a `bench` may be another program, and it gets the server's password.
const INSTALLED: &str = "rowmq-bench";
const BUILT: &str = "bench";

/// The default measurement: enqueue and drain, each beside the raw limit of the server, once each.
const SHORT: [&str; 6] =
    ["run", "--quick", "--only", "enqueue-one,enqueue-bulk,drain", "--out", "rowmq-bench-report"];

/// Measure the queue on this server, beside the raw limit of its tables.
///
/// It fills databases of its own, which the account must be allowed to create, and drops them; do
/// not run it beside work that matters. The program `rowmq-bench` does it, and is given all
/// arguments: `rowmq bench cases`, `rowmq bench run --help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// As `rowmq-bench` takes them; without any, a quick run of enqueue and drain, whose report
    /// goes to ./rowmq-bench-report.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Bench {
    /// Replaces this process with the program.
    pub(crate) fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let url = invocation.url()?;
        let Some(program) = find() else {
            bail!(
                "The program rowmq-bench is neither beside rowmq nor in PATH, and the packages do not have it: build it with `cargo build --release --package bench`, and put target/release/bench there as rowmq-bench."
            );
        };
        let mut command = Command::new(&program);
        match self.arguments.is_empty() {
            true => command.args(SHORT),
            false => command.args(self.arguments),
        };
        let error = command.env("ROWMQ_URL", url.expose()).exec();
        Err(error).with_context(|| format!("Cannot start {}", program.display()))
    }
}

fn find() -> Option<PathBuf> {
    let this = env::current_exe().ok();
    let beside = this.as_deref().and_then(Path::parent);
    let built = beside.filter(|folder| folder.join("deps").is_dir());
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join(INSTALLED)).collect::<Vec<_>>();
    let beside = beside.map(|folder| folder.join(INSTALLED));
    let built = built.map(|folder| folder.join(BUILT));
    beside.into_iter().chain(built).chain(in_path).find(|program| program.is_file())
}
