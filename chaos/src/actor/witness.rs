//! The program that the real `rowmq-consumer exec` runs for each message, and `rowmq-consumer pool`
//! for many: it records each run.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rowmq_core::MsgId;
use serde::Deserialize;

use crate::record::{Ended, Event, Record};
use crate::tag::Tag;
use crate::task::Task;

/// Handles the one message on standard input, or in a pool all that come.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WitnessArgs {
    /// The folder of the run's records. Each run has a file of its own: no two processes write to
    /// one file.
    #[arg(long)]
    records: PathBuf,
    /// The message, as `rowmq-consumer exec` passes it.
    #[arg(long, env = "ROWMQ_MSG_ID")]
    msg_id: Option<MsgId>,
    /// Its delivery number.
    #[arg(long, env = "ROWMQ_DELIVERY_NO")]
    delivery_no: Option<u32>,
}

/// A message, as `rowmq-consumer pool` passes it.
#[derive(Deserialize)]
struct Frame {
    frame: u64,
    msg_id: MsgId,
    delivery_no: u32,
    body: String,
}

pub(crate) fn run(args: &WitnessArgs) -> anyhow::Result<ExitCode> {
    if let (Some(msg_id), Some(delivery_no)) = (args.msg_id, args.delivery_no) {
        args.handle(msg_id, delivery_no, || Ok(serde_json::from_reader(std::io::stdin())?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout();
    writeln!(out, r#"{{"rowmq_pool":1}}"#).context("Cannot say that it is ready")?;
    for line in std::io::stdin().lock().lines() {
        let frame: Frame = serde_json::from_str(&line.context("Cannot read a frame")?)?;
        let task = || Ok(serde_json::from_str(&frame.body)?);
        args.handle(frame.msg_id, frame.delivery_no, task)?;
        writeln!(out, r#"{{"frame":{},"verdict":"ack"}}"#, frame.frame).context("Cannot answer")?;
    }
    Ok(ExitCode::SUCCESS)
}

impl WitnessArgs {
    fn handle(
        &self,
        msg_id: MsgId,
        delivery_no: u32,
        task: impl FnOnce() -> anyhow::Result<Task>,
    ) -> anyhow::Result<()> {
        let tag = Tag::from(msg_id);
        let file = format!("witness-{}-{}-{delivery_no}.log", tag.sender, tag.seq);
        let record = Record::open(&self.records.join(file))?;
        record.note(&Event::Start { share: tag.into(), delivery_no, place: None })?;
        std::thread::sleep(Duration::from_millis(task()?.work_ms));
        record.note(&Event::End { share: tag.into(), delivery_no, ended: Ended::Done })?;
        Ok(())
    }
}
