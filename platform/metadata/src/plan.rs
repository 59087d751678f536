//! What a transaction changes: a pure decision over what is held, for every store.
//!
//! Invariants: M2 the first condition that does not hold ends the transaction with nothing changed; an ephemeral key
//! is only written for a session that lives.
//! Failure: [`MetadataError::Conflict`] or [`MetadataError::SessionExpired`]; errors of the lookup pass through.
//! Must never know: where keys are stored.

use crate::store::{Condition, MetadataError, Operation, SessionId, Version, WatchEvent};
use bytes::Bytes;

/// What the store holds under a key, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The value's version.
    pub version: Version,
    /// The session that the key dies with.
    pub ephemeral: Option<SessionId>,
}

/// One key's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value, `None` = deleted.
    pub value: Option<Bytes>,
    /// The session that the key dies with from now on.
    pub ephemeral: Option<SessionId>,
    /// The session that the key was bound to before.
    pub was_ephemeral: Option<SessionId>,
}

impl Change {
    /// The change as its watchers see it.
    pub fn into_event(self, version: Version) -> WatchEvent {
        match self.value {
            Some(value) => WatchEvent::Put(crate::Entry { key: self.key, value, version, ephemeral: self.ephemeral }),
            None => WatchEvent::Delete { key: self.key, version },
        }
    }
}

/// Judges all operations in order; answers the changes, none for checks and deletes of absent keys.
///
/// # Errors
/// [`MetadataError::Conflict`] for the first condition that does not hold, [`MetadataError::SessionExpired`] for an
/// ephemeral key of a session that has ended, and those of `held`.
pub fn plan(
    operations: Vec<Operation>,
    mut held: impl FnMut(&str) -> Result<Option<Held>, MetadataError>,
    lives: impl Fn(SessionId) -> bool,
) -> Result<Vec<Change>, MetadataError> {
    let mut changes = Vec::with_capacity(operations.len());
    for operation in operations {
        match operation {
            Operation::Put { key, value, condition, ephemeral } => {
                let before = judge(&key, condition, &mut held)?;
                if let Some(session) = ephemeral.filter(|session| !lives(*session)) {
                    return Err(MetadataError::SessionExpired(session));
                }
                let was_ephemeral = before.and_then(|held| held.ephemeral);
                changes.push(Change { key, value: Some(value), ephemeral, was_ephemeral });
            }
            Operation::Delete { key, condition } => {
                if let Some(before) = judge(&key, condition, &mut held)? {
                    changes.push(Change { key, value: None, ephemeral: None, was_ephemeral: before.ephemeral });
                }
            }
            Operation::Check { key, condition } => {
                judge(&key, condition, &mut held)?;
            }
        }
    }
    Ok(changes)
}

fn judge(
    key: &str,
    condition: Condition,
    held: &mut impl FnMut(&str) -> Result<Option<Held>, MetadataError>,
) -> Result<Option<Held>, MetadataError> {
    let before = held(key)?;
    let holds = match (condition, before) {
        (Condition::Any, _) | (Condition::Absent, None) => true,
        (Condition::Is(version), Some(before)) => version == before.version,
        (Condition::Absent, Some(_)) | (Condition::Is(_), None) => false,
    };
    if holds {
        return Ok(before);
    }
    Err(MetadataError::Conflict { key: key.to_owned(), current: before.map(|held| held.version) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Held = Held { version: Version(7), ephemeral: Some(SessionId(1)) };

    fn put(key: &str, condition: Condition, ephemeral: Option<SessionId>) -> Operation {
        Operation::Put { key: key.to_owned(), value: Bytes::from_static(b"v"), condition, ephemeral }
    }

    fn run(operations: Vec<Operation>) -> Result<Vec<Change>, MetadataError> {
        plan(operations, |key| Ok((key == "held").then_some(HELD)), |session| session == SessionId(1))
    }

    #[test]
    fn the_first_broken_condition_is_named_with_the_version_now() {
        let conflict = run(vec![put("new", Condition::Absent, None), put("held", Condition::Is(Version(6)), None)]);
        assert_eq!(conflict, Err(MetadataError::Conflict { key: "held".into(), current: Some(Version(7)) }));
        let absent = run(vec![put("new", Condition::Is(Version(1)), None)]);
        assert_eq!(absent, Err(MetadataError::Conflict { key: "new".into(), current: None }));
    }

    #[test]
    fn an_ephemeral_key_needs_a_live_session_and_remembers_the_old_one() {
        let dead = run(vec![put("new", Condition::Any, Some(SessionId(2)))]);
        assert_eq!(dead, Err(MetadataError::SessionExpired(SessionId(2))));
        let changes = run(vec![put("held", Condition::Is(Version(7)), None)]).unwrap();
        assert_eq!(changes[0].was_ephemeral, Some(SessionId(1)));
        assert_eq!(changes[0].ephemeral, None);
    }

    #[test]
    fn checks_and_deletes_of_absent_keys_change_nothing() {
        let operations = vec![
            Operation::Check { key: "held".into(), condition: Condition::Is(Version(7)) },
            Operation::Delete { key: "new".into(), condition: Condition::Any },
        ];
        assert_eq!(run(operations), Ok(vec![]));
    }
}
