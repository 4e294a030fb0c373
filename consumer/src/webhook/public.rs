//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The networks that the IANA IPv4 special-purpose address registry lists as not globally
/// reachable, the multicast and reserved networks after them, and the metadata address of a cloud
/// that lies among the public addresses.
const NOT_PUBLIC_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),        // this network
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // shared: carrier-grade NAT, Alibaba's metadata
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // Azure's host
    v4(169, 254, 0, 0, 16),   // link-local: the metadata of most clouds
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments: Oracle's metadata
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // 6to4 relays, withdrawn
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarks
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 3),      // multicast, reserved, broadcast
];

/// The same within global unicast (`2000::/3`), outside of which nothing is public.
const NOT_PUBLIC_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 23),     // protocol assignments: Teredo, ORCHID
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x3fff, 0, 20),     // documentation
];

/// Global unicast.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 3);

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

/// Returns whether the address can be reached from anywhere.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        // An address that embeds an IPv4 address leads to that one.
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(v4) => is_public_v4(v4),
            None => {
                GLOBAL_V6.contains(&address)
                    && !NOT_PUBLIC_V6.iter().any(|network| network.contains(&address))
            }
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !NOT_PUBLIC_V4.iter().any(|network| network.contains(&address))
}

/// Returns the IPv4 address inside an IPv4-mapped, NAT64 (RFC 6052) or 6to4 (RFC 3056) address.
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
        is_public(text.parse().unwrap())
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
}
