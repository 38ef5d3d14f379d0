//! Whether changes can be stored.

use nix::sys::statvfs::statvfs;

use crate::{Database, Result};

/// Bytes that must be free on the database's disk: below this the journal of changes soon finds no room.
const ROOM: u64 = 1 << 20;

impl Database {
    /// Why changes cannot be stored, if they cannot: the disk is full, or the last change could not be stored and another
    /// one cannot either. Fails if nothing can be read.
    pub async fn unwritable(&self) -> Result<Option<String>> {
        let path = self.path.clone();
        let is_file = self.is_file;
        // A disk that does not say how full it is may have room, and so may a server's.
        let free = self.executor.read(move |_| {
            let disk = if is_file { statvfs(&*path).ok() } else { None };
            Ok(disk.map_or(u64::MAX, |disk| disk.blocks_available().saturating_mul(disk.fragment_size())))
        });
        let free = free.await?;
        if free < ROOM {
            return Ok(Some(format!("only {} KiB are free on its disk", free >> 10)));
        }
        if self.executor.last_failure().is_none() {
            return Ok(None);
        }
        let tried = self.executor.write(|connection| {
            connection.execute(
                "INSERT INTO settings (name, value) VALUES ('write_probes', '1') \
                 ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(settings.value AS BIGINT) + 1 AS TEXT)",
                [],
            )?;
            Ok(())
        });
        match tried.await {
            Ok(()) => Ok(None),
            Err(error) if error.is_lost() => Err(error),
            Err(error) => Ok(Some(error.to_string())),
        }
    }
}
