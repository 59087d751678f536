//! The body of a request, which outlives its refusal.
//!
//! A client that sends all of a body before it reads must be able to read why it was refused: if the connection were closed
//! with bytes unread, the system would reset it, and the answer would be lost.
//!
//! Invariants: B1 what is left of a refused request is read and dropped, at most [`MAX_REST_BYTES`] and
//! [`REST_TIMEOUT`] of it; B2 a client that waits to be asked for its body (`Expect: 100-continue`) is not asked for it.
//! Failure: a body that is longer or slower is left unread, and its connection ends.
//! Must never know: what bodies mean.

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of a refused body that are read and dropped at most.
const MAX_REST_BYTES: usize = 64 << 20;
/// How long that may take.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

struct Shared {
    incoming: Incoming,
    begun: bool,
    ended: bool,
}

/// A body that can be read on after its request was dropped.
#[derive(Clone)]
pub(crate) struct KeptBody {
    shared: Arc<Mutex<Shared>>,
    is_expected: bool,
}

impl KeptBody {
    /// `is_expected`: the client waits to be asked for it.
    pub(crate) fn new(incoming: Incoming, is_expected: bool) -> Self {
        let ended = incoming.is_end_stream();
        Self { shared: Arc::new(Mutex::new(Shared { incoming, begun: false, ended })), is_expected }
    }

    /// Reads what is left and drops it (B1, B2).
    pub(crate) async fn drop_rest(mut self) {
        let waits = self.is_expected && !self.shared.lock().unwrap_or_else(PoisonError::into_inner).begun;
        if waits || self.is_end_stream() {
            return;
        }
        let rest = async {
            let mut bytes = 0;
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
                if bytes > MAX_REST_BYTES {
                    break;
                }
            }
        };
        if tokio::time::timeout(REST_TIMEOUT, rest).await.is_err() {
            tracing::debug!("the rest of a refused request took too long");
        }
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.begun = true;
        let polled = Pin::new(&mut shared.incoming).poll_frame(context);
        shared.ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.ended || shared.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).incoming.size_hint()
    }
}
