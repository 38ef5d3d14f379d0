//! The client itself: one request after the other, over connections that stay open.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use instep_api::error::{ErrorBody, PlainErrorBody};
use instep_api::users::{LoginRequest, LoginResponse, User, UserResponse};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{Method, Request, Response};
use ureq::unversioned::transport::{Connector, DefaultConnector};
use ureq::{Agent, Body};

use crate::address::{Address, Addresses};
use crate::error::{Error, Result};
use crate::login::Credentials;
use crate::masters::Masters;
use crate::resolver::NameResolver;
use crate::retry::Backoff;
use crate::stream::Lines;
use crate::tls::trusted;
use crate::watch::Watch;

/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(10);
/// Until a request is sent, and until its answer is there: a whole list, or a file's beginning.
const ANSWER: Duration = Duration::from_secs(120);
/// Until a master has said how it is.
const HEALTH: Duration = Duration::from_secs(5);
/// Bytes of an answer at most, streams and files aside.
const LARGEST_ANSWER: u64 = 256 << 20;

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the master is, or several of which any answers for the cluster.
    pub addresses: Addresses,
    /// A file of PEM certificates to trust instead of the public ones.
    pub certificates: Option<PathBuf>,
    /// For how long a call is tried again when the master cannot be reached or is unavailable.
    pub timeout: Duration,
}

impl Settings {
    /// The usual ones: public certificates, ten seconds until a call is given up.
    pub fn at(address: Address) -> Settings {
        Settings::of(address.into())
    }

    /// The same for several.
    pub fn of(addresses: Addresses) -> Settings {
        Settings { addresses, certificates: None, timeout: Duration::from_secs(10) }
    }
}

/// Whether a call may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Doing it twice is like doing it once: it is tried again after a lost connection.
    Safely,
    /// It is tried again only if it cannot have arrived.
    Unsent,
}

/// Speaks to a master.
pub struct Client {
    agent: Agent,
    masters: Arc<Masters>,
    timeout: Duration,
    session: RwLock<Session>,
}

/// What a master says.
struct Reply {
    master: Address,
    response: Response<Body>,
}

#[derive(Default)]
struct Session {
    token: Option<String>,
    /// To log in again when the token has run out.
    credentials: Option<Credentials>,
    /// The token is that of an allocation, which goes into a header of its own.
    of_task: bool,
}

impl Session {
    fn header(&self) -> Option<(&'static str, String)> {
        let name = if self.of_task { "Grpc-Metadata-x-allocation-token" } else { "Authorization" };
        self.token.as_ref().map(|token| (name, format!("Bearer {token}")))
    }
}

impl Client {
    /// A client that has not said who it is. Nothing is sent yet.
    pub fn new(settings: Settings) -> Result<Client> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("instep/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_write(Some(ANSWER))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(ANSWER));
        if settings.addresses.all().all(Address::is_loopback) {
            config = config.proxy(None);
        }
        if let Some(tls) = trusted(&settings.addresses, settings.certificates.as_deref())? {
            config = config.tls_config(tls);
        }
        let config = config.build();
        let agent = Agent::with_parts(config.clone(), DefaultConnector::default(), NameResolver::default());
        let masters = Arc::new(Masters::of(settings.addresses, agent));
        let connector = DefaultConnector::default().chain(Watch(masters.clone()));
        Ok(Client {
            agent: Agent::with_parts(config, connector, NameResolver::default()),
            masters,
            timeout: settings.timeout,
            session: RwLock::new(Session::default()),
        })
    }

    /// Where the master is; of several, the one that the cluster is known by.
    pub fn address(&self) -> &Address {
        self.masters.addresses().first()
    }

    /// All addresses of the cluster.
    pub fn addresses(&self) -> &Addresses {
        self.masters.addresses()
    }

    /// The one that is asked at the moment.
    fn current(&self) -> &Address {
        self.masters.current()
    }

