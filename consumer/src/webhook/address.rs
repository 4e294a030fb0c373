//! Which addresses a webhook may connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;
use url::Host;

/// Why an address is refused, to follow "is".
pub(super) const REFUSED: &str = "not public and not allowed by the webhook's address policy";

/// Which addresses a webhook may connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Public addresses: none that is private, loopback, link-local, shared (carrier-grade NAT),
    /// multicast, unspecified, reserved or the metadata service of a cloud, and no IPv6 address
    /// that stands for such an IPv4 address.
    #[default]
    Public,
    /// These and no others, whatever they are: a host by its name with every address it has, or a
    /// network.
    Allow(Vec<Allowed>),
}

impl AddressPolicy {
    /// Whether `address`, which `host` resolved to, may be connected to.
    pub(super) fn permits(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Self::Public => is_public(address),
            Self::Allow(list) => list.iter().any(|allowed| match allowed {
                Allowed::Host(name) => name == without_final_dot(host),
                Allowed::Network(network) => network.contains(address),
            }),
        }
    }

    /// Whether an address that is written in the URL itself may be connected to.
    pub(super) fn permits_address(&self, address: IpAddr) -> bool {
        // No name is empty.
        self.permits("", address)
    }
}

/// One entry of [`AddressPolicy::Allow`], written as `hooks.example.com`, `10.1.2.3`, `::1` or
/// `10.1.0.0/16`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A host by its name, in lower case.
    Host(String),
    /// Addresses.
    Network(Network),
}

/// What is no [`Allowed`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no host name, address or network; write it like hooks.example.com, 10.1.2.3 or 10.1.0.0/16"
)]
pub struct InvalidAllowed {
    /// The text.
    pub text: String,
}

impl FromStr for Allowed {
    type Err = InvalidAllowed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidAllowed { text: text.to_owned() };
        if let Some((address, prefix)) = text.split_once('/') {
            let address = address.parse().map_err(|_| invalid())?;
            let prefix = prefix.parse().map_err(|_| invalid())?;
            return Network::new(address, prefix).map(Self::Network).ok_or_else(invalid);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Network(Network::single(address)));
        }
        // As the URL's own host is read, so that both are written alike.
        match Host::parse(text).map_err(|_| invalid())? {
            Host::Domain(name) => Ok(Self::Host(without_final_dot(&name).to_owned())),
            Host::Ipv4(address) => Ok(Self::Network(Network::single(address.into()))),
            Host::Ipv6(address) => Ok(Self::Network(Network::single(address.into()))),
        }
    }
}

fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// The addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of `address` whose first `prefix` bits count; `None` if there are not as many.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        (prefix <= width(address)).then_some(Self { address, prefix })
    }

    /// One address.
    #[must_use]
    pub fn single(address: IpAddr) -> Self {
        Self { address, prefix: width(address) }
    }

    /// Whether `address` is in it. An IPv4 address may be written as an IPv6 one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => has_prefix(address, network, self.prefix),
            (IpAddr::V6(network), IpAddr::V6(address))
                if has_prefix_v6(address, network, self.prefix) =>
            {
                true
            }
            (_, IpAddr::V6(address)) => {
                address.to_ipv4_mapped().is_some_and(|v4| self.contains(v4.into()))
            }
            (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn has_prefix(address: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> bool {
    let differing = address.to_bits() ^ network.to_bits();
    differing.checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
}

fn has_prefix_v6(address: Ipv6Addr, network: Ipv6Addr, prefix: u8) -> bool {
    let differing = address.to_bits() ^ network.to_bits();
    differing.checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
}

/// What is not globally reachable in the IANA IPv4 special-purpose address registry, with
/// multicast, what is reserved behind it, and one cloud's metadata address among public ones.
const NOT_PUBLIC_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // shared: carrier-grade NAT, Alibaba's metadata
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // Azure's host
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local: the metadata of most clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments: Oracle's metadata
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays, withdrawn
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3),      // multicast, reserved, broadcast
];

/// The same within global unicast (`2000::/3`), outside of which nothing is public.
const NOT_PUBLIC_V6: &[(Ipv6Addr, u8)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments: Teredo, ORCHID
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Global unicast.
const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        // An address that stands for an IPv4 address leads there.
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(v4) => is_public_v4(v4),
            None => {
                has_prefix_v6(address, GLOBAL_V6.0, GLOBAL_V6.1)
                    && !NOT_PUBLIC_V6
                        .iter()
                        .any(|(net, prefix)| has_prefix_v6(address, *net, *prefix))
            }
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !NOT_PUBLIC_V4.iter().any(|(net, prefix)| has_prefix(address, *net, *prefix))
}

/// The IPv4 address inside an IPv4-mapped, NAT64 (RFC 6052) or 6to4 (RFC 3056) address.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(v4(high, low))
        }
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        AddressPolicy::Public.permits("hooks.example.com", text.parse().unwrap())
    }

    #[test]
    fn no_address_inside_is_public_in_any_spelling() {
        let inside = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ];
        for text in inside {
            let v4: Ipv4Addr = text.parse().unwrap();
            let [a, b, c, d] = v4.octets();
            assert!(!public(text), "{text}");
            let spellings = [
                format!("::ffff:{text}"),
                format!("::{text}"),
                format!("64:ff9b::{text}"),
                format!("64:ff9b:1::{text}"),
                format!("2002:{:02x}{:02x}:{:02x}{:02x}::1", a, b, c, d),
            ];
            for spelling in spellings {
                assert!(!public(&spelling), "{spelling}");
            }
        }
        let inside_v6 = [
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2001:20::1",
            "2001:db8::1",
            "3fff::1",
            "100::1",
            "5f00::1",
            "4000::1",
        ];
        for text in inside_v6 {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_permitted() {
        let outside = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.1.1.1",
            "168.63.129.17",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.1.1",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:0808:0808::1",
        ];
        for text in outside {
            assert!(public(text), "{text}");
        }
    }

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
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("2606:4700::1".parse().unwrap()));
    }
}
