//! Replacing the list of hosts in a URL: `url::Url` knows only one host.

/// A URL split around its hosts: `mysql://user:password@` · `db1:3306,db2` · `/database?tls=…`.
#[derive(Clone, Copy)]
pub(super) struct Cut<'u> {
    before: &'u str,
    hosts: &'u str,
    after: &'u str,
}

impl<'u> Cut<'u> {
    /// Splits the URL; `None` if it has no `://`. In a password `/`, `?` and `#` must be encoded,
    /// but `@` and `,` need not be.
    pub(super) fn new(url: &'u str) -> Option<Self> {
        let start = url.find("://")? + "://".len();
        let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
        let hosts = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
        Some(Self { before: &url[..hosts], hosts: &url[hosts..end], after: &url[end..] })
    }

    /// Each host, with its port if it has one.
    pub(super) fn hosts(self) -> impl Iterator<Item = &'u str> {
        self.hosts.split(',').map(str::trim)
    }

    /// The hosts as written in the URL.
    pub(super) fn list(self) -> &'u str {
        self.hosts
    }

    /// The same URL with other hosts.
    pub(super) fn with(self, hosts: &str) -> String {
        format!("{}{hosts}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_cut_around_its_hosts_whatever_the_password_holds() {
        let cases: [(&str, &[&str]); 6] = [
            ("mysql://u:p@a:1,b:2,c/q?tls=disable", &["a:1", "b:2", "c"]),
            ("mysql://u:p@[::1]:3306,[fe80::2]/q", &["[::1]:3306", "[fe80::2]"]),
            ("mysql://u:p,@x@a,b/q", &["a", "b"]),
            ("mysql://a/q", &["a"]),
            ("mysql://u@a, b", &["a", "b"]),
            ("mysql://u@a,,b/q", &["a", "", "b"]),
        ];
        for (url, hosts) in cases {
            let cut = Cut::new(url).expect(url);
            assert_eq!(cut.hosts().collect::<Vec<_>>(), hosts, "{url}");
            assert_eq!(cut.with(cut.list()), url);
        }
        assert!(Cut::new("db1,db2").is_none());
    }
}
