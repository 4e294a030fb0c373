//! The provider of TLS.

/// Chooses the provider of TLS for clients that name none. It changes nothing if the process has
/// chosen one already.
pub(crate) fn choose_provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}
