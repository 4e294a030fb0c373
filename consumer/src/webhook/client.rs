//! The HTTP client: which addresses, which certificates, no redirects, no proxy.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use url::Host;

use super::address::{AddressPolicy, REFUSED};
use super::{WebhookError, WebhookOptions};

/// Builds a client that can reach nothing but what the options permit.
pub(super) fn build(options: &WebhookOptions, origin: &str) -> Result<Client, WebhookError> {
    let roots = match options.url.scheme() {
        // A machine that has no certificates can still use plain http.
        "http" => RootCertStore::empty(),
        "https" => platform_roots()?,
        other => return Err(WebhookError::Scheme { scheme: other.to_owned() }),
    };
    // An address written in the URL is never resolved, so the resolver cannot refuse it.
    if let Some(address) = written_address(options.url.host())
        && !options.allow.permits_address(address)
    {
        return Err(WebhookError::Refused { origin: origin.to_owned(), address });
    }
    let failed = |reason: String| WebhookError::Client { reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(GuardedResolver { policy: options.allow.clone() }))
        .redirect(Policy::none())
        .no_proxy()
        .user_agent(concat!("rowmq-consumer/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| failed(root_cause(&error.without_url())))
}

/// Returns the innermost error: the outer ones only say that a request failed.
pub(super) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn platform_roots() -> Result<RootCertStore, WebhookError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable > 0 {
        return Ok(roots);
    }
    let reason =
        found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
    Err(WebhookError::NoAuthorities { reason })
}

fn written_address(host: Option<Host<&str>>) -> Option<IpAddr> {
    match host? {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
    }
}

/// Resolves names as the platform does, but returns only permitted addresses.
#[derive(Debug)]
struct GuardedResolver {
    policy: AddressPolicy,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.policy.clone();
        Box::pin(async move {
            let host = name.as_str();
            // Port 0 stands for the port of the URL.
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            let permitted: Vec<SocketAddr> =
                found.iter().copied().filter(|at| policy.permits(host, at.ip())).collect();
            if let (Some(refused), true) = (found.first(), permitted.is_empty()) {
                return Err(AddressRefused { host: host.to_owned(), address: refused.ip() }.into());
            }
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

#[derive(Debug, Error)]
#[error("{host} has the address {address}, which is {REFUSED}")]
struct AddressRefused {
    host: String,
    address: IpAddr,
}
