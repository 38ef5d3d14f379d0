//! The handle on a running server: starts the thread, stops it, joins it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use mio::{Poll, Waker};

use crate::companion::Companion;
use crate::event_loop::{EventLoop, WAKER};
use crate::listen::raise_file_limit;
use crate::memory;
use crate::notice::Notice;
use crate::protocol::Limits;

/// A store server on its own thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub struct Server {
    port: u16,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the store on `listeners` (see [`crate::listen()`]), and the companion's protocol if there is one.
    ///
    /// `notices` is called on the server's thread. The limit on open files of the process is raised as far as it goes. What
    /// all clients may use together depends on the machine's memory, see [`Limits::for_memory`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use instep_store::{Client, Server, listen_loopback};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::start(listen_loopback(0)?, None, |notice| eprintln!("{notice}"))?;
    /// let mut client = Client::connect("localhost", server.port(), Duration::from_secs(10))?;
    /// client.set("rank0/address", b"10.0.0.1:4000")?;
    /// assert_eq!(client.get("rank0/address")?, b"10.0.0.1:4000");
    /// server.shutdown();
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(
        listeners: Vec<TcpListener>,
        companion: Option<Box<dyn Companion>>,
        notices: impl FnMut(Notice) + Send + 'static,
    ) -> io::Result<Server> {
        let limits = memory::of_this_machine().map_or_else(Limits::default, Limits::for_memory);
        Server::start_with(limits, listeners, companion, notices)
    }

    /// As [`Server::start`], with bounds of its own.
    pub fn start_with(
        limits: Limits,
        listeners: Vec<TcpListener>,
        companion: Option<Box<dyn Companion>>,
        notices: impl FnMut(Notice) + Send + 'static,
    ) -> io::Result<Server> {
        let Some(first) = listeners.first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a server needs a listener"));
        };
        let port = first.local_addr()?.port();
        // Without it the server still works, for fewer connections; accepting then says so.
        let file_limit = raise_file_limit().ok();
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let notices = Box::new(notices);
        let event_loop = EventLoop::new(poll, listeners, companion, notices, stop.clone(), limits, file_limit)?;
        let thread = thread::Builder::new().name("instep-store".to_owned()).spawn(move || event_loop.run())?;
        Ok(Server { port, stop, waker, thread: Some(thread) })
    }

    /// The port of the listeners.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the server still serves: false after a companion's [`crate::Context::stop`].
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Writes what is queued, within a short deadline, closes every connection and joins the thread.
    pub fn shutdown(mut self) {
        self.stop_and_join();
    }

    /// Blocks until a companion's [`crate::Context::stop`] has ended the server.
    pub fn join(mut self) {
        self.join_thread();
    }

    fn stop_and_join(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Failing to wake means that the thread is gone.
        let _ = self.waker.wake();
        self.join_thread();
    }

    fn join_thread(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}
