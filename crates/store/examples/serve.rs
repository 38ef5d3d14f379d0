//! Serves a store until its standard input ends: `cargo run --release --example serve`. Prints the port.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::io::{self, Read};

use instep_store::{Server, listen};

fn main() -> io::Result<()> {
    let server = Server::start(listen(0)?, None, |notice| eprintln!("{notice}"))?;
    println!("{}", server.port());
    io::stdin().read_to_end(&mut Vec::new())?;
    server.shutdown();
    Ok(())
}