    /// The token of the session, to keep it for later.
    pub fn token(&self) -> Option<String> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).token.clone()
    }

    /// Speaks for the user of a token from now on.
    pub fn use_token(&self, token: impl Into<String>) {
        self.set_session(Session { token: Some(token.into()), ..Session::default() });
    }

    /// Speaks for an allocation from now on, with the token that the master gave its task.
    pub fn use_allocation_token(&self, token: impl Into<String>) {
        self.set_session(Session { token: Some(token.into()), of_task: true, ..Session::default() });
    }

    /// Logs in; when the session runs out, it logs in again.
    pub fn login(&self, credentials: Credentials) -> Result<User> {
        let answer = self.open_session(&credentials)?;
        self.set_session(Session { token: Some(answer.token), credentials: Some(credentials), of_task: false });
        Ok(answer.user)
    }

    /// Ends the session.
    pub fn logout(&self) -> Result<()> {
        let _: serde_json::Value = self.post("/api/v1/auth/logout", &serde_json::json!({}))?;
        self.set_session(Session::default());
        Ok(())
    }

    /// Who the master thinks this is.
    pub fn user(&self) -> Result<User> {
        self.get::<UserResponse>("/api/v1/me").map(|answer| answer.user)
    }

    /// Asks.
    pub fn get<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer> {
        self.exchange(Method::GET, path, None, Repeat::Safely)
    }

    /// Asks something whose answer may take a while, such as what everybody has to be there for.
    pub fn get_within<Answer: DeserializeOwned>(&self, path: &str, deadline: Duration) -> Result<Answer> {
        let bytes = self.with_retries(Repeat::Safely, || {
            let (master, request) = self.request(&Method::GET, path, None, &[], self.session_header())?;
            let request = self.agent.configure_request(request).timeout_recv_response(Some(deadline)).build();
            self.read_body(self.run(master, request)?)
        })?;
        serde_json::from_slice(&bytes).map_err(|error| self.protocol_error(format!("GET {path}: {error}")))
    }

    /// What a master says of its health, with the status of its answer: one that is unwell has something to say, too.
    pub fn health(&self) -> Result<(u16, Vec<u8>)> {
        let (master, request) = self.request(&Method::GET, "/health", None, &[], None)?;
        let request = self.agent.configure_request(request).timeout_global(Some(HEALTH)).build();
        let response = self.agent.run(request).map_err(|error| self.unreachable(&master, error))?;
        let status = response.status().as_u16();
        Ok((status, self.read_body(Reply { master, response })?))
    }

    /// Does something that must not be done twice; see [`Client::call`] for what may.
    pub fn post<Answer: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Answer> {
        self.call(Method::POST, path, body, Repeat::Unsent)
    }

    /// Makes something be as given.
    pub fn put<Answer: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Answer> {
        self.call(Method::PUT, path, body, Repeat::Safely)
    }

    /// Changes what is given and leaves the rest.
    pub fn patch<Answer: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Answer> {
        self.call(Method::PATCH, path, body, Repeat::Safely)
    }

    /// Deletes.
    pub fn delete<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer> {
        self.exchange(Method::DELETE, path, None, Repeat::Safely)
    }

    /// Deletes what the body names.
    pub fn delete_with<Answer: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Answer> {
        self.call(Method::DELETE, path, body, Repeat::Safely)
    }

    /// Sends a body with any method, and says whether it may arrive twice.
    pub fn call<Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        repeat: Repeat,
    ) -> Result<Answer> {
        let body = serde_json::to_vec(body)
            .map_err(|error| self.protocol_error(format!("this request is not JSON: {error}")))?;
        self.exchange(method, path, Some(&body), repeat)
    }

    /// Sends text that is JSON already and gives the answer's text; for callers that have types of their own.
    pub fn call_text(&self, method: &str, path: &str, body: Option<&str>, repeat: Repeat) -> Result<String> {
        let method: Method =
            method.parse().map_err(|_| self.protocol_error(format!("`{method}` is not an HTTP method")))?;
        let bytes =
            self.with_retries(repeat, || self.read_body(self.send(&method, path, body.map(str::as_bytes), &[])?))?;
        String::from_utf8(bytes).map_err(|error| self.protocol_error(format!("{method} {path}: {error}")))
    }

    /// Sends a body that is JSON already, once: whoever calls this repeats it as it likes.
    pub fn post_json(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) -> Result<Vec<u8>> {
        self.read_body(self.send(&Method::POST, path, Some(body), headers)?)
    }

    /// Sends a body that is JSON already with any method, once.
    pub(crate) fn send_once(&self, method: &Method, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        self.read_body(self.send(method, path, Some(body), &[])?)
    }

    /// Asks for a stream of elements. A silence longer than `silence` ends it with an error; without one it may be
    /// silent for ever, which is right for something that a person watches.
    pub fn stream<T: DeserializeOwned>(&self, path: &str, silence: Option<Duration>) -> Result<Lines<T>> {
        let answer = self.with_retries(Repeat::Safely, || self.send_for(path, "*/*", silence))?;
        let reader = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Lines::new(Box::new(reader), answer.master))
    }

    /// Asks for bytes, to be read as they come, such as a file; `accept` says in which form.
    pub fn download(&self, path: &str, accept: &str) -> Result<Box<dyn Read + Send>> {
        let answer = self.with_retries(Repeat::Safely, || self.send_for(path, accept, Some(ANSWER)))?;
        Ok(Box::new(answer.response.into_body().into_with_config().limit(u64::MAX).reader()))
    }

    fn exchange<Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&[u8]>,
        repeat: Repeat,
    ) -> Result<Answer> {
        let bytes = self.with_retries(repeat, || self.read_body(self.send(&method, path, body, &[])?))?;
        serde_json::from_slice(&bytes).map_err(|error| self.protocol_error(format!("{method} {path}: {error}")))
    }

    /// Tries until it works, cannot work, or the time is over; renews the session once.
    fn with_retries<T>(&self, repeat: Repeat, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match self.retry(repeat, &attempt) {
            Err(error) if error.is_unauthenticated() && self.renew()? => self.retry(repeat, &attempt),
            outcome => outcome,
        }
    }

    fn retry<T>(&self, repeat: Repeat, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let mut backoff = Backoff::default();
        let mut asked = 1;
        loop {
            let error = match attempt() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let again = error.is_unsent() || repeat == Repeat::Safely && error.is_temporary();
            if again && asked < self.masters.addresses().count() {
                // Another master may answer at once.
                asked += 1;
                continue;
            }
            asked = 1;
            let left = self.timeout.saturating_sub(begin.elapsed());
            match backoff.pause_within(left).filter(|_| again) {
                Some(pause) => thread::sleep(pause),
                None => return Err(error),
            }
        }
    }

    /// Logs in again, if this client logged in by itself before.
    pub fn renew(&self) -> Result<bool> {
        let credentials = self.session.read().unwrap_or_else(PoisonError::into_inner).credentials.clone();
        let Some(credentials) = credentials else { return Ok(false) };
        let token = Some(self.open_session(&credentials)?.token);
        self.set_session(Session { token, credentials: Some(credentials), of_task: false });
        Ok(true)
    }

    fn open_session(&self, credentials: &Credentials) -> Result<LoginResponse> {
        let request = LoginRequest {
            username: Some(credentials.username.clone()),
            password: Some(credentials.hashed_password.clone()),
            is_hashed: Some(true),
        };
        let body = serde_json::to_vec(&request).map_err(|error| self.protocol_error(error.to_string()))?;
        // A second session beside one whose answer was lost does no harm. An old token is not sent along.
        let bytes = self.retry(Repeat::Safely, || {
            let (master, request) = self.request(&Method::POST, "/api/v1/auth/login", Some(&body), &[], None)?;
            self.read_body(self.run(master, request)?)
        })?;
        serde_json::from_slice(&bytes).map_err(|error| self.protocol_error(format!("login: {error}")))
    }

    fn session_header(&self) -> Option<(&'static str, String)> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).header()
    }

    fn set_session(&self, session: Session) {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
    }

    fn send(&self, method: &Method, path: &str, body: Option<&[u8]>, headers: &[(&str, &str)]) -> Result<Reply> {
        let (master, request) = self.request(method, path, body, headers, self.session_header())?;
        self.run(master, request)
    }

    fn send_for(&self, path: &str, accept: &str, silence: Option<Duration>) -> Result<Reply> {
        let accept = [("Accept", accept)];
        let (master, request) = self.request(&Method::GET, path, None, &accept, self.session_header())?;
        let request = self.agent.configure_request(request).timeout_per_read(silence).build();
        self.run(master, request)
    }

    /// Chooses who is asked.
    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
        headers: &[(&str, &str)],
        session: Option<(&'static str, String)>,
    ) -> Result<(Address, Request<Vec<u8>>)> {
        let master = self.masters.choose()?.clone();
        let mut request = Request::builder().method(method).uri(format!("{master}{path}"));
        if let Some((name, value)) = session {
            request = request.header(name, value);
        }
        if body.is_some() {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let invalid = |error| self.protocol_error(format!("{method} {path} is not a valid request: {error}"));
        Ok((master, request.body(body.unwrap_or_default().to_vec()).map_err(invalid)?))
    }

    /// Gives an answer that is a success; others become errors, with the master's sentence.
    fn run(&self, master: Address, request: Request<Vec<u8>>) -> Result<Reply> {
        let response = self.agent.run(request).map_err(|error| self.unreachable(&master, error))?;
        let status = response.status().as_u16();
        if status == 503 {
            self.masters.pass_on(&master);
        } else {
            self.masters.note_answer(&master);
        }
        let answer = Reply { master, response };
        match status {
            200 => Ok(answer),
            300..400 => {
                Err(self.protocol_error(format!("it redirects (status {status}); is there a proxy in between?")))
            }
            _ => {
                let body = self.read_body(answer).unwrap_or_default();
                match sentence(&body) {
                    Some(message) => Err(Error::Refused { status, message }),
                    // A master has something to say to these; another server has not.
                    None if matches!(status, 404 | 405 | 501) => {
                        Err(self.protocol_error(format!("it answered with status {status}")))
                    }
                    None => {
                        let message = format!("the master answered with status {status}");
                        Err(Error::Refused { status, message })
                    }
                }
            }
        }
    }

    fn read_body(&self, mut answer: Reply) -> Result<Vec<u8>> {
        let body = answer.response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec();
        body.map_err(|error| self.unreachable(&answer.master, error))
    }

    fn unreachable(&self, master: &Address, error: ureq::Error) -> Error {
        match error {
            ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_) => self.protocol_error(error.to_string()),
            other => {
                self.masters.pass_on(master);
                Error::Unreachable { address: master.clone(), source: Box::new(other) }
            }
        }
    }

    fn protocol_error(&self, what: String) -> Error {
        Error::Protocol { address: self.current().clone(), what }
    }
}

/// The sentence in the body of a failed request, in either of its shapes.
fn sentence(body: &[u8]) -> Option<String> {
    if let Ok(error) = serde_json::from_slice::<ErrorBody>(body) {
        return Some(error.error.error);
    }
    serde_json::from_slice::<PlainErrorBody>(body).ok().map(|error| error.message)
}
