//! Reading another process's memory, where the kernel permits it.

use std::{io, thread};

/// The least that is worth a thread of its own.
const PART_BYTES: usize = 4 << 20;
/// How many threads read at most; that many reach what the memory can deliver.
const MOST_THREADS: usize = 8;

/// Asks Yama, where there is one, to let our peers read us. Refusal is found out by the probe.
pub(crate) fn permit() {
    // SAFETY: sets an attribute of this process; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Copies `length` bytes at `from` in another process to `to`.
///
/// # Safety
/// `to` is writable for `length` bytes.
pub(crate) unsafe fn read(process: i32, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        // SAFETY: `done < length` bytes are already written.
        let local = libc::iovec { iov_base: unsafe { to.add(done) }.cast(), iov_len: length - done };
        let remote = libc::iovec { iov_base: (from as usize + done) as *mut libc::c_void, iov_len: length - done };
        // SAFETY: the caller vouches for the local memory; the kernel checks the remote one.
        let read = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
        match read {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => done += read as usize,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// As [`read`], large pieces with several threads: one core copies less than memory can deliver, above all into pages
/// that were never touched.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_in_parallel(process: i32, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // Half of the cores: the peers, who hash what they send, need some too.
    let threads = (length / PART_BYTES).clamp(1, MOST_THREADS.min(cores.div_ceil(2)));
    let part = length.div_ceil(threads).next_multiple_of(4096);
    let to = to.expose_provenance();
    // SAFETY: the parts lie inside what the caller vouches for and do not overlap.
    let read_part = move |start: usize| unsafe {
        let target = std::ptr::with_exposed_provenance_mut(to + start);
        read(process, from + start as u64, target, part.min(length - start))
    };
    thread::scope(|scope| {
        let others: Vec<_> = (part..length).step_by(part).map(|start| scope.spawn(move || read_part(start))).collect();
        let own = read_part(0);
        others.into_iter().map(|other| other.join().expect("reading does not panic")).fold(own, io::Result::and)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_can_be_read_and_a_wild_pointer_is_an_error() {
        let source = vec![5u8; 100_000];
        let mut target = vec![0u8; 100_000];
        let process = std::process::id() as i32;
        // SAFETY: the target is that long.
        unsafe { read(process, source.as_ptr() as u64, target.as_mut_ptr(), target.len()) }.unwrap();
        assert_eq!(source, target);
        // SAFETY: as above.
        assert!(unsafe { read(process, 8, target.as_mut_ptr(), 8) }.is_err());
    }

    #[test]
    fn a_large_piece_is_read_whole_and_an_error_in_any_part_counts() {
        let length = 3 * PART_BYTES + 4097;
        let source: Vec<u8> = (0..length).map(|place| (place / 4099) as u8).collect();
        let mut target = vec![0u8; length];
        let process = std::process::id() as i32;
        // SAFETY: the target is that long.
        unsafe { read_in_parallel(process, source.as_ptr() as u64, target.as_mut_ptr(), length) }.unwrap();
        assert!(source == target);
        // SAFETY: as above.
        assert!(unsafe { read_in_parallel(process, 8, target.as_mut_ptr(), length) }.is_err());
    }
}
