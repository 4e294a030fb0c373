use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::arguments::Arguments;
use crate::report::Report;
use crate::{Case, Messages, Peer, Tally};

/// How long the runtime waits for the peer's tasks at the end.
const LEAVE: Duration = Duration::from_secs(1);

/// Runs the program of a peer: reads the arguments, measures, prints the report. On failure one
/// sentence goes to standard error, and the exit code is 1.
#[must_use]
pub fn run<P: Peer>() -> ExitCode {
    let command = Arguments::command().name(P::NAME).version(P::VERSION);
    let arguments = Arguments::from_arg_matches(&command.get_matches());
    let arguments = arguments.unwrap_or_else(|error| error.exit());
    match measure::<P>(&arguments).and_then(|report| report.print()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; then the error cannot be reported.
            drop(writeln!(std::io::stderr(), "peer-{}: {error:#}", P::NAME));
            ExitCode::FAILURE
        }
    }
}

fn measure<P: Peer>(arguments: &Arguments) -> anyhow::Result<Report> {
    let (url, case) = (&arguments.url, &arguments.case);
    let runtime = Runtime::new().context("Cannot start threads")?;
    let result = runtime.block_on(async {
        let peer = P::open(url, case).await?;
        match *case {
            Case::Enqueue { messages, body, producers, batch, seconds } => {
                let shares = Messages::new(messages, body)?.shares(producers);
                let (sent, time) = enqueue(&peer, shares, batch, seconds).await?;
                Ok(Report::new(&peer, case, sent, time))
            }
            Case::Fill { messages, body } => {
                let time = fill(&peer, Messages::new(messages, body)?).await?;
                Ok(Report::new(&peer, case, messages, time))
            }
            Case::Drain { messages, consumers, seconds, .. } => {
                let tally = Arc::new(Tally::new(messages));
                drain(&peer, consumers, seconds, &tally).await?;
                Ok(Report::of_drain(&peer, case, tally.drained()))
            }
        }
    });
    // The peer's workers never end by themselves: they end with the threads they run on.
    runtime.shutdown_timeout(LEAVE);
    if matches!(case, Case::Drain { .. }) {
        Runtime::new()?.block_on(P::end(url))?;
    }
    result
}

/// Sends the shares until all is sent or the time is up, and returns how many messages were sent.
async fn enqueue<P: Peer>(
    peer: &P,
    shares: Vec<Messages>,
    batch: u64,
    limit: Option<Duration>,
) -> anyhow::Result<(u64, Duration)> {
    let start = Instant::now();
    at_once(shares, peer, move |peer, producer, share| async move {
        let mut sent = 0;
        for batch in share.batches(batch) {
            if limit.is_some_and(|limit| start.elapsed() >= limit) {
                break;
            }
            sent += batch.count();
            peer.enqueue(producer, batch).await?;
        }
        Ok(sent)
    })
    .await
}

async fn fill<P: Peer>(peer: &P, messages: Messages) -> anyhow::Result<Duration> {
    let shares = messages.shares(Case::FILLERS);
    let fill = |peer: P, filler, share: Messages| async move {
        for batch in share.statements() {
            peer.insert(filler, batch).await?;
        }
        Ok(share.count())
    };
    let (_, time) = at_once(shares, peer, fill).await?;
    Ok(time)
}

/// Does `work` with all shares at once, and returns how many messages that were, and how long it
/// took.
async fn at_once<P: Peer, F>(
    shares: Vec<Messages>,
    peer: &P,
    work: impl Fn(P, usize, Messages) -> F,
) -> anyhow::Result<(u64, Duration)>
where
    F: Future<Output = anyhow::Result<u64>> + Send + 'static,
{
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (index, share) in shares.into_iter().enumerate() {
        running.spawn(work(peer.clone(), index, share));
    }
    let mut messages = 0;
    while let Some(ended) = running.join_next().await {
        messages += ended??;
    }
    Ok((messages, start.elapsed()))
}

/// Runs the consumers until `tally` has counted enough, the time is up, or all consumers have
/// ended. A consumer that ends by itself is a failure of the peer, and is only counted.
async fn drain<P: Peer>(
    peer: &P,
    consumers: u32,
    limit: Duration,
    tally: &Arc<Tally>,
) -> anyhow::Result<()> {
    let mut running = JoinSet::new();
    for _ in 0..consumers {
        let (peer, tally) = (peer.clone(), Arc::clone(tally));
        running.spawn(async move { peer.consume(tally).await });
    }
    let all_ended = async {
        while let Some(ended) = running.join_next().await {
            let reason = match ended {
                Ok(Ok(())) => anyhow::anyhow!("a consumer ended without an error"),
                Ok(Err(error)) => error,
                Err(error) => error.into(),
            };
            tally.ended(&reason);
        }
    };
    tokio::select! {
        () = tally.reached() => {}
        () = tokio::time::sleep(limit) => {}
        () = all_ended => {
            let drained = tally.drained();
            let reason = drained.ended.first().map_or("", String::as_str);
            anyhow::ensure!(drained.handled > 0, "All consumers ended at once: {reason}");
        }
    }
    Ok(())
}
