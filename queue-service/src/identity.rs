//! The identity of this process, for people who look at the workers.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// Returns `host ip pid`, as the worker's row shows it. For people only: host names and process ids
/// recur, so no decision ever depends on it.
#[must_use]
pub fn client_id() -> String {
    format!("{} {} {}", host(), address(), std::process::id())
}

/// Returns this machine's own name.
#[must_use]
pub fn host() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if host.is_empty() { "localhost".to_owned() } else { host }
}

/// Returns the user who runs this program, by the environment: with sudo, the user who called it.
/// It proves nothing.
#[must_use]
pub fn person() -> String {
    let said = ["SUDO_USER", "USER", "LOGNAME"].into_iter().filter_map(std::env::var_os);
    let mut names = said.map(|name| name.to_string_lossy().into_owned());
    let uid = || format!("uid {}", rustix::process::getuid().as_raw());
    names.find(|name| !name.is_empty()).unwrap_or_else(uid)
}

/// Returns the address that the default route leaves from. Connecting a UDP socket sends nothing;
/// the peer is of a block reserved for documentation (RFC 5737).
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
