//! A port of loopback that leads to whichever master answers, for programs that know one address: the task outlives the
//! host of its master, also if its script speaks Determined's own client.
//!
//! Bytes are carried as they come, and encrypted on the way if the master is at an `https://` address: certificates are
//! for a name, which this process knows. Each connection is to one master; when that is lost the connection breaks, and
//! the next one is to another. Only programs of the task's own user are let in: to a master they all are this process, whose
//! user it may know.
//!
//! The threads end with the process, which is the task's supervisor.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use instep_api::sockets::{TABLES, caller};
use instep_client::tls::{self, Tls};
use instep_client::{Address, Addresses, Masters};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::geteuid;

/// How long a master may take to be reached, and for each answer until a connection is encrypted, before the next one is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// Connections at a time; more are closed at once.
const MOST: usize = 512;
/// Before the next try when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a master may be silent at the level of packets, which is the silence of a host that is gone.
const SILENCE_MILLISECONDS: u32 = 15_000;
const KEEPALIVE_SECONDS: u32 = 5;

/// After so much silence a master is asked for its health.
const QUIET: Duration = Duration::from_secs(10);

/// The masters, and how many connections to them there are.
#[derive(Debug)]
struct Way {
    masters: Masters,
    tls: Tls,
    open: AtomicUsize,
}

/// Whether these masters can be forwarded to: not if any is below a path, which may differ at each.
pub(super) fn is_able(addresses: &Addresses) -> bool {
    !addresses.all().any(Address::has_path)
}

/// Begins to forward, and gives the address to use instead. `certificates` are trusted instead of the public ones.
pub(super) fn start(addresses: &Addresses, certificates: Option<&Path>) -> io::Result<Option<String>> {
    if !is_able(addresses) {
        return Ok(None);
    }
    let certificates = certificates.filter(|_| addresses.all().any(Address::is_encrypted));
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let here = format!("http://{}", listener.local_addr()?);
    let masters = Masters::direct(addresses.clone(), certificates).map_err(io::Error::other)?;
    let tls = Tls::new(certificates).map_err(io::Error::other)?;
    let way = Arc::new(Way { masters, tls, open: AtomicUsize::new(0) });
    thread::Builder::new().name("instep-task-way".to_owned()).spawn(move || accept(&listener, &way))?;
    Ok(Some(here))
}

