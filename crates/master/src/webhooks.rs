//! Tells webhooks what happened: signs it, sends it, and tries again when nobody answers.
//!
//! An address comes from a user, and the master can reach what the user cannot. So only `http` and `https` are spoken, no
//! redirect is followed, nothing of the answer but its status is shown, and names and numbers that lead to a private
//! network are refused unless an administrator allows them ([`is_public`]), each time that a name is looked up. Webhooks
//! take turns ([`turns`]), and what they look for in logs is looked for beside everything else ([`patterns`]).

mod patterns;
mod slack;
mod turns;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use instep_api::webhooks::Webhook;
use instep_api::wire::Timestamp;
use instep_database::WebhookEvent;
use ring::hmac;
use serde_json::Value;
use tokio::task::JoinSet;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use crate::application::Application;
use crate::clock::now;
use crate::random;
use turns::{EACH, Turns};

pub(crate) use patterns::{LogPatterns, LogQueue, lines_arrived, watch as watch_logs};

/// The trigger that looks for a pattern in logs.
pub(crate) const TASK_LOG: &str = "TRIGGER_TYPE_TASK_LOG";

/// How long after something was written the database is asked for what is to be told: once for all that was written meanwhile.
const GATHER: Duration = Duration::from_millis(50);
/// How often it is asked where nothing is written: for what is to be tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// How long one may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds before each further attempt; after the last the event is given up.
const AGAIN: [i64; 6] = [1, 5, 30, 120, 600, 3600];
/// Bytes of the address of a webhook.
const LONGEST_URL: usize = 2 << 10;
/// Addresses of one name that are looked at.
const MOST_ADDRESSES: usize = 16;

/// How webhooks are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookOptions {
    /// What bodies are signed with; without it they are not.
    pub signing_key: Option<String>,
    /// Whether they may be in private networks, or on this machine.
    pub private_addresses: bool,
}

/// Why something was not told.
#[derive(Debug)]
pub(crate) struct Untold {
    pub why: String,
    /// The receiver does not want it: trying again makes no sense.
    pub is_final: bool,
}

/// Whether an address is one of the public Internet.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => {
            let parts = address.segments();
            // Those for everybody, without the ranges that hold an IPv4 address, tunnel, or are for documentation.
            (parts[0] & 0xe000) == 0x2000
                && parts[0] != 0x2002
                && !(parts[0] == 0x2001 && parts[1] < 0x200)
                && !(parts[0] == 0x2001 && parts[1] == 0xdb8)
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_shared = first == 100 && (64..128).contains(&second);
    let is_for_tests = first == 198 && (second == 18 || second == 19);
    let is_special = first == 0 || first >= 240 || (first == 192 && second == 0 && third == 0);
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || is_shared
        || is_for_tests
        || is_special)
}

/// An address that is not spoken to.
#[derive(Debug, thiserror::Error)]
#[error("{0} is in a private network, which webhooks may not reach")]
struct PrivateAddress(IpAddr);

/// Whether trying again would lead to the same.
fn is_refused_address(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.get_ref().is_some_and(|cause| cause.is::<PrivateAddress>()))
}

/// Finds the addresses behind a name that may be spoken to.
#[derive(Debug)]
struct CarefulResolver {
    private_addresses: bool,
}

impl Resolver for CarefulResolver {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let parts = uri.scheme().zip(uri.authority());
        let address = parts.and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority));
        let address = address.ok_or_else(|| Error::BadUri(uri.to_string()))?;
        let found: Vec<SocketAddr> = address.to_socket_addrs()?.take(MOST_ADDRESSES).collect();
        let allowed = |address: &&SocketAddr| self.private_addresses || is_public(address.ip());
        let mut result = self.empty();
        found.iter().filter(allowed).for_each(|address| result.push(*address));
        match (result.is_empty(), found.first()) {
            (false, _) => Ok(result),
            (true, None) => Err(Error::HostNotFound),
            (true, Some(address)) => Err(Error::Io(io::Error::other(PrivateAddress(address.ip())))),
        }
    }
}

/// What is wrong with an address that somebody wants to be told at.
pub(crate) fn objection(url: &str) -> Option<String> {
    if url.len() > LONGEST_URL {
        return Some(format!("the url has {} bytes, the limit is {LONGEST_URL}", url.len()));
    }
    let parsed: Result<Uri, _> = url.parse();
    match parsed {
        Ok(uri)
            if matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|host| !host.is_empty()) =>
        {
            None
        }
        _ => Some(format!("valid url required, such as https://example.org/hook: `{url}` is none")),
    }
}

/// What a receiver gets: an event, or a message for Slack.
fn body(webhook: &Webhook, mut payload: Value, time: Timestamp) -> Value {
    if webhook.webhook_type == "WEBHOOK_TYPE_SLACK" {
        return slack::message(&payload);
    }
    payload["event_id"] = random::uuid().into();
    payload["timestamp"] = (time.0 / 1_000_000).into();
    payload
}

/// What proves that the master said it: a keyed hash of the time and the body.
fn signature(key: &str, seconds: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let tag = hmac::sign(&key, format!("{seconds},{body}").as_bytes());
    random::hexadecimal(tag.as_ref())
}

