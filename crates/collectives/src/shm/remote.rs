//! Reading another process's memory, where the kernel permits it.

use std::io;

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
}
