use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

pub(super) fn has_prefix(address: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> bool {
    let differing = address.to_bits() ^ network.to_bits();
    differing.checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
}

pub(super) fn has_prefix_v6(address: Ipv6Addr, network: Ipv6Addr, prefix: u8) -> bool {
    let differing = address.to_bits() ^ network.to_bits();
    differing.checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
}
