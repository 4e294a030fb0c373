//! Which codecs the commands encode with.

use clap::{Args, ValueEnum};
use rowmq_core::codec::{Encoding, Gzip};

/// How bodies are encoded.
#[derive(Debug, Args)]
pub(crate) struct EncodeArgs {
    /// Encode bodies, where that makes them smaller; consumers decode them by the header
    /// `content-encoding`.
    #[arg(long, value_name = "HOW", value_enum)]
    encode: Option<Encode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Encode {
    /// Compress those of 512 bytes and more.
    Gzip,
}

impl EncodeArgs {
    pub(crate) fn encoding(&self) -> Encoding {
        match self.encode {
            Some(Encode::Gzip) => Encoding::none().then(Gzip::default()),
            None => Encoding::none(),
        }
    }
}
