//! `instep store`: the TCPStore-compatible server alone.

use std::process::ExitCode;
use std::sync::mpsc;

use clap::Args;
use instep_store::Server;

use crate::console;
use crate::report::Hinted;

#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    /// Port to listen on; 0 picks any free port
    #[arg(long, short, default_value_t = 29500)]
    port: u16,
    /// Listen on all interfaces, not only on loopback
    #[arg(long)]
    all_interfaces: bool,
}

/// Serves until a signal ends the process.
pub(crate) fn serve(arguments: &StoreArguments) -> anyhow::Result<ExitCode> {
    let port = arguments.port;
    let listening =
        if arguments.all_interfaces { instep_store::listen(port) } else { instep_store::listen_loopback(port) };
    let listeners = listening.map_err(|cause| {
        let what = match cause.kind() {
            std::io::ErrorKind::AddrInUse => format!("port {port} is already in use"),
            _ => format!("cannot listen on port {port}: {cause}"),
        };
        Hinted::new(what, "choose another --port, or 0 for any free port")
    })?;
    let (notices, heard) = mpsc::channel();
    let server = Server::start(listeners, None, move |notice| {
        let _ = notices.send(notice.to_string());
    })?;
    let host = if arguments.all_interfaces { "0.0.0.0" } else { "127.0.0.1" };
    console::print(format!("instep store listening on {host}:{}\n", server.port()).as_bytes());
    for notice in heard {
        console::print_error(&format!("{} {notice}\n", console::paint("33", "warning:")));
    }
    Ok(ExitCode::SUCCESS)
}
