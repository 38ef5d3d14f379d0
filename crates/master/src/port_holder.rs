//! Who has a port that the master wants: another master says so, and where it serves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use instep_api::cluster::MasterResponse;
use instep_api::error::PlainErrorBody;

/// How long another program may take to say who it is.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of its answer at most.
const LONGEST: u64 = 64 << 10;
/// How the answer begins that is given where only pages of tasks are served.
pub(crate) const ONLY_PAGES: &str = "only the pages of tasks are served on this port";

/// What is said at the port of the tasks' pages to somebody who asks for something else there.
pub(crate) fn only_pages(asked: &str, master: Option<String>) -> String {
    let hint = match master {
        Some(origin) => format!("the master is at {origin}"),
        None => "ask at the master's own address".to_owned(),
    };
    format!("{ONLY_PAGES}, not {asked}\nhint: {hint}")
}

/// The system's error for a port that is taken, with the master that has it where one can be found.
pub(crate) async fn named(address: SocketAddr, error: std::io::Error) -> std::io::Error {
    if error.kind() != std::io::ErrorKind::AddrInUse {
        return error;
    }
    let found = tokio::task::spawn_blocking(move || ask(address)).await;
    match found.ok().flatten() {
        Some(holder) => std::io::Error::new(error.kind(), format!("Address already in use: {holder}")),
        None => error,
    }
}

/// Asks what listens there. Who encrypts connections is not asked: nobody knows here which certificate to trust.
fn ask(address: SocketAddr) -> Option<String> {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let origin = format!("http://{}", SocketAddr::new(ip, address.port()));
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build();
    let mut answer = ureq::Agent::new_with_config(config).get(format!("{origin}/api/v1/master")).call().ok()?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(LONGEST).read_to_vec().ok()?;
    holder(&origin, status, &body)
}

/// Which master it is, by its answer.
fn holder(origin: &str, status: u16, body: &[u8]) -> Option<String> {
    match status {
        200 => {
            let found: MasterResponse = serde_json::from_slice(body).ok()?;
            (!found.cluster_id.is_empty()).then(|| format!("a master serves there, at {origin}"))
        }
        404 => {
            let found: PlainErrorBody = serde_json::from_slice(body).ok()?;
            let rest = found.message.strip_prefix(ONLY_PAGES)?;
            let master = rest.split_once("the master is at ").map(|(_, master)| format!(" at {master}"));
            Some(format!("the master{} serves the pages of tasks there", master.unwrap_or_default()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_master_is_called_one() {
        let said = |master| serde_json::json!({"message": only_pages("GET /", master)}).to_string();
        let pages = said(Some("http://localhost:8080".to_owned()));
        let named = "the master at http://localhost:8080 serves the pages of tasks there";
        assert_eq!(holder("http://x", 404, pages.as_bytes()).as_deref(), Some(named));
        let behind = said(None);
        let unnamed = "the master serves the pages of tasks there";
        assert_eq!(holder("http://x", 404, behind.as_bytes()).as_deref(), Some(unnamed));
        for (status, body) in [(200, "{}"), (200, "<html>"), (404, "{}"), (404, r#"{"message": "no"}"#), (500, &pages)]
        {
            assert_eq!(holder("http://x", status, body.as_bytes()), None, "{status} {body}");
        }
    }
}
