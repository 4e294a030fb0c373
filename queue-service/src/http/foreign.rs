use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, header};

/// Returns whether a browser sends this request on behalf of a page of another origin. Current
/// browsers show this with `Sec-Fetch-Site` or `Origin`; other programs send neither.
#[must_use]
pub fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return true;
    }
    let host = text(header::HOST).unwrap_or_default();
    let is_ours = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host))
    };
    text(header::ORIGIN).is_some_and(|origin| !is_ours(origin))
}

/// Returns whether this `Host` is a loopback name. The owner of any other name can point it at this
/// machine; a page of that name would then count as one of this origin (DNS rebinding).
#[must_use]
pub fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:9480", "127.0.0.1:9480", "[::1]:9480", "127.1.2.3"] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in
            ["", "evil.example:9480", "localhost.evil.example", "10.0.0.1", "127.0.0.1.nip.io"]
        {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_origin_gives_itself_away() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (HeaderName::from_static(name), header::HeaderValue::from_static(value))
            });
            is_foreign(&pairs.collect())
        };
        let host = ("host", "queue.example");
        assert!(!of(&[host]));
        assert!(!of(&[host, ("sec-fetch-site", "none")]));
        assert!(!of(&[
            host,
            ("sec-fetch-site", "same-origin"),
            ("origin", "https://queue.example")
        ]));
        assert!(of(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(of(&[host, ("sec-fetch-site", "same-site")]));
        assert!(of(&[host, ("origin", "https://evil.example")]));
        assert!(of(&[host, ("origin", "null")]));
    }
}
