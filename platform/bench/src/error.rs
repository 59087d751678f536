//! Why a measurement could not be made.
//!
//! Must never know: which measurement.

use meridian_types::{Classify, ErrorClass};

/// Why a measurement could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BenchError {
    /// A socket, a file or `/proc`.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's reason.
        reason: String,
    },
    /// An address that is not understood.
    #[error("'{0}' is not an address of the form {1}")]
    Address(String, &'static str),
    /// A topic's name.
    #[error(transparent)]
    Topic(#[from] meridian_types::name::NameError),
    /// The broker refused a request or a send.
    #[error("the broker refused {what}: {message} (code {code})")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The protocol's error code.
        code: i32,
        /// The broker's reason.
        message: String,
    },
    /// The connection, producer or consumer ended before the work was done.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// No answer in time.
    #[error("no answer to {what} within {deadline_ms} ms")]
    Late {
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        deadline_ms: u64,
    },
    /// The work was done, but not as it should have been.
    #[error("{0}")]
    Wrong(String),
}

impl BenchError {
    /// Names what failed.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, reason: error.to_string() }
    }
}

impl Classify for BenchError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Address(..) | Self::Topic(_) | Self::Refused { .. } => ErrorClass::Caller,
            Self::Wrong(_) => ErrorClass::Corrupt,
            Self::Io { .. } | Self::Ended(_) | Self::Late { .. } => ErrorClass::Retry,
        }
    }
}
