//! Loads a store server with plain clients. Used by `bench/store.py`.
//!
//! ```text
//! load PORT run OPERATION CONNECTIONS SECONDS     one request at a time each; prints the operations done per second
//! load PORT run OPERATION CONNECTIONS SECONDS --pipeline N    N requests in one write, then N replies
//! load PORT hold CONNECTIONS                      opens them, prints "held", waits for the end of standard input
//! ```
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use instep_store::protocol::HELLO;
use instep_store::{Client, Request, raise_file_limit};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage: load PORT run OPERATION CONNECTIONS SECONDS [--pipeline N] | PORT hold CONNECTIONS";
const PATIENCE: Duration = Duration::from_secs(60);
const VALUE: &[u8] = b"0123456789abcdef";
/// On the wire a number is eight bytes, and a value is its length as such a number, then its bytes.
const NUMBER_BYTES: usize = 8;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [port, "run", operation, connections, seconds] => {
            let (port, connections) = (port.parse()?, connections.parse()?);
            let clients = (0..connections).map(|_| connect(port)).collect::<Fallible<Vec<_>>>()?;
            let rate = run(clients, seconds.parse()?, |client, index, end| one_by_one(client, operation, index, end))?;
            println!("{rate}");
        }
        [port, "run", operation, connections, seconds, "--pipeline", depth] => {
            let (port, connections, depth): (u16, usize, usize) = (port.parse()?, connections.parse()?, depth.parse()?);
            let clients = (0..connections).map(|_| Ok(TcpStream::connect(("127.0.0.1", port))?));
            let clients = clients.collect::<Fallible<Vec<_>>>()?;
            let rate = run(clients, seconds.parse()?, |client, index, end| {
                pipelined(client, operation, index, depth.max(1), end)
            })?;
            println!("{rate}");
        }
        [port, "hold", connections] => hold(port.parse()?, connections.parse()?)?,
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn connect(port: u16) -> Fallible<Client> {
    Ok(Client::connect("127.0.0.1", port, PATIENCE)?)
}

/// Operations per second, with a thread for each client. `work` gets the client, its number and when to end.
fn run<C: Send>(
    clients: Vec<C>,
    seconds: f64,
    work: impl Fn(C, usize, Instant) -> Fallible<u64> + Sync,
) -> Fallible<f64> {
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(seconds);
    thread::scope(|scope| {
        let work = &work;
        let clients = clients.into_iter().enumerate();
        let running: Vec<_> = clients.map(|(index, client)| scope.spawn(move || work(client, index, end))).collect();
        let mut operations = 0;
        for client in running {
            operations += client.join().map_err(|_| "a client panicked")??;
        }
        Ok(operations as f64 / began.elapsed().as_secs_f64())
    })
}

fn unknown(operation: &str) -> Box<dyn Error + Send + Sync> {
    format!("unknown operation {operation}").into()
}

fn one_by_one(mut client: Client, operation: &str, index: usize, end: Instant) -> Fallible<u64> {
    let key = format!("load/{index}");
    client.set(&key, VALUE)?;
    let counter = format!("counter/{index}");
    let mut operations = 0u64;
    while Instant::now() < end {
        match operation {
            "get" => drop(client.get(&key)?),
            // SET has no answer: reading it back keeps one request in flight, as the other operations do.
            "set" => {
                client.set(&key, VALUE)?;
                client.try_get(&key)?;
            }
            "add" => drop(client.add(&counter, 1)?),
            other => return Err(unknown(other)),
        }
        operations += 1;
    }
    Ok(operations)
}

fn pipelined(mut stream: TcpStream, operation: &str, index: usize, depth: usize, end: Instant) -> Fallible<u64> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (key, counter) = (format!("/load/{index}"), format!("/counter/{index}"));
    let get = Request::Get { key: key.as_bytes() };
    let set = Request::Set { key: key.as_bytes(), value: VALUE };
    let value_bytes = NUMBER_BYTES + VALUE.len();
    let mut opening = HELLO.to_vec();
    set.encode(&mut opening);
    stream.write_all(&opening)?;
    let (request, reply_bytes) = match operation {
        "get" => (get.clone(), depth * value_bytes),
        "set" => (set, value_bytes),
        "add" => (Request::Add { key: counter.as_bytes(), delta: 1 }, depth * NUMBER_BYTES),
        other => return Err(unknown(other)),
    };
    let mut batch = Vec::new();
    (0..depth).for_each(|_| request.encode(&mut batch));
    if operation == "set" {
        // The only answer of the batch: it tells that all of it was carried out.
        get.encode(&mut batch);
    }
    let mut replies = vec![0; reply_bytes];
    let mut operations = 0;
    while Instant::now() < end {
        stream.write_all(&batch)?;
        stream.read_exact(&mut replies)?;
        operations += depth as u64;
    }
    Ok(operations)
}

fn hold(port: u16, connections: usize) -> Fallible<()> {
    raise_file_limit()?;
    let mut held = Vec::with_capacity(connections);
    for _ in 0..connections {
        held.push(connect(port)?);
    }
    println!("held");
    io::stdin().read_to_end(&mut Vec::new())?;
    for client in &mut held {
        client.num_keys()?;
    }
    println!("answered");
    Ok(())
}
