use std::io::{Write, stdout};

use clap::CommandFactory;
use clap_complete::Shell;

/// Print a shell's completions: `source <(queuectl completions bash)`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::Arguments::command(),
            "queuectl",
            &mut script,
        );
        Ok(stdout().lock().write_all(&script)?)
    }
}