fn accept(listener: &TcpListener, way: &Arc<Way>) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            thread::sleep(PAUSE);
            continue;
        };
        if way.open.load(Ordering::Relaxed) >= MOST || !is_own(&connection) {
            continue;
        }
        let carrying = Arc::clone(way);
        way.open.fetch_add(1, Ordering::Relaxed);
        let work = move || {
            // What cannot be reached is closed, which says as much.
            let _ = forward(connection, &carrying);
            carrying.open.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("instep-task-way".to_owned()).spawn(work).is_err() {
            way.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether a program of our own user is at the other end.
fn is_own(connection: &TcpStream) -> bool {
    let ends = connection.peer_addr().and_then(|there| Ok((there, connection.local_addr()?)));
    ends.is_ok_and(|(there, here)| {
        TABLES.iter().any(|path| {
            fs::read_to_string(path).is_ok_and(|table| caller(&table, there, here) == Some(geteuid().as_raw()))
        })
    })
}

fn forward(task: TcpStream, way: &Arc<Way>) -> io::Result<()> {
    let (address, master) = reach(way)?;
    task.set_nodelay(true)?;
    let from_task = task.try_clone()?;
    match master {
        Master::Plain(from, to) => both_ways((from_task, task), (from, to), way, address),
        Master::Encrypted(from, to) => both_ways((from_task, task), (from, to), way, address),
    }
}

fn both_ways(
    (from_task, to_task): (TcpStream, TcpStream),
    (from_master, to_master): (impl Source + Send + 'static, impl Sink),
    way: &Arc<Way>,
    address: Address,
) -> io::Result<()> {
    from_master.socket().set_read_timeout(Some(QUIET))?;
    let asking = Arc::clone(way);
    let is_left = move || asking.masters.has_lost(&address);
    let inward = thread::Builder::new()
        .name("instep-task-way".to_owned())
        .spawn(move || carry(from_master, to_task, is_left))?;
    carry(from_task, to_master, || false);
    let _ = inward.join();
    Ok(())
}

/// Where bytes come from.
trait Source: Read {
    fn socket(&self) -> &TcpStream;
}

/// Where bytes go.
trait Sink: Write {
    fn socket(&self) -> &TcpStream;

    /// Says that there are no more.
    fn end(&mut self) -> io::Result<()>;
}

impl Source for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Sink for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for tls::Reader {
    fn socket(&self) -> &TcpStream {
        self.socket()
    }
}

impl Sink for tls::Writer {
    fn socket(&self) -> &TcpStream {
        self.socket()
    }

    fn end(&mut self) -> io::Result<()> {
        self.end()
    }
}

/// Carries bytes until there are no more, and says so to the other end; or until there are none and nobody waits for them.
fn carry(mut from: impl Source, mut to: impl Sink, is_left: impl Fn() -> bool) {
    let carried = loop {
        match io::copy(&mut from, &mut to) {
            // Nothing was read, so nothing is lost.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_left() => {}
            outcome => break outcome,
        }
    };
    let (from_end, to_end) = match carried.and_then(|_| to.end()) {
        Ok(()) => (Shutdown::Read, Shutdown::Write),
        // One end is gone, and with it what it would have answered.
        Err(_) => (Shutdown::Both, Shutdown::Both),
    };
    // They may be closed already.
    let _ = (from.socket().shutdown(from_end), to.socket().shutdown(to_end));
}

/// A connection to a master, in both directions.
enum Master {
    Plain(TcpStream, TcpStream),
    Encrypted(tls::Reader, tls::Writer),
}

/// Connects to one that answers.
fn reach(way: &Way) -> io::Result<(Address, Master)> {
    let masters = &way.masters;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in masters.addresses().all() {
        let address = masters.choose().map_err(io::Error::other)?.clone();
        let connected = connect(&address).and_then(|socket| match address.is_encrypted() {
            true => way.tls.divide(socket, &address).map(|(from, to)| Master::Encrypted(from, to)),
            false => Ok(Master::Plain(socket.try_clone()?, socket)),
        });
        match connected {
            Ok(master) => return Ok((address, master)),
            Err(error) => last = error,
        }
        masters.pass_on(&address);
    }
    Err(last)
}

fn connect(master: &Address) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name does not resolve");
    for address in (master.host(), master.port()).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(connection) => {
                connection.set_nodelay(true)?;
                connection.set_read_timeout(Some(CONNECT))?;
                setsockopt(&connection, sockopt::KeepAlive, &true)?;
                setsockopt(&connection, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS)?;
                setsockopt(&connection, sockopt::TcpKeepInterval, &KEEPALIVE_SECONDS)?;
                setsockopt(&connection, sockopt::TcpUserTimeout, &SILENCE_MILLISECONDS)?;
                return Ok(connection);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A master that is well, and says who it is to so many that ask something else.
    fn master(name: &'static str, times: usize) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let mut said = 0;
            while said < times {
                let (mut connection, _) = listener.accept().unwrap();
                let heard = BufReader::new(connection.try_clone().unwrap()).lines().map_while(io::Result::ok);
                let heard: Vec<String> = heard.take_while(|line| !line.is_empty()).collect();
                let is_health = heard[0].starts_with("GET /health ");
                said += usize::from(!is_health);
                let head = "HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length:";
                write!(connection, "{head} {}\r\n\r\n{name}", name.len()).unwrap();
            }
        });
        (address, serving)
    }

    /// Who answers at the other end.
    fn ask(way: &str) -> String {
        let mut connection = TcpStream::connect(way.trim_start_matches("http://")).unwrap();
        let mut said = String::new();
        // Where nobody answers the connection is closed, in order or not.
        let _ = connection.write_all(b"GET /x HTTP/1.1\r\n\r\n").and_then(|()| connection.read_to_string(&mut said));
        said.rsplit("\r\n").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn whoever_answers_is_reached() {
        // It accepts connections and says nothing on them, as a process that is stopped.
        let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
        let ((one, first), (other, second)) = (master("one", 1), master("other", 1));
        let addresses = format!("http://{},http://{one},http://{other}", frozen.local_addr().unwrap());
        let way = start(&addresses.parse().unwrap(), None).unwrap().unwrap();
        assert_eq!(ask(&way), "one");
        first.join().unwrap();
        // It is gone.
        assert_eq!(ask(&way), "other");
        second.join().unwrap();
        assert_eq!(ask(&way), "", "nobody is there any more");
    }

    #[test]
    fn a_silent_connection_ends_when_another_master_is_asked() {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (there, listener.accept().unwrap().0)
        };
        let ((mut master, from), (mut task, to)) = (pair(), pair());
        from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let left = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&left);
        let carrying = thread::spawn(move || carry(from, to, || asked.load(Ordering::Relaxed)));
        let mut heard = [0; 4];
        for word in [b"late", b"more"] {
            thread::sleep(Duration::from_millis(60));
            master.write_all(word).unwrap();
            task.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, word, "silence alone ends nothing");
        }
        left.store(true, Ordering::Relaxed);
        assert_eq!(task.read(&mut heard).unwrap_or(0), 0);
        carrying.join().unwrap();
    }

    #[test]
    fn paths_are_kept() {
        for addresses in ["https://a:1/x,https://b:1", "http://a:1,http://b:1/y"] {
            assert_eq!(start(&addresses.parse().unwrap(), None).unwrap(), None, "{addresses}");
        }
    }
}
