mod journal;
mod lane;
mod plan;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use rowmq_core::TopicName;
use rowmq_core::store::lane::LaneId;
use serde::Serialize;

use self::journal::{Begun, Journal};
use self::lane::{Lane, Tally};
use self::plan::Plan;
use crate::invocation::Invocation;
use crate::progress::Bar;
use crate::units::parse_time;

/// Store the messages of an export, each exactly once.
///
/// Or of any file that `rowmq-producer send --ndjson` reads. After an interruption at any point,
/// the same command continues: the server records the progress in the transaction of each batch,
/// and a small file beside FILE records which import it was.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    file: PathBuf,
    /// Into this topic, instead of that which each line names.
    #[arg(long)]
    topic: Option<TopicName>,
    /// The file that records which import it is [default: FILE.import].
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// For how long to go on trying while the server is away, or a topic has no room.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    give_up_after: Duration,
}

#[derive(Debug, Serialize)]
struct Imported {
    file: String,
    messages: u64,
    /// Of them, those that earlier runs have imported.
    earlier: u64,
    /// Of the others, those that were not stored because their ids or unique keys are known.
    duplicates: u64,
}

impl Import {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let plan = Plan::read(&self.file, self.topic.as_ref())?;
        let path = self.journal.clone().unwrap_or_else(|| {
            let mut name = self.file.clone().into_os_string();
            name.push(".import");
            name.into()
        });
        let mut journal = Journal::open(&path)?;
        if let Some(begun) = &journal.begun {
            self.check(begun, &plan, &journal)?;
        }
        let mut lane = Lane::new(invocation.url()?, self.give_up_after);
        let id = match &journal.begun {
            Some(begun) => LaneId::from(begun.lane),
            None => {
                let id = lane.open().await?;
                journal.begin(Begun {
                    messages: plan.messages,
                    content: plan.content,
                    topic: self.topic.clone(),
                    lane: id.into(),
                })?;
                id
            }
        };
        let bar = Bar::of(plan.messages, "messages stored");
        let stored = lane.store(id, &plan, |n| bar.show(n)).await;
        bar.end();
        let tally = stored.with_context(|| {
            format!(
                "{} is not imported whole; the same command goes on where this one has ended",
                self.file.display()
            )
        })?;
        self.report(invocation, &plan, &tally)
    }

    /// Checks that the import in the journal is this one.
    fn check(&self, begun: &Begun, plan: &Plan, journal: &Journal) -> anyhow::Result<()> {
        let (file, journal) = (self.file.display(), journal.path.display());
        if begun.topic != self.topic {
            let said = |topic: &Option<TopicName>| match topic {
                Some(topic) => format!("with --topic {topic}"),
                None => "without --topic".to_owned(),
            };
            bail!(
                "{journal} is of an import {}, and this one is {}: give it a --journal of its own, or go on as it was begun.",
                said(&begun.topic),
                said(&self.topic)
            );
        }
        if (begun.messages, begun.content) != (plan.messages, plan.content) {
            bail!(
                "{file} is not what it was when its import began, so it is unknown what of it is stored: put it back as it was, or give what it holds now a --journal of its own, which imports all of it."
            );
        }
        Ok(())
    }

    fn report(self, invocation: &Invocation, plan: &Plan, tally: &Tally) -> anyhow::Result<()> {
        let (file, messages) = (self.file.display().to_string(), plan.messages);
        let earlier = tally.earlier;
        let mut sentence = match earlier {
            0 => format!("{messages} messages of {file} are imported"),
            _ if earlier == messages => {
                format!(
                    "All {messages} messages of {file} were imported before, as the database says"
                )
            }
            _ => format!("{messages} messages of {file} are imported, {earlier} of them before"),
        };
        if tally.duplicates > 0 {
            sentence.push_str(&format!(
                "; {} of them were not stored, as their topic knows their ids or unique keys",
                tally.duplicates
            ));
        }
        sentence.push('.');
        let duplicates = tally.duplicates;
        let imported = Imported { file, messages, earlier, duplicates };
        invocation.output.report(&imported, &sentence)
    }
}
