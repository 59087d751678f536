//! A value that is made from files, and made again when they change.
//!
//! Role: [`Watched::current`] looks at the files' time stamps and sizes, at most once per interval, and answers the value.
//! Invariants: I3 what can't be made again leaves the last good value in force; it is tried again at every look, and each
//! reason is logged once.
//! Must never know: what the value is for.

use crate::IdentityError;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

type Make<T> = Box<dyn Fn() -> Result<T, IdentityError> + Send + Sync>;
type Stamps = Vec<Option<(SystemTime, u64)>>;

pub(crate) struct Watched<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    look_again: Duration,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    stamps: Stamps,
    looked: Instant,
    reason: String,
    failures: u64,
}

fn stamps(files: &[PathBuf]) -> Stamps {
    let stamp = |file: &PathBuf| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    files.iter().map(stamp).collect()
}

impl<T> Watched<T> {
    /// Makes the first value; its error is the caller's.
    pub(crate) fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        look_again: Duration,
        make: impl Fn() -> Result<T, IdentityError> + Send + Sync + 'static,
    ) -> Result<Self, IdentityError> {
        // Before the value: a change between the two is seen at the next look.
        let stamps = stamps(&files);
        let value = Arc::new(make()?);
        let state = State { value, stamps, looked: Instant::now(), reason: String::new(), failures: 0 };
        Ok(Self { what, files, look_again, make: Box::new(make), state: Mutex::new(state) })
    }

    /// The value of the files as they are, or as they were when they could last be used.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if self.files.is_empty() || state.looked.elapsed() < self.look_again {
            return state.value.clone();
        }
        state.looked = Instant::now();
        let stamps = stamps(&self.files);
        if stamps != state.stamps {
            match (self.make)() {
                Ok(value) => {
                    state.value = Arc::new(value);
                    state.stamps = stamps;
                    state.reason.clear();
                    tracing::info!(what = self.what, "files were read again");
                }
                Err(error) => {
                    state.failures += 1;
                    let reason = error.to_string();
                    if reason != state.reason {
                        tracing::warn!(what = self.what, reason, "files can't be read again; the last good ones hold");
                        state.reason = reason;
                    }
                }
            }
        }
        state.value.clone()
    }

    /// Times that the files could not be used.
    pub(crate) fn failures(&self) -> u64 {
        self.state.lock().failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(file: &std::path::Path) -> Result<u32, IdentityError> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse().map_err(|_| IdentityError::Config { setting: "x", reason: "no number".to_owned() })
    }

    #[test]
    fn a_changed_file_is_taken_and_a_damaged_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("n");
        std::fs::write(&file, "1").unwrap();
        let read = file.clone();
        let watched = Watched::new("n", vec![file.clone()], Duration::ZERO, move || number(&read)).unwrap();
        assert_eq!(*watched.current(), 1);
        std::fs::write(&file, "22").unwrap();
        assert_eq!(*watched.current(), 22);
        std::fs::write(&file, "what").unwrap();
        assert_eq!((*watched.current(), watched.failures()), (22, 1));
        std::fs::remove_file(&file).unwrap();
        assert_eq!((*watched.current(), watched.failures()), (22, 2));
        std::fs::write(&file, "333").unwrap();
        assert_eq!(*watched.current(), 333);
    }

    #[test]
    fn between_two_looks_nothing_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("n");
        std::fs::write(&file, "1").unwrap();
        let read = file.clone();
        let watched = Watched::new("n", vec![file.clone()], Duration::from_secs(3600), move || number(&read)).unwrap();
        std::fs::write(&file, "22").unwrap();
        assert_eq!(*watched.current(), 1);
    }
}
