//! The store from outside: its protocol, its decisions and a server with real sockets.

mod protocol;
mod server;
mod state;
