//! A job with a token, as those see it who have the token, and those who do not.

use std::io::{Read, Write};
use std::net::TcpStream;

use instep_launch::control::token::JobToken;
use instep_launch::control::{self, FromCoordinator, Hello, ToCoordinator};
use instep_noise::{ANSWER_BYTES, Initiator, Key, Session};
use instep_policy::membership::MembershipTerms;
use instep_store::Server;

use crate::coordinator::{TIMEOUT, TOKEN, hello, serve_with_notices, terms};

const REFUSAL: &str = "its job token, job id, options or version of instep are not those of the job";

/// As the documentation says.
fn prologue() -> Vec<u8> {
    format!("instep control {} and store", control::PROTOCOL).into_bytes()
}

fn text(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn token(digit: char) -> Option<JobToken> {
    JobToken::parse(&text(digit))
}

/// The key of control connections, made from the token as the documentation says.
fn key(digit: char) -> Key {
    Key::derive("control connections", text(digit).as_bytes())
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("connect");
    stream.set_read_timeout(Some(TIMEOUT)).expect("socket option");
    stream
}

/// What the server says until it closes the connection.
fn heard(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// A launcher that has the token; everything that it sends is recorded.
struct EncryptedLauncher {
    stream: TcpStream,
    session: Session,
    sent: Vec<u8>,
    plain: Vec<u8>,
}

impl EncryptedLauncher {
    fn enter(server: &Server, terms: &MembershipTerms, change: impl FnOnce(&mut Hello)) -> EncryptedLauncher {
        let mut stream = connect(server);
        let (initiator, opening) = Initiator::start(&key('a'), &prologue()).expect("random numbers");
        let mut sent = vec![b'N'];
        sent.extend(opening);
        stream.write_all(&sent).expect("send");
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).expect("an answer");
        let session = initiator.finish(&answer).expect("the coordinator has the token");
        let mut launcher = EncryptedLauncher { stream, session, sent, plain: Vec::new() };
        launcher.send(b"");
        let mut hello = hello(terms);
        change(&mut hello);
        launcher.send(&control::encode(&ToCoordinator::Hello(hello)));
        launcher
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut sealed = Vec::new();
        self.session.sealer.seal(bytes, &mut sealed).expect("sealed");
        self.stream.write_all(&sealed).expect("send");
        self.sent.extend(sealed);
    }

    fn next(&mut self) -> FromCoordinator {
        let mut sealed = Vec::new();
        loop {
            if let Some((message, length)) = control::decode(&self.plain).expect("a message") {
                self.plain.drain(..length);
                return message;
            }
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("more");
            sealed.extend(byte);
            if self.session.opener.open(&sealed, &mut self.plain).expect("genuine") > 0 {
                sealed.clear();
            }
        }
    }
}

#[test]
fn launchers_with_the_token_are_in_and_are_told_what_does_not_fit() {
    let terms = terms(2, 0, false);
    let (server, _notices) = serve_with_notices(&terms, token('a'));
    let mut first = EncryptedLauncher::enter(&server, &terms, |hello| hello.host_token = Some(TOKEN));
    assert_eq!(first.next(), FromCoordinator::Welcome {});
    let mut other = EncryptedLauncher::enter(&server, &terms, |hello| hello.run_id = "other".to_owned());
    let FromCoordinator::Refused { reason } = other.next() else { panic!("expected a refusal") };
    assert_eq!(reason, "a (pid 1): it wants job \"other\", this one is \"job\"");
    let mut second = EncryptedLauncher::enter(&server, &terms, |_| {});
    assert_eq!(second.next(), FromCoordinator::Welcome {});
    assert!(matches!(first.next(), FromCoordinator::Waiting { .. }));
    assert!(matches!(first.next(), FromCoordinator::Start(_)));
}

#[test]
fn whoever_does_not_have_the_token_hears_one_refusal_whatever_it_says() {
    let terms = terms(2, 0, false);
    let (server, notices) = serve_with_notices(&terms, token('a'));
    let plain = control::encode(&ToCoordinator::Hello(hello(&terms)));
    let (_, wrong) = Initiator::start(&key('b'), &prologue()).expect("random numbers");
    let (_, other_protocol) = Initiator::start(&key('a'), b"instep control 4 and store").expect("random numbers");
    let query = format!("{{\"contact\":{{\"protocol\":{},\"run_id\":\"job\",\"claim\":null}}}}\n", control::PROTOCOL);
    let refusal = control::encode(&FromCoordinator::Refused { reason: REFUSAL.to_owned() });
    for opening in
        [plain, [b"N", &wrong[..]].concat(), [b"N", &other_protocol[..]].concat(), query.into_bytes(), vec![b'N'; 49]]
    {
        let mut stream = connect(&server);
        stream.write_all(&opening).expect("send");
        assert_eq!(heard(stream), refusal, "{}", opening.escape_ascii());
        let notice = notices.recv_timeout(TIMEOUT).expect("told");
        assert!(notice.contains("it has another job token than this job, or none, or another version"), "{notice}");
    }
}

#[test]
fn what_a_launcher_has_sent_is_of_no_use_to_whoever_repeats_it() {
    let terms = terms(2, 0, false);
    let (server, _notices) = serve_with_notices(&terms, token('a'));
    let mut first = EncryptedLauncher::enter(&server, &terms, |hello| hello.host_token = Some(TOKEN));
    assert_eq!(first.next(), FromCoordinator::Welcome {});
    for recorded in [&first.sent[..], &first.sent[..first.sent.len() - 20], &first.sent[..60]] {
        let mut stream = connect(&server);
        stream.write_all(recorded).expect("send");
        // Nobody waits for more of a recording that is cut short.
        stream.write_all(&[0; 32]).expect("send");
        // The server's half of a handshake, which says nothing to whoever did not begin it.
        assert_eq!(heard(stream).len(), ANSWER_BYTES);
    }
    let mut second = EncryptedLauncher::enter(&server, &terms, |_| {});
    assert_eq!(second.next(), FromCoordinator::Welcome {});
}

#[test]
fn a_job_without_a_token_refuses_launchers_that_have_one() {
    let terms = terms(2, 0, false);
    let (server, notices) = serve_with_notices(&terms, None);
    let (_, opening) = Initiator::start(&key('a'), &prologue()).expect("random numbers");
    let mut stream = connect(&server);
    stream.write_all(&[b"N", &opening[..]].concat()).expect("send");
    assert_eq!(heard(stream), control::encode(&FromCoordinator::Refused { reason: REFUSAL.to_owned() }));
    let notice = notices.recv_timeout(TIMEOUT).expect("told");
    assert!(notice.contains("it has a job token, and this job has none"), "{notice}");
}
