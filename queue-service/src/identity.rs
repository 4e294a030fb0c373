//! Who this process is, for people who look at the workers.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// `host ip pid`, as the worker's row shows it. For people only: host names and process ids recur,
/// so nothing is ever decided by it.
#[must_use]
pub fn client_id() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = if host.is_empty() { "localhost" } else { host.as_str() };
    format!("{host} {} {}", address(), std::process::id())
}

/// The address that the default route leaves from. Connecting a UDP socket sends nothing; the
/// peer is of a block reserved for documentation (RFC 5737).
fn address() -> IpAddr {
    let routed = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        socket.local_addr().ok()
    };
    routed().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_host_address_and_process() {
        let id = client_id();
        let parts: Vec<_> = id.split(' ').collect();
        assert_eq!(parts.len(), 3, "{id}");
        assert!(parts[1].parse::<IpAddr>().is_ok(), "{id}");
        assert_eq!(parts[2], std::process::id().to_string());
    }
}
