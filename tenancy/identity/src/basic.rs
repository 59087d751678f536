//! Names and passwords from a file of `name:hash` lines (`$apr1$` and bcrypt hashes).
//!
//! Invariants: an unknown name costs as much time as a wrong password, so that names can't be found out by the clock; the
//! file is looked at again when it changed, at most once a second (I3).

use crate::watched::Watched;
use crate::{IdentityError, Principal, apr1, source};
use std::collections::HashMap;
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Longest password that is hashed.
const MAX_PASSWORD_BYTES: usize = 1024;

pub(crate) struct Passwords {
    hashes: Watched<HashMap<String, String>>,
}

impl Passwords {
    pub(crate) fn new(conf: &str) -> Result<Self, IdentityError> {
        let read = conf.to_owned();
        let files = source::path(conf).into_iter().collect();
        let hashes =
            Watched::new("basicAuthConf", files, LOOK_AGAIN, move || parse(&source::load("basicAuthConf", &read)?))?;
        Ok(Self { hashes })
    }

    pub(crate) fn authenticate(&self, data: &[u8]) -> Result<Principal, IdentityError> {
        if data.len() > MAX_PASSWORD_BYTES {
            return Err(IdentityError::Password);
        }
        let text = std::str::from_utf8(data).map_err(|_| IdentityError::Password)?;
        let (name, password) = text.split_once(':').ok_or(IdentityError::Password)?;
        let hashes = self.hashes.current();
        let known = hashes.get(name);
        // Any hash of the file stands in for the one that is missing.
        let hash = known.or_else(|| hashes.values().next()).ok_or(IdentityError::Password)?;
        let matches = match hash {
            hash if hash.starts_with("$apr1$") => apr1::verify(password.as_bytes(), hash),
            hash => bcrypt::verify(password, hash).unwrap_or(false),
        };
        if matches && known.is_some() {
            Ok(Principal { role: name.to_owned(), expires_ms: None })
        } else {
            Err(IdentityError::Password)
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
            Some((name, hash)) if !name.is_empty() && (hash.starts_with("$apr1$") || hash.starts_with("$2")) => {
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
        let long = [b"bob:".as_slice(), &[b'x'; 4096]].concat();
        for wrong in [&b"ann:mypassword"[..], b"bob:", b"eve:secret", b"eve:myPassword", b"ann", b"\xff:x", &long] {
            assert_eq!(passwords.authenticate(wrong), Err(IdentityError::Password));
        }
    }

    #[test]
    fn plain_text_passwords_are_refused_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        for line in ["ann:plain\n", ":$2y$04$x\n"] {
            std::fs::write(&file, line).unwrap();
            let error = Passwords::new(file.to_str().unwrap()).err().unwrap();
            assert_eq!(error.to_string(), "basicAuthConf: line 1: expected name:hash with an apr1 or bcrypt hash");
        }
    }
}
