//! The store from outside: its protocol, its decisions and a server with real sockets.

mod handed_over;
mod protocol;
mod server;
mod state;
