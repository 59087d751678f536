//! The file: lines appended and synced, a new file when one is large.
//!
//! Invariants: lines are whole: what a crash left half-written is ended before more is appended; a full file is renamed,
//! never overwritten or deleted.
//! Failure: [`io::Error`]; the caller tries again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) struct AuditFile {
    path: PathBuf,
    max_bytes: u64,
    open: Option<(File, u64)>,
}

impl AuditFile {
    pub(crate) fn new(path: &Path, max_bytes: u64) -> Self {
        Self { path: path.to_owned(), max_bytes: max_bytes.max(1 << 16), open: None }
    }

    /// Whether the file can be written; made if absent.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.open().map(drop)
    }

    /// Appends lines; durable when it returns. After an error the same lines may come again.
    pub(crate) fn append(&mut self, lines: &str, now_ms: u64) -> io::Result<()> {
        let outcome = self.try_append(lines, now_ms);
        if outcome.is_err() {
            // What is in the file is looked at anew.
            self.open = None;
        }
        outcome
    }

    fn try_append(&mut self, lines: &str, now_ms: u64) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(_, bytes)| *bytes >= self.max_bytes) {
            self.open = None;
            std::fs::rename(&self.path, self.full_name(now_ms))?;
        }
        if self.open.is_none() {
            self.open = Some(self.open()?);
        }
        let Some((file, bytes)) = &mut self.open else { return Ok(()) };
        file.write_all(lines.as_bytes())?;
        file.sync_data()?;
        *bytes += lines.len() as u64;
        Ok(())
    }

    fn full_name(&self, now_ms: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{now_ms}"));
        let mut full = PathBuf::from(name.clone());
        let mut number = 1;
        while full.exists() {
            let mut other = name.clone();
            other.push(format!(".{number}"));
            full = PathBuf::from(other);
            number += 1;
        }
        full
    }

    fn open(&self) -> io::Result<(File, u64)> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&self.path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok((file, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_ended_and_a_full_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/audit.log");
        let mut file = AuditFile::new(&path, 1 << 16);
        file.append("{\"a\":1}\n", 5).unwrap();
        drop(file);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"tor").unwrap();
        let mut file = AuditFile::new(&path, 1 << 16);
        file.append("{\"b\":2}\n", 5).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"tor\n{\"b\":2}\n");
        file.append(&format!("{}\n", "x".repeat(1 << 16)), 5).unwrap();
        for text in ["{\"c\":3}\n", "{\"d\":4}\n"] {
            file.append(text, 7).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"c\":3}\n{\"d\":4}\n");
        assert!(std::fs::read_to_string(dir.path().join("a/audit.log.7")).unwrap().starts_with("{\"a\":1}\n"));
    }
}
