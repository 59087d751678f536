//! Error classes: who must act.
//!
//! Role: every typed error of a room says by [`Classify`] which of five parties has to act.
//! Must never know: any concrete error.

/// Who must act on an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The same call may succeed later; the caller waits and repeats it.
    Retry,
    /// Another node answers this; the caller looks up again.
    Redirect,
    /// The caller asked for something wrong; repeating it is useless.
    Caller,
    /// This writer or owner has lost its right; it must stop and not repeat.
    Fenced,
    /// Stored bytes are damaged or missing; an operator or a repair must act.
    Corrupt,
}

/// Implemented by every public error type of the project.
pub trait Classify {
    /// Who must act on this error.
    fn class(&self) -> ErrorClass;
}
