//! Ctrl-C while something that runs on the cluster is followed: it goes on there, and people are told so.

use std::sync::{Arc, Mutex};
use std::thread;

use instep_client::sync::lock;
use nix::sys::signal::{SigSet, Signal};

use super::dialog::say;

/// What a shell reports for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// While it lives, Ctrl-C says a text before it ends this program. Made before the threads of whoever follows.
pub(super) struct SayOnInterrupt(Arc<Mutex<Option<String>>>);

impl SayOnInterrupt {
    /// Says this text. Where the signal cannot be waited for, Ctrl-C stays what it was.
    pub(super) fn new(text: String) -> SayOnInterrupt {
        let text = Arc::new(Mutex::new(Some(text)));
        let signals: SigSet = [Signal::SIGINT].into_iter().collect();
        if signals.thread_block().is_ok() {
            let said = Arc::clone(&text);
            thread::spawn(move || {
                if signals.wait().is_ok() {
                    if let Some(text) = lock(&said).take() {
                        say(&text);
                    }
                    std::process::exit(INTERRUPTED);
                }
            });
        }
        SayOnInterrupt(text)
    }
}

impl Drop for SayOnInterrupt {
    fn drop(&mut self) {
        lock(&self.0).take();
    }
}
