//! What a failed step of TiKV's client says about the store and about the transaction.
//!
//! Invariants: only a conflict is certain not to have been applied; everything else that a commit answers is settled by
//! reading back.
//! Failure: this is it.
//! Must never know: who asked.

use tikv_client::{Error, ProtoKeyError};

/// Longest reason that is passed on.
const MAX_REASON_BYTES: usize = 240;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Another transaction wrote one of the keys first.
    Conflict,
    /// A key is locked by another transaction, or this one was ended by another.
    Locked,
    /// The store answered, but not now: busy, no leader, another epoch.
    Busy,
    /// The store did not answer, or not in a way that is known.
    Unreachable,
    /// The step took too long.
    TimedOut,
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn timed_out(step: &str) -> Self {
        Self { kind: Kind::TimedOut, reason: format!("{step} took too long") }
    }

    pub(crate) fn of(step: &str, error: &Error) -> Self {
        let mut reason = format!("{step}: {}", without_place(&error.to_string()));
        let mut end = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        Self { kind: kind_of(error), reason }
    }

    /// The store may be away.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::TimedOut)
    }
}

/// TiKV's client names the line of its source in front of some errors, which says nothing to an operator.
fn without_place(text: &str) -> &str {
    match text.split_once(".rs:").and_then(|(place, rest)| Some((place, rest.split_once("]: ")?))) {
        Some((place, (line, rest))) if place.starts_with('[') && line.parse::<u32>().is_ok() => rest,
        _ => text,
    }
}

fn kind_of(error: &Error) -> Kind {
    match error {
        Error::KeyError(error) => kind_of_key_error(error),
        Error::MultipleKeyErrors(errors) | Error::ExtractedErrors(errors) => {
            let mut kinds = errors.iter().map(kind_of);
            let first = kinds.next().unwrap_or(Kind::Unreachable);
            if kinds.any(|kind| kind == Kind::Conflict) { Kind::Conflict } else { first }
        }
        Error::ResolveLockError(_) | Error::TxnNotFound(_) => Kind::Locked,
        Error::RegionError(_) | Error::LeaderNotFound { .. } => Kind::Busy,
        Error::UndeterminedError(inner) => kind_of(inner),
        _ => Kind::Unreachable,
    }
}

fn kind_of_key_error(error: &ProtoKeyError) -> Kind {
    if error.conflict.is_some() { Kind::Conflict } else { Kind::Locked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_source_of_the_client_are_left_out() {
        assert_eq!(without_place("[/a/b/cluster.rs:209]: no answer"), "no answer");
        for whole in ["no answer", "[/a/b.rs:x]: no", "a [b.rs:1]: c", "[b.rs:1] c"] {
            assert_eq!(without_place(whole), whole);
        }
    }

    #[test]
    fn one_conflict_among_others_is_a_conflict() {
        let conflict = ProtoKeyError { conflict: Some(Default::default()), ..ProtoKeyError::default() };
        let key_error = |error: ProtoKeyError| Error::KeyError(Box::new(error));
        let errors = vec![key_error(ProtoKeyError::default()), Error::MultipleKeyErrors(vec![key_error(conflict)])];
        assert_eq!(kind_of(&Error::ExtractedErrors(errors)), Kind::Conflict);
        assert_eq!(kind_of(&key_error(ProtoKeyError::default())), Kind::Locked);
        assert_eq!(kind_of(&Error::StringError("ü".repeat(500))), Kind::Unreachable);
        assert!(Failure::of("x", &Error::StringError("ü".repeat(500))).reason.len() <= MAX_REASON_BYTES);
    }
}
