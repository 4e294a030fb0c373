use std::process::ExitCode;

use rowmq_core::account::Account;
use rowmq_core::doctor::{self, Check, Verdict};

use crate::invocation::Invocation;
use crate::output::Row;

/// Check that this server meets the requirements.
///
/// Exit code 1 if a check fails; warnings say what to know.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Also compare this account's grants with those that an account of that kind needs, which
    /// `rowmq grants` prints.
    #[arg(long = "as", value_name = "ACCOUNT", value_parser = super::grants::account())]
    account: Option<Account>,
}

const HEADER: [&str; 3] = ["check", "verdict", "finding"];

impl Row for Check {
    fn cells(&self) -> Vec<String> {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "FAILURE",
        };
        vec![self.name.to_owned(), verdict.to_owned(), self.detail.clone()]
    }
}

impl Doctor {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<ExitCode> {
        let report = doctor::examine_as(&invocation.url()?, self.account).await?;
        if invocation.output.is_json() {
            invocation.output.report(&report, "")?;
        } else {
            invocation.output.rows(&HEADER, &report.checks, "")?;
        }
        let failed = report.failures().next().is_some();
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
