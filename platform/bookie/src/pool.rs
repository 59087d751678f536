//! A few threads for reads that wait for a disk.
//!
//! Role: started at the first such read, so that an idle node has none.
//! Invariants: P1 at most [`READ_QUEUE_MAX`] reads wait; P2 a read whose caller has gone is skipped.
//! Must never know: what the jobs do.

use meridian_bookie_api::BookieError;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Reads that may wait.
pub const READ_QUEUE_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// See the module.
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    threads_max: usize,
}

impl ReadPool {
    pub fn new(threads_max: usize) -> Self {
        Self { shared: Arc::default(), threads_max }
    }

    /// Queues a job.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), BookieError> {
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(BookieError::Unavailable("the bookie is closing".to_owned()));
        }
        if state.jobs.len() >= READ_QUEUE_MAX {
            return Err(BookieError::Busy(format!("{READ_QUEUE_MAX} reads wait for a disk")));
        }
        if state.idle <= state.jobs.len() && state.threads.len() < self.threads_max {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("bookie-read".to_owned()).spawn(move || work(&shared));
            match thread {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => return Err(BookieError::Busy(error.to_string())),
                Err(error) => tracing::warn!(%error, "no further read thread"),
            }
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Ends the threads after what they are doing; what waits is dropped.
    pub fn close(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.jobs.clear();
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.state.lock();
        } else if state.closed {
            return;
        } else {
            state.idle += 1;
            shared.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}
