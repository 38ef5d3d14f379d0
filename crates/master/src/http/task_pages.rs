//! What tasks serve, for browsers: at an origin of its own, so that a page of a task reaches nothing of the master's.
//!
//! ```text
//! browser ── GET /proxy/TASK/… with the session's cookie ──▶ master
//!         ◀─ 303 to the tasks' origin, with a ticket ───────
//!         ── GET /proxy/TASK/…?instep_ticket=… ────────────▶ tasks' pages
//!         ◀─ 303 to the same without it, with a key ────────   (a cookie for /proxy/TASK/)
//!         ── GET /proxy/TASK/… with the key ───────────────▶ tasks' pages ──▶ the task
//! ```
//!
//! At the master's own address only programs get what a task serves, which show a token in a header. A browser that
//! has no session yet is sent to the page where one signs in, which leads back. What a configuration says is for
//! everybody (`unauthenticated`) is passed on there without a token, and never at the tasks' origin: a page of anybody's
//! would be beside those that are open there.
//!
//! `TASK:PORT` in place of `TASK` is a port that the task's configuration names. Bytes instead of HTTP (`proxy_tcp`, shells)
//! are for programs alone, in a [`tunnel`].
//!
//! The pages of all tasks share that one origin, so a page of one can use another that is open in the same browser. Of a
//! notebook that would be to run programs as its owner: it opens for its owner and administrators alone, and not in a
//! session that has opened a page of somebody else's task, nor the other way round.

use std::time::Instant;

use axum::http::{HeaderMap, Uri, header};
use instep_api::error::Code;
use instep_api::link::Protocol;
use instep_database::{CommandRow, Subject};

use super::call::Call;
use super::cookies::{path_of, values};
use super::credentials::{check_cookie_use, is_navigation};
use super::failure::Failure;
use super::pages;
use super::proxy::{self, Passage, asks_for_websocket};
use super::reply::{Redirect, Reply};
use super::route::Method;
use super::task_grants::{check_opens, granted, is_for_everybody, row_of};
use super::tunnel;
use crate::application::Application;
use crate::cluster::{Absent, Kind, Serving, Target};
use crate::passwords::token_hash;
use crate::random;
use crate::sync::lock;
use crate::task_access::{Grant, Page};

/// The parameter with which a ticket travels.
pub(crate) const TICKET: &str = "instep_ticket";

/// `/proxy/TASK/…` at the master's own address.
pub(crate) async fn at_master(call: Call) -> Result<Reply, Failure> {
    let target = target_of(&call)?;
    if call.token.is_none() {
        return without_token(call, target).await;
    }
    if let (Some(token), Some(_), false) = (&call.token, &call.user, call.by_cookie) {
        let session = token_hash(token);
        let wanted = target.clone();
        let found = call.application.cluster.read(move |state| state.serving(&wanted)).await?;
        let tcp = found.is_some_and(|serving| serving.service.protocol == Protocol::Tcp);
        check_opens(&call.application, &session, &target, tcp).await?;
        // Only whoever may use it keeps it from being idle.
        let serving = serving(&call, &target).await?;
        return pass(call, Passage { target, session: Some(session), serving, sandboxed: true }).await;
    }
    if call.route.method != Method::Get {
        let what = format!("the pages of task {target} are at another address than the master's");
        return Err(Failure::forbidden(format!("{what}\nhint: open {} in the browser", path_of(&target.to_string()))));
    }
    let Some(token) = call.token.as_ref().filter(|_| call.user.is_some()) else {
        return Ok(to_waiting_page(&call.uri, &target));
    };
    if call.headers.contains_key("sec-fetch-dest") && !is_navigation(&call.headers) {
        return Err(Failure::forbidden(format!("the pages of task {target} are not for other pages")));
    }
    match serving(&call, &target).await {
        Ok(serving) if serving.service.protocol == Protocol::Tcp => return Err(tunnel::no_pages(&target)),
        Ok(_) => {}
        Err(failure) => {
            return if is_coming(&call, &target).await? {
                Ok(to_waiting_page(&call.uri, &target))
            } else {
                Err(failure)
            };
        }
    }
    let kind = check_opens(&call.application, &token_hash(token), &target, false).await?;
    check_mixing(&call.application, &token_hash(token), kind)?;
    let Some(origin) = call.application.sites.tasks_origin(host(&call.headers)) else {
        let what = "the pages of tasks have the address of the master itself, where they could use its session";
        let hint = "let --proxy-url name another host or port, which leads to --proxy-port";
        return Err(Failure::new(Code::FailedPrecondition, format!("{what}\nhint: {hint}")));
    };
    let (ticket, grant) = (random::token(), Grant { task: target.to_string(), session: token_hash(token) });
    lock(&call.application.task_access).issue(&ticket, grant, Instant::now());
    let (page, _) = without_ticket(&call.uri);
    let joint = if page.contains('?') { '&' } else { '?' };
    let location = format!("{origin}{page}{joint}{TICKET}={ticket}");
    Ok(Reply::Redirect(Redirect { location, cookie: None }))
}

