//! Names and passwords from a file of `name:hash` lines (`$apr1$` and bcrypt hashes).
//!
//! The file is looked at again when its time stamp changed, at most once a second (I3).

use crate::{IdentityError, Principal, apr1, source};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Passwords {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    hashes: HashMap<String, String>,
    modified: Option<SystemTime>,
    looked: Instant,
}

impl Passwords {
    pub(crate) fn new(conf: &str) -> Result<Self, IdentityError> {
        let hashes = parse(&source::load("basicAuthConf", conf)?)?;
        let file = source::path(conf);
        let modified = file.as_ref().and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
        Ok(Self { file, state: Mutex::new(State { hashes, modified, looked: Instant::now() }) })
    }

    pub(crate) fn authenticate(&self, data: &[u8]) -> Result<Principal, IdentityError> {
        let text = std::str::from_utf8(data).map_err(|_| IdentityError::Password)?;
        let (name, password) = text.split_once(':').ok_or(IdentityError::Password)?;
        let hash = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            self.look_again(&mut state);
            state.hashes.get(name).cloned()
        };
        let matches = match hash {
            Some(hash) if hash.starts_with("$apr1$") => apr1::verify(password.as_bytes(), &hash),
            Some(hash) if hash.starts_with("$2") => bcrypt::verify(password, &hash).unwrap_or(false),
            _ => false,
        };
        if matches { Ok(Principal { role: name.to_owned(), expires_ms: None }) } else { Err(IdentityError::Password) }
    }

    fn look_again(&self, state: &mut State) {
        let Some(file) = &self.file else { return };
        if state.looked.elapsed() < LOOK_AGAIN_AFTER {
            return;
        }
        state.looked = Instant::now();
        let modified = std::fs::metadata(file).ok().and_then(|meta| meta.modified().ok());
        if modified == state.modified {
            return;
        }
        match std::fs::read(file).map_err(|e| e.to_string()).and_then(|raw| parse(&raw).map_err(|e| e.to_string())) {
            Ok(hashes) => {
                state.hashes = hashes;
                state.modified = modified;
            }
            Err(reason) => {
                tracing::warn!(%reason, "password file can't be read again; the last good one stays in force")
            }
        }
    }
}

fn parse(raw: &[u8]) -> Result<HashMap<String, String>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting: "basicAuthConf", reason };
    let text = std::str::from_utf8(raw).map_err(|_| refuse("is no text".to_owned()))?;
    let mut hashes = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once(':') {
            Some((name, hash)) if hash.starts_with("$apr1$") || hash.starts_with("$2") => {
                hashes.insert(name.to_owned(), hash.to_owned());
            }
            _ => return Err(refuse(format!("line {}: expected name:hash with an apr1 or bcrypt hash", number + 1))),
        }
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_hashes_are_checked() {
        let bcrypt = bcrypt::hash("secret", 4).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".htpasswd");
        std::fs::write(&file, format!("# users\nann:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\nbob:{bcrypt}\n")).unwrap();
        let passwords = Passwords::new(&format!("file://{}", file.display())).unwrap();
        assert_eq!(passwords.authenticate(b"ann:myPassword").unwrap().role, "ann");
        assert_eq!(passwords.authenticate(b"bob:secret").unwrap().role, "bob");
        for wrong in [&b"ann:mypassword"[..], b"bob:", b"eve:secret", b"ann", b"\xff:x"] {
            assert_eq!(passwords.authenticate(wrong), Err(IdentityError::Password));
        }
    }

    #[test]
    fn plain_text_passwords_are_refused_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "ann:plain\n").unwrap();
        let error = Passwords::new(file.to_str().unwrap()).err().unwrap();
        assert_eq!(error.to_string(), "basicAuthConf: line 1: expected name:hash with an apr1 or bcrypt hash");
    }
}
