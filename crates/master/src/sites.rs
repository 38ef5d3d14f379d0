//! Where browsers find the master and the pages of tasks: at two origins of one host, unless somebody says otherwise.
//!
//! Pages of one origin can read what the others keep in the browser, and speak to their server with its session. Tasks
//! are other people's programs, so their pages are served on a port of their own.

/// The two origins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sites {
    encrypted: bool,
    master_port: u16,
    tasks_port: u16,
    /// The origin of the tasks' pages as browsers see it, if it is not this host and port.
    tasks_url: Option<String>,
}

impl Sites {
    pub(crate) fn new(encrypted: bool, master_port: u16, tasks_port: u16, tasks_url: Option<String>) -> Sites {
        Sites { encrypted, master_port, tasks_port, tasks_url }
    }

    /// Whether this process encrypts connections.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Whether this process listens on a port.
    pub(crate) fn listens_on(&self, port: u16) -> bool {
        [self.master_port, self.tasks_port].contains(&port)
    }

    /// The origin of the tasks' pages, for a browser that knows the master by this `Host`. `None` if that would be the
    /// master's own.
    pub(crate) fn tasks_origin(&self, host: &str) -> Option<String> {
        let origin = match &self.tasks_url {
            Some(url) => url.clone(),
            None => self.origin(host, self.tasks_port),
        };
        let authority = origin.split_once("://").map_or(origin.as_str(), |(_, authority)| authority);
        (!authority.eq_ignore_ascii_case(host)).then_some(origin)
    }

    /// The master's origin, for a browser that knows the tasks' pages by this `Host`. `None` if nobody can say.
    pub(crate) fn master_origin(&self, host: &str) -> Option<String> {
        self.tasks_url.is_none().then(|| self.origin(host, self.master_port))
    }

    fn origin(&self, host: &str, port: u16) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{}:{port}", name_of(host))
    }
}

/// The name or address in an authority such as `name:8080` or `[::1]:8080`, as it stands in another one.
fn name_of(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether a text is a scheme, a host and maybe a port, as browsers write an origin.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else { return false };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let named = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.chars().all(letters),
    };
    named && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// The name in an origin such as `https://name:8443`.
pub(crate) fn host_of_origin(origin: &str) -> &str {
    let authority = origin.split_once("://").map_or(origin, |(_, authority)| authority);
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// The port of an origin, said or by its scheme.
pub(crate) fn port_of_origin(origin: &str) -> Option<u16> {
    let (scheme, authority) = origin.split_once("://")?;
    match authority.trim_end_matches('/').rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => port.parse().ok(),
        _ if scheme == "https" => Some(443),
        _ => Some(80),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_origins_follow_the_name_by_which_the_browser_came() {
        let sites = Sites::new(false, 8080, 8081, None);
        for (host, name) in [("127.0.0.1:8080", "127.0.0.1"), ("node7", "node7"), ("[::1]:8080", "[::1]")] {
            assert_eq!(sites.tasks_origin(host), Some(format!("http://{name}:8081")));
            assert_eq!(sites.master_origin(host), Some(format!("http://{name}:8080")));
        }
        let encrypted = Sites::new(true, 443, 8443, None);
        assert_eq!(encrypted.tasks_origin("node7").unwrap(), "https://node7:8443");
    }

    #[test]
    fn behind_another_server_the_tasks_pages_are_where_it_says() {
        let sites = Sites::new(false, 8080, 8081, Some("https://tasks.example.org".to_owned()));
        assert_eq!(sites.tasks_origin("master.example.org").unwrap(), "https://tasks.example.org");
        assert_eq!(sites.tasks_origin("tasks.example.org"), None, "the two would be one origin");
        assert_eq!(sites.master_origin("tasks.example.org"), None);
    }

    #[test]
    fn origins_are_told_from_other_texts() {
        for origin in ["http://a", "https://a.example:8443", "http://[::1]:1/", "https://10.0.0.1", "http://[::1]"] {
            assert!(is_origin(origin), "{origin}");
        }
        for wrong in
            ["", "a", "ftp://a", "http://", "http://a/b", "http://a:b", "http://a:70000", "http://a b", "http://:1"]
        {
            assert!(!is_origin(wrong), "{wrong}");
        }
    }

    #[test]
    fn origins_have_ports() {
        for (origin, port) in [
            ("https://a", Some(443)),
            ("http://[::1]", Some(80)),
            ("http://[::1]:7", Some(7)),
            ("http://a:8/", Some(8)),
            ("", None),
        ] {
            assert_eq!(port_of_origin(origin), port, "{origin}");
        }
    }

    #[test]
    fn origins_have_hosts() {
        for (origin, host) in [("https://a:1", "a"), ("http://[::1]:1", "::1"), ("http://a.b", "a.b")] {
            assert_eq!(host_of_origin(origin), host);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_origin_or_not(text in "(https?://)?[a-z:\\[\\]0-9./]{0,20}") {
            if is_origin(&text) {
                prop_assert!(text.parse::<axum::http::Uri>().is_ok(), "{}", text);
            }
        }


        #[test]
        fn any_host_has_an_answer(host in ".{0,40}") {
            let sites = Sites::new(false, 8080, 8081, None);
            let _ = (sites.tasks_origin(&host), sites.master_origin(&host));
        }
    }
}