/// Passes on what is for everybody. Nobody without a token learns which others there are.
async fn without_token(call: Call, target: Target) -> Result<Reply, Failure> {
    let wanted = target.clone();
    let found = call.application.cluster.read(move |state| state.serving(&wanted)).await?;
    let found = match found.filter(|serving| serving.unauthenticated) {
        Some(serving) => is_for_everybody(&call.application, &target).await?.then_some(serving),
        None => None,
    };
    match found {
        Some(serving) => pass(call, Passage { target, session: None, serving, sandboxed: true }).await,
        None if call.route.method == Method::Get && is_navigation(&call.headers) => {
            Ok(to_waiting_page(&call.uri, &target))
        }
        None => Err(Failure::unauthenticated()),
    }
}

/// Passes a request on, in the way that the task speaks.
async fn pass(call: Call, passage: Passage) -> Result<Reply, Failure> {
    match passage.serving.service.protocol {
        Protocol::Http => proxy::pass(call, passage).await,
        Protocol::Tcp => tunnel::open(call, passage).await,
    }
}

/// `/proxy/TASK/…` at the origin of the tasks' pages.
pub(crate) async fn at_own_origin(call: Call) -> Result<Reply, Failure> {
    let target = target_of(&call)?;
    let task = target.to_string();
    let reads = call.route.method == Method::Get;
    let (page, ticket) = without_ticket(&call.uri);
    if let Some(ticket) = ticket.filter(|_| reads) {
        return exchanged(&call, &target, page, &ticket).await;
    }
    let Some(session) = session_of_key(&call, &target).await? else {
        let master = call.application.sites.master_origin(host(&call.headers));
        return match master.filter(|_| reads && is_navigation(&call.headers)) {
            Some(origin) => Ok(Reply::Redirect(Redirect { location: format!("{origin}{page}"), cookie: None })),
            None => {
                let what = "this browser has no key for the pages of the task, or the session has ended";
                let hint = format!("open {} at the master's address", path_of(&task));
                Err(Failure::new(Code::Unauthenticated, format!("{what}\nhint: {hint}")))
            }
        };
    };
    let socket = asks_for_websocket(&call.headers);
    if socket && !call.headers.contains_key(header::ORIGIN) {
        return Err(Failure::forbidden("a websocket of a task's page needs the header Origin, as browsers send it"));
    }
    // A link from anywhere may lead here; a page of elsewhere may do nothing else.
    if socket || !reads || !is_navigation(&call.headers) {
        check_cookie_use(&call.headers, socket || !reads)?;
    }
    let serving = serving(&call, &target).await?;
    if serving.service.protocol == Protocol::Tcp {
        return Err(tunnel::no_pages(&target));
    }
    proxy::pass(call, Passage { target, session: Some(session), serving, sandboxed: false }).await
}

