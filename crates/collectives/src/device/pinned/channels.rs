//! Threads of a rank that help to reduce.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use super::backoff::{SLEEP, SPIN};
use super::chunks::Work;
use super::memory::{Counter, Memory, Scratch};
use crate::Error;

/// A thread of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub(super) rank: usize,
    pub(super) channel: usize,
}

/// The channels of a rank beside the first, which is the thread that has the operation. They end when this is dropped.
pub(super) struct ChannelThreads {
    pub(super) channels: Vec<(Sender<Work>, JoinHandle<()>)>,
    /// Nothing more will come.
    pub(super) over: Arc<AtomicBool>,
}

impl ChannelThreads {
    pub(super) fn start(memory: &Arc<Memory>, rank: usize, channels: usize) -> Result<ChannelThreads, Error> {
        let mut threads = ChannelThreads { channels: Vec::new(), over: Arc::new(AtomicBool::new(false)) };
        for channel in 1..channels {
            let (works, wanted) = mpsc::channel::<Work>();
            let (memory, over) = (Arc::clone(memory), Arc::clone(&threads.over));
            let help = move || {
                let mut scratch = Scratch::new();
                for work in wanted {
                    help(&memory, Channel { rank, channel }, &work, &mut scratch, &over);
                }
            };
            let thread = std::thread::Builder::new()
                .name("instep-device-channel".to_owned())
                .spawn(help)
                .map_err(|cause| Error::system("start a thread", cause))?;
            threads.channels.push((works, thread));
        }
        Ok(threads)
    }

    pub(super) fn wake(&self, work: &Work) {
        for (works, _) in self.channels.iter().take(work.channels - 1) {
            // It takes what it is given as long as this lives.
            let _ = works.send(*work);
        }
    }
}

impl Drop for ChannelThreads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for (works, thread) in self.channels.drain(..) {
            drop(works);
            crate::sync::join(thread);
        }
    }
}

/// What a channel beside the first does of an operation.
pub(super) fn help(memory: &Memory, who: Channel, work: &Work, scratch: &mut Scratch, over: &AtomicBool) {
    for index in 0..work.count() {
        let chunk = work.chunk(index);
        let began = Instant::now();
        while !memory.all_here(chunk.number + 1) {
            if over.load(Ordering::Relaxed) {
                return;
            }
            if began.elapsed() < SPIN { std::hint::spin_loop() } else { std::thread::sleep(SLEEP) }
        }
        memory.reduce(who, chunk, work, scratch);
        memory.publish(who.rank, Counter::Done(who.channel), chunk.number + 1);
    }
}