/// Tells one receiver; blocks for as long as that takes.
fn tell(options: &WebhookOptions, webhook: &Webhook, payload: Value) -> Result<(), Untold> {
    let time = now();
    let seconds = time.0 / 1_000_000;
    let body = body(webhook, payload, time).to_string();
    let config = Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("instep/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let resolver = CarefulResolver { private_addresses: options.private_addresses };
    let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
    let mut request = agent.post(&webhook.url).header("Content-Type", "application/json; charset=UTF-8");
    if let Some(key) = &options.signing_key {
        request = request
            .header("X-Determined-AI-Signature-Timestamp", seconds.to_string())
            .header("X-Determined-AI-Signature", signature(key, seconds, &body));
    }
    let answer =
        request.send(&body).map_err(|error| Untold { why: error.to_string(), is_final: is_refused_address(&error) })?;
    match answer.status().as_u16() {
        200..=299 => Ok(()),
        status => {
            Err(Untold { why: format!("it answered with status {status}"), is_final: (300..500).contains(&status) })
        }
    }
}

/// Tells one receiver now.
pub(crate) async fn tell_now(application: &Arc<Application>, webhook: Webhook, payload: Value) -> Result<(), Untold> {
    let options = application.webhooks.clone();
    let telling = tokio::task::spawn_blocking(move || tell(&options, &webhook, payload));
    telling.await.unwrap_or_else(|error| Err(Untold { why: error.to_string(), is_final: false }))
}

/// When an event is tried again that was not told; `None` if it is given up.
fn next_attempt(event: &WebhookEvent, untold: &Untold, time: Timestamp) -> Option<Timestamp> {
    let pause = AGAIN.get(usize::try_from(event.attempts).unwrap_or(usize::MAX)).filter(|_| !untold.is_final)?;
    Some(Timestamp(time.0 + pause * 1_000_000))
}

/// Whether the database is away. The log is told once for each outage: a server that is away for long must not push everything
/// else out of it.
#[derive(Default)]
struct Outage {
    lasts: bool,
}

impl Outage {
    /// Whether this is news.
    fn changes(&mut self, failed: bool) -> bool {
        std::mem::replace(&mut self.lasts, failed) != failed
    }
}

/// Tells everything that is to be told, for as long as the master runs.
pub(crate) async fn watch(application: Arc<Application>) {
    let mut turns = Turns::default();
    let mut telling: JoinSet<()> = JoinSet::new();
    let mut events: BTreeMap<tokio::task::Id, i64> = BTreeMap::new();
    let mut outage = Outage::default();
    loop {
        match application.database.due_webhook_events(EACH, now()).await {
            Ok(due) => {
                if outage.changes(false) {
                    tracing::info!("the database answers again");
                }
                for id in turns.begin(&due) {
                    let task = telling.spawn(settle(Arc::clone(&application), id));
                    events.insert(task.id(), id);
                }
            }
            Err(error) => {
                if outage.changes(true) {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    tracing::error!(%why, "the database does not answer");
                }
            }
        }
        tokio::select! {
            Some(ended) = telling.join_next_with_id() => {
                // A panic is in the log; the event is tried again.
                let task = ended.map_or_else(|error| error.id(), |(task, ())| task);
                if let Some(event) = events.remove(&task) {
                    turns.end(event);
                }
            }
            () = application.database.may_have_webhook_events() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(RETRY_PERIOD) => {}
        }
    }
}

async fn settle(application: Arc<Application>, id: i64) {
    let event = match application.database.webhook_event(id).await {
        Ok(Some(event)) => event,
        Ok(None) => return,
        Err(error) => return tracing::error!(%error, "cannot read what a webhook is to be told"),
    };
    let outcome = tell_now(&application, event.webhook.clone(), event.payload.clone()).await;
    let next = match &outcome {
        Ok(()) => None,
        Err(untold) => next_attempt(&event, untold, now()),
    };
    if let Err(Untold { why, .. }) = outcome {
        let (webhook, again) = (event.webhook.id, next.is_some());
        tracing::warn!(webhook, attempt = event.attempts + 1, again, why, "cannot tell a webhook");
    }
    if let Err(error) = application.database.settle_webhook_event(event.id, next).await {
        tracing::error!(%error, "cannot note that a webhook was told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_the_database_is_told_once() {
        let mut outage = Outage::default();
        let told: Vec<bool> =
            [false, true, true, true, false, false, true].map(|failed| outage.changes(failed)).into_iter().collect();
        assert_eq!(told, [false, true, false, false, true, false, true]);
    }

    #[test]
    fn private_networks_are_not_reached() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.1",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        let uri = "http://localhost:80/x".parse().unwrap();
        let resolve = |private_addresses| {
            CarefulResolver { private_addresses }.resolve(&uri, &Config::default(), NextTimeout::default())
        };
        assert!(resolve(true).is_ok());
        let refused = resolve(false).unwrap_err();
        assert!(refused.to_string().contains("private network") && is_refused_address(&refused));
        assert!(!is_refused_address(&Error::HostNotFound));
    }

    #[test]
    fn only_addresses_of_the_web_are_taken() {
        for url in ["", "ftp://example.org", "file:///etc/passwd", "/hook", "http://", "gopher://x"] {
            assert!(objection(url).is_some(), "{url}");
        }
        for url in ["http://example.org", "https://hooks.example.org:8443/a?b=c"] {
            assert_eq!(objection(url), None, "{url}");
        }
    }

    #[test]
    fn a_signature_is_what_determined_s_receivers_work_out() {
        // printf '1,{}' | openssl dgst -sha256 -hmac key
        let expected = "c36b4a0d73fd874169b3e158456333bc4f9aae77bf5969f9993285932b155c86";
        assert_eq!(signature("key", 1, "{}"), expected);
        assert_ne!(signature("key", 1, "{}"), signature("other", 1, "{}"));
    }
}