/// Gives a key for a ticket.
async fn exchanged(call: &Call, target: &Target, page: String, ticket: &str) -> Result<Reply, Failure> {
    let task = &target.to_string();
    let grant = lock(&call.application.task_access).redeem(ticket, task, Instant::now());
    let opens = match &grant {
        Some(grant) => granted(&call.application, &grant.session, target, false).await?,
        None => None,
    };
    let (Some(grant), Some(kind)) = (grant, opens) else {
        let what = format!("this link to task {task} was used before, or has expired");
        let hint = format!("open {} at the master's address once more", path_of(task));
        return Err(Failure::forbidden(format!("{what}\nhint: {hint}")));
    };
    check_mixing(&call.application, &grant.session, kind)?;
    let key = random::token();
    lock(&call.application.task_access).admit(&key, grant, kind, Instant::now());
    let cookie = Some(call.application.cookies.set_key(&key, task));
    Ok(Reply::Redirect(Redirect { location: page, cookie }))
}

/// The session, by the hash of its token, whose key for this task a request shows; if it lasts.
async fn session_of_key(call: &Call, target: &Target) -> Result<Option<String>, Failure> {
    let task = &target.to_string();
    let keys = values(&call.headers, &call.application.cookies.key);
    let found: Vec<Grant> = {
        let access = lock(&call.application.task_access);
        keys.into_iter().filter_map(|key| access.grant(key, task).cloned()).collect()
    };
    for grant in found {
        if granted(&call.application, &grant.session, target, false).await?.is_some() {
            return Ok(Some(grant.session));
        }
        let lasts = call.application.session_of_hash(grant.session.clone()).await?.is_some();
        let mut access = lock(&call.application.task_access);
        if lasts {
            access.revoke(&grant);
        } else {
            access.end_session(&grant.session);
        }
    }
    Ok(None)
}

/// Refuses a page that must not be in one browser with others that this session has opened.
fn check_mixing(application: &Application, session: &str, page: Page) -> Result<(), Failure> {
    if !lock(&application.task_access).mixes(session, page) {
        return Ok(());
    }
    let what = match page {
        Page::Notebook => {
            "this session has opened pages of other users' tasks, or of ports that tasks name, which could use your notebook"
        }
        Page::Own | Page::Foreign => "this session has opened a notebook, which this page could use",
    };
    let hint = "use another browser or a private window, or close those pages and sign in again";
    Err(Failure::new(Code::FailedPrecondition, format!("{what}\nhint: {hint}")))
}

/// `/det/interactive/TASK/…`: the page that waits for a task and leads to its own. If another origin's page leads there it
/// asks first, because the pages of tasks share an origin: one of them could open all the others, and use them.
pub(crate) async fn waiting_page(call: Call) -> Result<Reply, Failure> {
    let led = call.headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    let foreign = led.is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if foreign && call.query.text("ask").is_none() {
        let joint = if call.uri.query().is_some() { '&' } else { '?' };
        let page = call.uri.path_and_query().map_or("/", |page| page.as_str());
        return Ok(Reply::Redirect(Redirect { location: format!("{page}{joint}ask=true"), cookie: None }));
    }
    pages::page(call).await
}

/// The task of the address. Its name stands in addresses and cookies that we write.
fn target_of(call: &Call) -> Result<Target, Failure> {
    let text = call.part("id");
    Target::parse(text).ok_or_else(|| Failure::not_found(format!("task {text:?} not found")))
}

