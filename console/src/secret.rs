//! Random secrets, and their digests.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// A new secret: 256 random bits, as letters, digits, - and _.
pub(crate) fn new() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// The digest of a secret. Digests may be compared byte by byte: the time that takes reveals
/// nothing about the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digested([u8; 32]);

impl Digested {
    pub(crate) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}
