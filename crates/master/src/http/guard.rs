//! What is refused before any handler sees it: foreign hosts, foreign pages, callers without a valid token.
//!
//! A page in somebody's browser can send requests to 127.0.0.1, and with a host name that it points there (DNS
//! rebinding) even read the answers. Both carry a foreign name: in `Host`, or in `Origin`.

use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap, header};
use instep_database::Session;

use super::failure::Failure;
use super::serving::Ambiguous;
use crate::application::Application;
use crate::passwords::token_hash;
use crate::peer::Peer;

/// Who may call a route, with which kind of token: a login's, a task's or an agent's.
///
/// Tasks speak for their owners, and for less: they read, make things, and change what is their own. What
/// administrators may do, the tasks of administrators may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, without a token.
    Open,
    /// Everybody on this machine, and users.
    LocalOrUser,
    /// Users and their tasks, about everybody's things: nothing is changed.
    Read,
    /// Users and their tasks: something new is made, which belongs to the user.
    Make,
    /// Users who have logged in, about themselves.
    Login,
    /// Whose thing it is, and administrators; the task that it belongs to.
    Change(Thing),
    /// Users who administrate and have logged in.
    Administrator,
    /// Agents by a token of their own, and users who administrate and have logged in.
    Agent,
}

/// What is changed, and where its name is: in the path, unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    Experiment,
    ExternalExperiment,
    Trial,
    Allocation,
    Checkpoint,
    /// A command or a TensorBoard.
    Command,
    Model,
    ModelVersion,
    Workspace,
    Project,
    Template,
    /// Oneself; never by a task.
    User,
    /// Several, or one that the body names: the handler asks [`Call::may_change`](super::call::Call) for each.
    InBody,
}

/// The name or address in an authority such as `name:8080` or `[::1]:8080`.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Refuses requests that were meant for another host, or sent by another host's page.
pub(crate) fn check_origin(headers: &HeaderMap, allowed_hosts: &[String]) -> Result<(), Failure> {
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
    let ours = name.parse::<IpAddr>().is_ok()
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

/// The token that a request carries: as a user's, as a task's, or in a cookie.
pub(crate) fn token_of(headers: &HeaderMap) -> Option<String> {
    let bearer = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        value.strip_prefix("Bearer ").map(|token| token.trim().to_owned())
    };
    let cookie = || {
        let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
        cookies.split(';').find_map(|cookie| cookie.trim().strip_prefix("auth=")).map(str::to_owned)
    };
    bearer("authorization").or_else(|| bearer("grpc-metadata-x-allocation-token")).or_else(cookie)
}

/// Lets a caller through whose kind of token may call a route, and says who it is. Whether a thing that is to be
/// changed is theirs is asked later, when it is known which one it is.
pub(crate) async fn admit(
    application: &Application,
    access: Access,
    token: Option<&str>,
    peer: Peer,
) -> Result<Option<Session>, Failure> {
    let session = match token {
        Some(token) => application.session_of_token(token).await?,
        None => None,
    };
    let is_agent = match (access, &session, token) {
        (Access::Agent, None, Some(token)) => application.database.agent_token_name(token_hash(token)).await?.is_some(),
        _ => false,
    };
    match (access, &session) {
        (Access::Open, _) | (Access::Read | Access::Make | Access::Change(_) | Access::LocalOrUser, Some(_)) => {
            Ok(session)
        }
        (Access::LocalOrUser, None) if peer.is_local() => Ok(None),
        (Access::Agent, None) if is_agent => Ok(None),
        (Access::Login | Access::Administrator | Access::Agent, Some(Session { task: Some(task), .. })) => {
            Err(Failure::forbidden(format!(
                "the token of task {} may not do this: it only reads, makes things, and changes what is the task's own\n\
                 hint: log in, and do it with the token of the login",
                task.task
            )))
        }
        (Access::Login, Some(_)) => Ok(session),
        (Access::Administrator | Access::Agent, Some(caller)) if caller.user.admin => Ok(session),
        (Access::Administrator | Access::Agent, Some(caller)) => {
            Err(Failure::forbidden(format!("user '{}' is not an administrator", caller.user.username)))
        }
        (
            Access::Read
            | Access::Make
            | Access::Change(_)
            | Access::Login
            | Access::LocalOrUser
            | Access::Administrator
            | Access::Agent,
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
            check_origin(&headers, &["node7".to_owned()]).is_ok()
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
        assert!(check_origin(&HeaderMap::new(), &[]).is_err());
        let mut twice = HeaderMap::new();
        for host in ["localhost", "localhost"] {
            twice.append(header::HOST, host.parse().unwrap());
        }
        assert!(check_origin(&twice, &[]).unwrap_err().message.contains("2 Host headers"));
    }
}
