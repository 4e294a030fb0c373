//! The program that the real `rowmq-consumer exec` runs for each message: it records the run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rowmq_core::MsgId;

use crate::record::{Ended, Event, Record};
use crate::tag::Tag;
use crate::task::Task;

/// Handles the one message on standard input.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WitnessArgs {
    /// The folder of the run's records. Each process has a file of its own: no two write to one
    /// file.
    #[arg(long)]
    records: PathBuf,
    /// The message, as `rowmq-consumer exec` passes it.
    #[arg(long, env = "ROWMQ_MSG_ID")]
    msg_id: MsgId,
    /// Its delivery number.
    #[arg(long, env = "ROWMQ_DELIVERY_NO")]
    delivery_no: u32,
}

pub(crate) fn run(args: &WitnessArgs) -> anyhow::Result<ExitCode> {
    let tag = Tag::from(args.msg_id);
    let delivery_no = args.delivery_no;
    let file = format!("witness-{}-{}-{delivery_no}.log", tag.sender, tag.seq);
    let record = Record::open(&args.records.join(file))?;
    record.note(&Event::Start { share: tag.into(), delivery_no, place: None })?;
    let task: Task = serde_json::from_reader(std::io::stdin())?;
    std::thread::sleep(Duration::from_millis(task.work_ms));
    record.note(&Event::End { share: tag.into(), delivery_no, ended: Ended::Done })?;
    Ok(ExitCode::SUCCESS)
}
