//! What is refused before any handler sees it: foreign hosts, foreign pages, callers without a valid token.
//!
//! A page in somebody's browser can send requests to 127.0.0.1, and with a host name that it points there (DNS
//! rebinding) even read the answers. Both carry a foreign name: in `Host`, or in `Origin`.

use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap, header};
use instep_api::audit::TokenKind;

use super::access::Access;
use super::cookies::CookieNames;
use super::credentials::{Credential, check_cookie_use, credential};
use super::failure::Failure;
use super::route::{Kind, Method, Route};
use super::serving::Ambiguous;
use crate::application::{Application, Known};
use crate::audit::Noted;
use crate::passwords::token_hash;
use crate::peer::Peer;

/// The name or address in an authority such as `name:8080` or `[::1]:8080`.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Marks requests that another master has passed on: it has looked at the host, by the names that it is asked under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vouched;

/// Refuses requests that were meant for another host, or sent by another host's page.
pub(crate) fn check_origin(
    extensions: &Extensions,
    headers: &HeaderMap,
    allowed_hosts: &[String],
) -> Result<(), Failure> {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts > 1 {
        return Err(Failure::invalid(format!(
            "the request has {hosts} Host headers, of which a proxy may believe another one\n\
             hint: send one Host header"
        )));
    }
    let Some(host) = text(header::HOST) else {
        return Err(Failure::invalid("the request has no Host header"));
    };
    let name = host_of(host);
    let ours = extensions.get::<Vouched>().is_some()
        || name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
    if !ours {
        let hint = "start the master with --allow-host to serve under this name";
        return Err(Failure::forbidden(format!("this master does not serve the host `{name}`\nhint: {hint}")));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let authority = origin.split_once("://").map_or(origin, |(_, authority)| authority);
        if !authority.eq_ignore_ascii_case(host) {
            return Err(Failure::forbidden(format!("pages of `{origin}` may not use this master")));
        }
    }
    Ok(())
}

/// Refuses requests whose end a proxy before the master may see elsewhere, and with it the beginning of the next one.
pub(crate) fn check_framing(extensions: &Extensions) -> Result<(), Failure> {
    if extensions.get::<Ambiguous>().is_none() {
        return Ok(());
    }
    Err(Failure::invalid(
        "a request on this connection has both Content-Length and Transfer-Encoding, or a length that cannot be read\n\
         hint: send one of them",
    ))
}

/// What a request shows that counts for a route. A cookie that another origin's page lets a browser send does not.
pub(crate) fn shown(headers: &HeaderMap, route: &Route, names: &CookieNames) -> Result<Credential, Failure> {
    if route.access == Access::TaskKey {
        return Ok(Credential::None);
    }
    // A websocket says as much as any change.
    let changes =
        route.method != Method::Get || route.kind == Kind::Socket || matches!(route.access, Access::Change(_));
    let found = credential(headers, names).and_then(|found| match &found {
        Credential::Cookie(_) => check_cookie_use(headers, changes).map(|()| found),
        Credential::Bearer(_) | Credential::None => Ok(found),
    });
    match (route.access, found) {
        // What strangers may do, those may do too whose cookie does not count.
        (Access::Open | Access::LocalOrUser | Access::Proxy, Err(_)) => Ok(Credential::None),
        (_, found) => found,
    }
}

/// Lets a caller through whose kind of token may call a route, and says who it is. Whether a thing that is to be
/// changed is theirs is asked later, when it is known which one it is.
pub(crate) async fn admit(
    application: &Application,
    access: Access,
    token: Option<&str>,
    peer: Peer,
    noted: &Noted,
) -> Result<Option<Known>, Failure> {
    let known = match token {
        Some(token) => application.session_of_token(token).await?,
        None => None,
    };
    noted.token(if token.is_some() { TokenKind::Invalid } else { TokenKind::None });
    if let Some(known) = &known {
        noted.session(&known.session);
    }
    let is_agent = match (access, &known, token) {
        (Access::Agent, None, Some(token)) => application.database.agent_token(token_hash(token)).await?.is_some(),
        _ => false,
    };
    if is_agent {
        noted.token(TokenKind::Agent);
    }
    let caller = known.as_ref().map(|known| (&known.session.user, &known.session.task));
    match (access, caller) {
        (Access::Open, _)
        | (Access::Read(_) | Access::Make | Access::Change(_) | Access::LocalOrUser | Access::Proxy, Some(_))
        | (Access::Login | Access::Share, Some((_, None))) => Ok(known),
        (Access::TaskKey, _) => Ok(None),
        (Access::LocalOrUser, None) if peer.is_local() => Ok(None),
        (Access::Agent, None) if is_agent => Ok(None),
        // It is let in for its own allocation alone.
        (Access::Agent, Some((_, Some(_)))) => Ok(known),
        (Access::Login | Access::Share | Access::Administrator, Some((_, Some(task)))) => {
            Err(Failure::forbidden(format!(
                "the token of task {} may not do this: it only reads, makes things, and changes what is the task's own\n\
                 hint: log in, and do it with the token of the login",
                task.task
            )))
        }
        (Access::Administrator | Access::Agent, Some((user, None))) if user.admin => Ok(known),
        (Access::Administrator | Access::Agent, Some((user, None))) => {
            Err(Failure::forbidden(format!("user '{}' is not an administrator", user.username)))
        }
        (
            Access::Read(_)
            | Access::Make
            | Access::Change(_)
            | Access::Login
            | Access::Share
            | Access::LocalOrUser
            | Access::Administrator
            | Access::Agent
            | Access::Proxy,
            None,
        ) => Err(Failure::unauthenticated()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_hosts_and_pages_are_refused() {
        let check = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            check_origin(&Extensions::new(), &headers, &["node7".to_owned()]).is_ok()
        };
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "10.0.0.1", "node7:80"] {
            assert!(check(host, None), "{host}");
            assert!(check(host, Some(&format!("http://{host}"))), "{host}");
        }
        assert!(!check("evil.example:8080", None));
        assert!(!check("127.0.0.1.evil.example", None));
        assert!(!check("127.0.0.1:8080", Some("http://evil.example")));
        assert!(!check("127.0.0.1:8080", Some("http://127.0.0.1:3000")));
        assert!(!check("127.0.0.1:8080", Some("null")));
        assert!(check_origin(&Extensions::new(), &HeaderMap::new(), &[]).is_err());
        let mut vouched = Extensions::new();
        vouched.insert(Vouched);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "standby.example:8080".parse().unwrap());
        assert!(check_origin(&vouched, &headers, &[]).is_ok(), "another master has looked at its name");
        headers.insert(header::ORIGIN, "http://evil.example".parse().unwrap());
        assert!(check_origin(&vouched, &headers, &[]).is_err(), "but a page is of one origin, whoever passes it on");
        let mut twice = HeaderMap::new();
        for host in ["localhost", "localhost"] {
            twice.append(header::HOST, host.parse().unwrap());
        }
        assert!(check_origin(&Extensions::new(), &twice, &[]).unwrap_err().message.contains("2 Host headers"));
    }
}