/// Where a task serves.
async fn serving(call: &Call, target: &Target) -> Result<Serving, Failure> {
    let task = &target.task;
    if let Some(serving) = call.application.cluster.use_service(target.clone()).await? {
        return Ok(serving);
    }
    let row = row_of(&call.application, task).await?;
    if row.as_ref().is_some_and(|row| row.ended_at.is_some()) {
        lock(&call.application.task_access).end_task(task);
        return Err(Failure::not_found(format!("task {task} has ended")));
    }
    let known = match &row {
        Some(_) => true,
        None => call.application.database.ownership(Subject::Task(task.clone())).await?.is_some(),
    };
    if !known {
        return Err(Failure::not_found(format!("task '{task}' not found")));
    }
    let wanted = target.clone();
    Err(match (call.application.cluster.read(move |state| state.absent(&wanted)).await?, target.port) {
        (Absent::Unnamed, Some(port)) => {
            let hint = format!("name it in its configuration: environment.proxy_ports: [{{proxy_port: {port}}}]");
            Failure::not_found(format!("task {task} lets nobody reach its port {port}\nhint: {hint}"))
        }
        (Absent::NotRunning, _) if row.is_none() => {
            Failure::new(Code::Unavailable, format!("task {task} does not run now"))
        }
        _ => Failure::new(Code::Unavailable, format!("task {task} is not ready yet")),
    })
}

/// Whether a task that does not serve yet is one that will.
async fn is_coming(call: &Call, target: &Target) -> Result<bool, Failure> {
    let row = row_of(&call.application, &target.task).await?;
    let has_pages = |row: CommandRow| row.ended_at.is_none() && Kind::of(&row.kind).is_some_and(Kind::has_pages);
    Ok(target.port.is_none() && row.is_some_and(has_pages))
}

/// The page where somebody signs in and waits for a task, and which leads back.
fn to_waiting_page(uri: &Uri, target: &Target) -> Reply {
    let (page, _) = without_ticket(uri);
    let task = &target.task;
    let location = format!("/det/interactive/{task}/page?to={}", encoded(&page));
    Reply::Redirect(Redirect { location, cookie: None })
}

fn host(headers: &HeaderMap) -> &str {
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// The path and the query of an address without its ticket, and the ticket.
pub(crate) fn without_ticket(uri: &Uri) -> (String, Option<String>) {
    let is_ticket = |pair: &&str| pair.split('=').next() == Some(TICKET);
    let pairs = || uri.query().unwrap_or_default().split('&');
    let rest: Vec<&str> = pairs().filter(|pair| !is_ticket(pair)).collect();
    let ticket = pairs().find(is_ticket).map(|pair| pair.split_once('=').map_or("", |(_, value)| value).to_owned());
    let query = rest.join("&");
    let page = if query.is_empty() { uri.path().to_owned() } else { format!("{}?{query}", uri.path()) };
    (page, ticket)
}

/// A text as the value of a parameter.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::call::decoded;
    use super::*;

    #[test]
    fn a_ticket_is_taken_out_of_the_address() {
        for (address, page, ticket) in [
            ("/proxy/t/", "/proxy/t/", None),
            ("/proxy/t/?a=1&b", "/proxy/t/?a=1&b", None),
            ("/proxy/t/?instep_ticket=x", "/proxy/t/", Some("x")),
            ("/proxy/t/c?a=1&instep_ticket=x&b=2", "/proxy/t/c?a=1&b=2", Some("x")),
            ("/proxy/t/?instep_ticket=x&instep_ticket=y", "/proxy/t/", Some("x")),
            ("/proxy/t/?instep_ticket", "/proxy/t/", Some("")),
            ("/proxy/t/?instep_tickets=x", "/proxy/t/?instep_tickets=x", None),
        ] {
            let found = without_ticket(&address.parse().unwrap());
            assert_eq!(found, (page.to_owned(), ticket.map(str::to_owned)), "{address}");
        }
    }

    proptest! {
        #[test]
        fn what_is_passed_in_a_parameter_comes_back(text in ".{0,40}") {
            let written = encoded(&text);
            prop_assert!(written.is_ascii() && !written.contains(['&', '#', '=', ' ']), "{}", written);
            prop_assert_eq!(decoded(&written), text);
        }

        #[test]
        fn no_ticket_is_passed_on(query in "([a-z_]{0,5}|instep_ticket|=|&|%20){0,8}") {
            let Ok(uri) = format!("/proxy/t/?{query}").parse::<Uri>() else { return Ok(()) };
            let (page, _) = without_ticket(&uri);
            prop_assert_eq!(without_ticket(&page.parse().unwrap()).1, None);
        }
    }
}
