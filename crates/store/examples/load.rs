//! Loads a store server with plain clients, one request at a time each. Used by `bench/store.py`.
//!
//! ```text
//! load PORT run OPERATION CONNECTIONS SECONDS     prints the operations done per second
//! load PORT hold CONNECTIONS                      opens them, prints "held", waits for the end of standard input
//! ```
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::io::Read;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use instep_store::{Client, raise_file_limit};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [port, "run", operation, connections, seconds] => {
            let rate = run(port.parse()?, operation, connections.parse()?, Duration::from_secs_f64(seconds.parse()?))?;
            println!("{rate}");
        }
        [port, "hold", connections] => hold(port.parse()?, connections.parse()?)?,
        _ => return Err("usage: load PORT run OPERATION CONNECTIONS SECONDS | PORT hold CONNECTIONS".into()),
    }
    Ok(())
}

fn connect(port: u16) -> Fallible<Client> {
    Ok(Client::connect("127.0.0.1", port, Duration::from_secs(60))?)
}

fn run(port: u16, operation: &str, connections: usize, duration: Duration) -> Fallible<f64> {
    let clients: Vec<Client> = (0..connections).map(|_| connect(port)).collect::<Fallible<_>>()?;
    let began = Instant::now();
    thread::scope(|scope| {
        let clients = clients.into_iter().enumerate();
        let running: Vec<_> = clients
            .map(|(index, client)| scope.spawn(move || one_client(client, operation, index, began + duration)))
            .collect();
        let mut operations = 0;
        for client in running {
            operations += client.join().map_err(|_| "a client panicked")??;
        }
        Ok(operations as f64 / began.elapsed().as_secs_f64())
    })
}

fn one_client(mut client: Client, operation: &str, index: usize, end: Instant) -> Fallible<u64> {
    let key = format!("load/{index}");
    client.set(&key, b"0123456789abcdef")?;
    let counter = format!("counter/{index}");
    let mut operations = 0u64;
    while Instant::now() < end {
        match operation {
            "get" => drop(client.get(&key)?),
            // SET has no answer: reading it back keeps one request in flight, as the other operations do.
            "set" => {
                client.set(&key, b"0123456789abcdef")?;
                client.try_get(&key)?;
            }
            "add" => drop(client.add(&counter, 1)?),
            other => return Err(format!("unknown operation {other}").into()),
        }
        operations += 1;
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
