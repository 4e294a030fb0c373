//! Which addresses a webhook may connect to.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;
use url::Host;

use super::public::is_public;

/// Why an address is refused; it follows the word "is".
pub(super) const REFUSED: &str = "not public and not allowed by the webhook's address policy";

/// Which addresses a webhook may connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Public addresses: none that is private, loopback, link-local, shared (carrier-grade NAT),
    /// multicast, unspecified, reserved or the metadata service of a cloud, and no IPv6 address
    /// that stands for such an IPv4 address.
    #[default]
    Public,
    /// Only these, whether public or not: a host by its name with every address it has, or a
    /// network.
    Allow(Vec<Allowed>),
}

impl AddressPolicy {
    /// Returns whether `address`, which `host` resolved to, may be connected to.
    pub(super) fn permits(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Self::Public => is_public(address),
            Self::Allow(list) => list.iter().any(|allowed| match allowed {
                Allowed::Host(name) => name == without_final_dot(host),
                // An IPv4 address may be written as an IPv6 one.
                Allowed::Network(network) => {
                    network.contains(&address) || network.contains(&address.to_canonical())
                }
            }),
        }
    }

    /// Returns whether an address that is written in the URL itself may be connected to.
    pub(super) fn permits_address(&self, address: IpAddr) -> bool {
        // No host name is empty.
        self.permits("", address)
    }
}

/// One entry of [`AddressPolicy::Allow`], written as `hooks.example.com`, `10.1.2.3`, `::1` or
/// `10.1.0.0/16`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A host by its name, in lower case.
    Host(String),
    /// A network of addresses.
    Network(IpNet),
}

/// A text that is not a valid [`Allowed`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no host name, address or network; write it like \
     hooks.example.com, 10.1.2.3 or 10.1.0.0/16"
)]
pub struct InvalidAllowed {
    /// The text.
    pub text: String,
}

impl FromStr for Allowed {
    type Err = InvalidAllowed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidAllowed { text: text.to_owned() };
        if text.contains('/') {
            return text.parse().map(Self::Network).map_err(|_| invalid());
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        // Parsed as the URL's own host is, so that both are written alike.
        match Host::parse(text).map_err(|_| invalid())? {
            Host::Domain(name) => Ok(Self::Host(without_final_dot(&name).to_owned())),
            Host::Ipv4(address) => Ok(Self::Network(IpAddr::from(address).into())),
            Host::Ipv6(address) => Ok(Self::Network(IpAddr::from(address).into())),
        }
    }
}

fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allow_list_permits_what_it_names_and_nothing_else() {
        let list = ["Hooks.Example.com.", "10.1.2.3/16", "::1", "[fd00::5]"];
        let policy = AddressPolicy::Allow(list.iter().map(|text| text.parse().unwrap()).collect());
        let permits = |host: &str, ip: &str| policy.permits(host, ip.parse().unwrap());
        assert!(permits("hooks.example.com", "127.0.0.1"));
        assert!(permits("hooks.example.com.", "127.0.0.1"));
        assert!(!permits("example.com", "8.8.8.8"));
        assert!(!permits("evil.hooks.example.com", "8.8.8.8"));
        assert!(permits("x", "10.1.255.255"));
        assert!(permits("x", "::ffff:10.1.0.0"));
        assert!(!permits("x", "10.2.0.0"));
        assert!(permits("x", "::1"));
        assert!(permits("x", "fd00::5"));
        assert!(!permits("x", "::2"));
    }

    #[test]
    fn what_is_no_host_address_or_network_is_refused() {
        for text in ["", "a b", "10.0.0.0/33", "::/129", "10.0.0.0/", "x/8", "host:80", "http://x"]
        {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
        let all = "0.0.0.0/0".parse::<Allowed>().unwrap();
        let Allowed::Network(all) = all else { panic!("no network") };
        assert!(all.contains(&"255.1.2.3".parse::<IpAddr>().unwrap()));
        assert!(!all.contains(&"2606:4700::1".parse::<IpAddr>().unwrap()));
    }
}
