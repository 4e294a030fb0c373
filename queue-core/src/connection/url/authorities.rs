//! The certificate authorities of servers whose certificates no public authority has signed.

use std::fs;

use mysql_async::SslOpts;

use super::invalid;
use crate::model::Result;

/// The line before each certificate of a PEM file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The authorities of a file, and no others. A managed service supplies such a file for its
/// servers.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authorities(Vec<u8>);

impl Authorities {
    /// Reads the file now, so that a wrong path is reported at the start and not at a reconnect.
    pub(super) fn of_file(path: &str) -> Result<Self> {
        let refused = |reason: &str| invalid(&format!("ca: {path}: {reason}"));
        let pem = fs::read(path).map_err(|error| refused(&error.to_string()))?;
        if !pem.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE) {
            return Err(refused("it has no certificate in PEM form"));
        }
        Ok(Self(pem))
    }

    /// The options of a connection that trusts only these.
    pub(super) fn trusted(&self) -> SslOpts {
        SslOpts::default()
            .with_root_certs(vec![self.0.clone().into()])
            .with_disable_built_in_roots(true)
    }
}
