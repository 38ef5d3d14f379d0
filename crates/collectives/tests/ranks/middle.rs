//! Somebody on the network between two ranks: passes on what they say, records it, and may change it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use instep_collectives::Address;

/// Where the fields with this tag are in the bytes of an address, see `address.rs`.
fn fields(bytes: &[u8], tag: u8) -> Vec<std::ops::Range<usize>> {
    let (mut at, mut found) = (b"instep\x01".len(), Vec::new());
    while at < bytes.len() {
        let value = at + 3..at + 3 + usize::from(u16::from_le_bytes([bytes[at + 1], bytes[at + 2]]));
        if bytes[at] == tag {
            found.push(value.clone());
        }
        at = value.end;
    }
    found
}

/// The port at which a rank takes messages.
pub fn message_port(address: &Address) -> u16 {
    let bytes = address.to_bytes();
    let at = fields(&bytes, 8)[0].start;
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The port at which ranks connect for collectives.
pub fn port(address: &Address) -> u16 {
    let bytes = address.to_bytes();
    let endpoint = String::from_utf8(bytes[fields(&bytes, 6)[0].clone()].to_vec()).unwrap();
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

/// The same address with another port for messages.
pub fn with_message_port(address: &Address, port: u16) -> Address {
    let mut bytes = address.to_bytes();
    let at = fields(&bytes, 8)[0].start;
    bytes[at..at + 2].copy_from_slice(&port.to_le_bytes());
    Address::from_bytes(&bytes).unwrap()
}

/// The same address with one endpoint, on loopback at this port.
pub fn with_port(address: &Address, port: u16) -> Address {
    let mut bytes = address.to_bytes();
    for endpoint in fields(&bytes, 6).into_iter().rev() {
        bytes.drain(endpoint.start - 3..endpoint.end);
    }
    let endpoint = format!("127.0.0.1:{port}");
    bytes.push(6);
    bytes.extend((endpoint.len() as u16).to_le_bytes());
    bytes.extend(endpoint.as_bytes());
    Address::from_bytes(&bytes).unwrap()
}

/// Passes on connections to a port. Its threads end with the connections, and with the process.
pub struct Middle {
    pub port: u16,
    recorded: Arc<Mutex<Vec<u8>>>,
}

impl Middle {
    /// Changes a bit of the byte with this number, of each connection, in what callers say.
    pub fn before(port: u16, alters: Option<usize>) -> Middle {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
            .unwrap();
        let (own_port, recorded) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let recorded_too = Arc::clone(&recorded);
        thread::spawn(move || {
            while let Ok((caller, _)) = listener.accept() {
                let called = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                let (from, to) = (called.try_clone().unwrap(), caller.try_clone().unwrap());
                thread::spawn(move || pass_on(from, to, |_, _| {}));
                let recorded = Arc::clone(&recorded_too);
                thread::spawn(move || {
                    pass_on(caller, called, |bytes, before| {
                        recorded.lock().unwrap().extend(&*bytes);
                        if let Some(byte) = alters.and_then(|at| bytes.get_mut(at.wrapping_sub(before))) {
                            *byte ^= 16;
                        }
                    });
                });
            }
        });
        Middle { port: own_port, recorded }
    }

    /// What callers have said so far.
    pub fn recorded(&self) -> Vec<u8> {
        self.recorded.lock().unwrap().clone()
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, look: impl Fn(&mut [u8], usize)) {
    let (mut bytes, mut before) = ([0; 4096], 0);
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        look(&mut bytes[..read], before);
        before += read;
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
