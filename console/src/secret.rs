//! Random secrets, and what is kept of them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// A secret that somebody is handed: 256 bits by chance, as letters, digits, - and _.
pub(crate) fn new() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// What is kept of a secret. Two of these may be compared byte by byte: how long that takes tells
/// nothing of the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digested([u8; 32]);

impl Digested {
    pub(crate) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}
