mod plan;
mod step;

use std::path::PathBuf;

use anyhow::{Context, bail};
use rowmq_core::connection::Session;
use rowmq_service::config::declarations;
use serde::Serialize;

use self::plan::Plan;
use self::step::{Described, HEADER, Step};
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;

/// Create and change topics, groups and schedules until they are as a file declares them.
///
/// The file is TOML: `[topics.mail]`, `[groups."orders@billing"]`, `[schedules.nightly]`. The
/// settings are the options of `topic create`, `group create` and `cron set`, with _ for -. What
/// the file leaves out has its default, so the file is the whole of what it declares; what it does
/// not declare stays as it is. Pauses and the groups' places are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    file: PathBuf,
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Also delete the topics, groups and schedules that the file does not declare. No message is
    /// deleted: a topic that holds some is refused.
    #[arg(long)]
    prune: bool,
    /// Do not ask before something is deleted.
    #[arg(long, short, requires = "prune")]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Applied {
    dry_run: bool,
    changes: Vec<Described>,
    unchanged: usize,
}

impl Apply {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let declared = declarations::read(&self.file, &["groups", "schedules", "topics"])?;
        let mut session = invocation.session().await?;
        let Plan { steps, unchanged } = Plan::of(&mut session, &declared, self.prune).await?;
        let changes: Vec<_> = steps.iter().map(Step::describe).collect();
        if !invocation.output.is_json() && !changes.is_empty() {
            invocation.output.rows(&HEADER, &changes, "")?;
        }
        if !self.dry_run {
            self.confirm(&steps)?;
            carry_out(&mut session, &steps).await?;
        }
        let made = match (changes.len(), self.dry_run) {
            (1, false) => "1 change is made".to_owned(),
            (1, true) => "1 change would be made".to_owned(),
            (n, false) => format!("{n} changes are made"),
            (n, true) => format!("{n} changes would be made"),
        };
        let sentence = format!("{made}; {unchanged} things are as declared.");
        let applied = Applied { dry_run: self.dry_run, changes, unchanged };
        invocation.output.report(&applied, &sentence)
    }

    /// Asks before anything is deleted.
    fn confirm(&self, steps: &[Step]) -> anyhow::Result<()> {
        let deleted = steps.iter().filter(|step| step.deletes()).count();
        let question = format!("Delete {deleted} topics, groups or schedules?");
        if deleted == 0 || self.yes || is_confirmed("topics", &question)? {
            return Ok(());
        }
        bail!("Nothing was changed.")
    }
}

/// Makes the changes in turn. Each is a transaction, so after a failure the command continues where
/// it ended.
async fn carry_out(session: &mut Session, steps: &[Step]) -> anyhow::Result<()> {
    for (done, step) in steps.iter().enumerate() {
        step.carry_out(session).await.with_context(|| {
            let Described { what, name, .. } = step.describe();
            format!(
                "{done} of {} changes are made, and that of the {what} '{name}' failed",
                steps.len()
            )
        })?;
    }
    Ok(())
}
