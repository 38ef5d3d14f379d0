//! One of several masters of a database: it stands by, leads when nobody else does, and steps down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use instep_database::{AdvertisedEndpoint, Candidate, Database};
use tokio::sync::watch;

use super::site::{Bound, resolve};
use super::work::{Work, cluster};
use super::{Addresses, Options, ServeError, Signals, check_passwords, opening};
use crate::clock::now;
use crate::http::leader_proxy::{LeaderProxy, Port};
use crate::http::router::{router, task_router};
use crate::presence::Presence;
use crate::random;
use crate::standby::{self, Candidacy, Role, Term, Won};

/// How long requests may take to finish where another master waits to take over.
const HAND_OVER: Duration = Duration::from_millis(500);

/// Serves as one of several masters: passes requests on to the one that leads, until it leads itself. `led` is the
/// database then.
pub(super) async fn stand_by(
    options: &Options,
    candidate: Candidate,
    own: &str,
    led: &mut Option<Database>,
    announce: impl FnOnce(&Addresses),
) -> Result<(), ServeError> {
    let address = resolve(options).await?;
    // What is missing for an engine is missed now, and not when it takes over.
    cluster(options, own)?;
    let mut signals = Signals::catch()?;
    let bound = Bound::at(options, address).await?;
    let (addresses, site) = (bound.site.addresses(), bound.site.clone());
    let endpoint = AdvertisedEndpoint {
        address: own.to_owned(),
        tasks_address: at_port(own, site.task_address.port()),
        certificate: bound.certificate.clone(),
        peer_secret: random::token(),
        settings: options.agreed.to_text(),
    };
    let (role, watching) = watch::channel(Role::Nobody("this master has just started".to_owned()));
    let proxy = |port| LeaderProxy::new(port, &endpoint, site.allowed_hosts.clone(), watching.clone());
    let (master, tasks) = (proxy(Port::Master), proxy(Port::Tasks));
    candidate.announce(&Presence::serving(&addresses))?;
    let serving = bound.serve(master.router(), tasks.router());
    announce(&addresses);
    tracing::info!(address = %site.address, tasks = %site.task_address, scheme = site.scheme(), advertise = own,
        version = env!("CARGO_PKG_VERSION"), "serving, as one of several masters");
    let stop = Arc::new(AtomicBool::new(false));
    let holder = format!("{own}, pid {}", std::process::id());
    let candidacy = Candidacy {
        candidate,
        endpoint: endpoint.clone(),
        agreed: options.agreed.clone(),
        folders: options.shared_folders.clone(),
        opening: Box::new(move || opening(holder.clone())),
        role: role.clone(),
        stop: Arc::clone(&stop),
    };
    let winning = standby::start(candidacy).map_err(ServeError::System)?;
    let won = tokio::select! {
        () = signals.next() => None,
        won = winning => won.ok(),
    };
    stop.store(true, Ordering::Relaxed);
    let won = won.transpose()?;
    let Some(Won { database, has_followed }) = won else {
        tracing::info!("ending");
        serving.end(HAND_OVER).await;
        return Ok(());
    };
    *led = Some(database.clone());
    if let Err(error) = check_passwords(address, &database).await {
        // A cluster that works goes on; nobody logs in without a password from another machine anyway.
        if !has_followed {
            return Err(error);
        }
        tracing::error!("{error}: give each of them a password");
    }
    let term = Arc::new(Term { epoch: database.epoch(), since: now(), endpoint });
    let work = Work::begin(options, &database, &site, Some(Arc::clone(&term))).await?;
    master.open(router(&work.application), database.clone());
    tasks.open(task_router(&work.application), database.clone());
    tracing::info!(epoch = term.epoch, "leading");
    role.send_replace(Role::Leads(term));
    let stepped_down = tokio::select! {
        () = signals.next() => None,
        why = database.ended() => Some(why),
    };
    match &stepped_down {
        None => tracing::info!("ending: another master may take over"),
        Some(why) => tracing::warn!(why, "stepping down, and standing by again"),
    }
    role.send_replace(Role::Nobody("this master has stepped down".to_owned()));
    serving.end(HAND_OVER).await;
    work.end().await;
    // A signal that came meanwhile would be lost with this process: whoever stands by again begins anew.
    let is_to_end = tokio::time::timeout(Duration::ZERO, signals.next()).await.is_ok();
    let stepped_down = stepped_down.filter(|_| !is_to_end);
    stepped_down.map_or(Ok(()), |why| Err(ServeError::SteppedDown { why }))
}

/// An origin with another port.
fn at_port(origin: &str, port: u16) -> String {
    let (scheme, authority) = origin.split_once("://").unwrap_or(("http", origin));
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority.trim_end_matches('/'),
    };
    format!("{scheme}://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_tasks_are_at_the_same_host() {
        for (own, expected) in [
            ("http://a:8080", "http://a:8081"),
            ("https://a.example/", "https://a.example:8081"),
            ("http://[::1]:8080", "http://[::1]:8081"),
            ("http://[::1]", "http://[::1]:8081"),
        ] {
            assert_eq!(at_port(own, 8081), expected);
        }
    }
}
