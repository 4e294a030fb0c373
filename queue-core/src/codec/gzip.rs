use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::{Codec, OverLimit};
use crate::model::BoxError;

/// Compresses, as HTTP's `gzip` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gzip {
    /// 1 (fast) to 9 (small).
    pub level: u32,
    /// Shorter bodies are left as they are: compressing them gains little.
    pub min_bytes: usize,
}

impl Default for Gzip {
    fn default() -> Self {
        Self { level: 6, min_bytes: 512 }
    }
}

impl Codec for Gzip {
    fn name(&self) -> &str {
        "gzip"
    }

    fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        if body.len() < self.min_bytes {
            return Ok(None);
        }
        let level = Compression::new(self.level.clamp(1, 9));
        let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 2), level);
        encoder.write_all(body)?;
        let encoded = encoder.finish()?;
        Ok((encoded.len() < body.len()).then_some(encoded))
    }

    fn decode(&self, body: &[u8], limit: usize) -> Result<Vec<u8>, BoxError> {
        let mut decoded = Vec::new();
        let most = u64::try_from(limit).unwrap_or(u64::MAX);
        // One more than the limit, to detect that there would be more.
        MultiGzDecoder::new(body).take(most.saturating_add(1)).read_to_end(&mut decoded)?;
        if decoded.len() > limit {
            return Err(OverLimit.into());
        }
        Ok(decoded)
    }
}
