//! `ops/book`: builds the book of `docs/`.

use std::path::PathBuf;

use clap::Parser;
use tidy::tree::root;

/// Builds the documentation as a book: HTML pages with a search.
#[derive(Debug, Parser)]
#[command(name = "ops/book", version)]
struct Arguments {
    /// Where to; what is there is replaced [default: target/book].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let out = Arguments::parse().out.unwrap_or_else(|| root().join("target/book"));
    tidy::book::build(&out)
}
