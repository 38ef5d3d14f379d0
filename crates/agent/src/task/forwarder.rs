//! A port of loopback that leads to whichever master answers, for programs that know one address: the task outlives the
//! host of its master, also if its script speaks Determined's own client.
//!
//! Bytes are carried as they come. Each connection is to one master; when that is lost the connection breaks, and the next
//! one is to another. Only programs of the task's own user are let in: to a master they all are this process, whose user
//! it may know.
//!
//! The threads end with the process, which is the task's supervisor.

use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use instep_api::sockets::{TABLES, caller};
use instep_client::{Address, Addresses};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::geteuid;

/// How long a master may take to be reached before the next one is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// Connections at a time; more are closed at once.
const MOST: usize = 512;
/// Before the next try when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a master may be silent at the level of packets, which is the silence of a host that is gone.
const SILENCE_MILLISECONDS: u32 = 15_000;
const KEEPALIVE_SECONDS: u32 = 5;

/// The masters, and which of them answered last.
#[derive(Debug)]
struct Masters {
    addresses: Addresses,
    turn: AtomicUsize,
    open: AtomicUsize,
}

/// Begins to forward, and gives the address to use instead. `None` if all have to be known by name: certificates are for a
/// name, and a path may lead elsewhere at each.
pub(super) fn start(addresses: &Addresses) -> io::Result<Option<String>> {
    if !addresses.all().all(is_plain) {
        return Ok(None);
    }
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let here = format!("http://{}", listener.local_addr()?);
    let masters =
        Arc::new(Masters { addresses: addresses.clone(), turn: AtomicUsize::new(0), open: AtomicUsize::new(0) });
    thread::Builder::new().name("instep-task-way".to_owned()).spawn(move || accept(&listener, &masters))?;
    Ok(Some(here))
}

/// Whether nothing but host and port matters.
fn is_plain(address: &Address) -> bool {
    address.as_str().strip_prefix("http://").is_some_and(|rest| !rest.contains('/'))
}

fn accept(listener: &TcpListener, masters: &Arc<Masters>) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            thread::sleep(PAUSE);
            continue;
        };
        if masters.open.load(Ordering::Relaxed) >= MOST || !is_own(&connection) {
            continue;
        }
        let carrying = Arc::clone(masters);
        masters.open.fetch_add(1, Ordering::Relaxed);
        let work = move || {
            // What cannot be reached is closed, which says as much.
            let _ = forward(connection, &carrying);
            carrying.open.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("instep-task-way".to_owned()).spawn(work).is_err() {
            masters.open.fetch_sub(1, Ordering::Relaxed);
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

fn forward(task: TcpStream, masters: &Masters) -> io::Result<()> {
    let master = masters.reach()?;
    task.set_nodelay(true)?;
    let (from_task, to_task) = (task.try_clone()?, task);
    let (from_master, to_master) = (master.try_clone()?, master);
    let inward =
        thread::Builder::new().name("instep-task-way".to_owned()).spawn(move || carry(from_master, to_task))?;
    carry(from_task, to_master);
    let _ = inward.join();
    Ok(())
}

/// Carries bytes until there are no more, and says so to the other end.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let (from_end, to_end) = match io::copy(&mut from, &mut to) {
        Ok(_) => (Shutdown::Read, Shutdown::Write),
        // One end is gone, and with it what it would have answered.
        Err(_) => (Shutdown::Both, Shutdown::Both),
    };
    // They may be closed already.
    let _ = (from.shutdown(from_end), to.shutdown(to_end));
}

impl Masters {
    /// Connects to the one that answered last, else to the next.
    fn reach(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let begin = self.turn.load(Ordering::Relaxed);
        for turn in begin..begin + self.addresses.count() {
            match connect(self.addresses.at(turn)) {
                Ok(connection) => {
                    self.turn.store(turn % self.addresses.count(), Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn connect(master: &Address) -> io::Result<TcpStream> {
    let authority = master.as_str().trim_start_matches("http://");
    let mut last = io::Error::other("the name does not resolve");
    for address in authority.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(connection) => {
                connection.set_nodelay(true)?;
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
    use std::io::{Read, Write};

    use super::*;

    /// A server that says who it is to every connection, and then repeats what it hears.
    fn echo(name: &'static str) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection.write_all(name.as_bytes()).unwrap();
            let mut heard = String::new();
            connection.read_to_string(&mut heard).unwrap();
            connection.write_all(heard.as_bytes()).unwrap();
        });
        (address, serving)
    }

    /// Asks as a client of HTTP does: it says no more once it was answered.
    fn ask(way: &str) -> String {
        let mut connection = TcpStream::connect(way.trim_start_matches("http://")).unwrap();
        let mut first = [0];
        // Where nobody answers the connection is closed, in order or not.
        if !matches!(connection.read(&mut first), Ok(1)) {
            return String::new();
        }
        connection.write_all(b" heard").unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut said = String::from(char::from(first[0]));
        connection.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn whoever_answers_is_reached() {
        let ((one, first), (other, second)) = (echo("one"), echo("other"));
        let way = start(&format!("http://{one},http://{other}").parse().unwrap()).unwrap().unwrap();
        assert_eq!(ask(&way), "one heard");
        first.join().unwrap();
        // It serves one connection, and is gone.
        assert_eq!(ask(&way), "other heard");
        second.join().unwrap();
        assert_eq!(ask(&way), "", "nobody is there any more");
    }

    #[test]
    fn names_that_matter_are_kept() {
        for addresses in ["https://a:1,https://b:1", "http://a:1/x,http://b:1", "http://a:1,https://b:1"] {
            assert_eq!(start(&addresses.parse().unwrap()).unwrap(), None, "{addresses}");
        }
    }
}
