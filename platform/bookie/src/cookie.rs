//! The identity of a node's folders.
//!
//! Layout: text in the file `COOKIE` of every journal, ledger and index folder, one `key=value` a line: `version=1`,
//! `bookie`, `instance`, `data` (drawn when the folders were first used), `journal-dirs`, `ledger-dirs` (joined by
//! `|`), and at the end `crc32c` (hex) of the lines before.
//! Invariants: K1 (S8) a node starts only if every folder carries the same cookie and it names this id, this instance
//! and these folders; or if none carries one, none holds data and the cluster knows no cookie of this id.
//! Failure: [`OpenError::Identity`] with what was found and what was expected.

use crate::config::BookieConfig;
use crate::error::{OpenError, StorageError};
use crate::journal::files::{random_epoch, sync_dir};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "COOKIE";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    bookie: String,
    instance: String,
    data: String,
    journal_dirs: String,
    ledger_dirs: String,
}

impl Cookie {
    /// The text.
    pub fn encode(&self) -> String {
        let body = format!(
            "version=1\nbookie={}\ninstance={}\ndata={}\njournal-dirs={}\nledger-dirs={}\n",
            self.bookie, self.instance, self.data, self.journal_dirs, self.ledger_dirs
        );
        let crc = crc32c::crc32c(body.as_bytes());
        format!("{body}crc32c={crc:08x}\n")
    }

    /// Reads the text; the error says what is wrong with it.
    pub fn decode(text: &str) -> Result<Self, String> {
        let (body, crc) = text.trim_end().rsplit_once("crc32c=").ok_or("it has no checksum")?;
        if u32::from_str_radix(crc, 16).ok() != Some(crc32c::crc32c(body.as_bytes())) {
            return Err("its checksum does not match".to_owned());
        }
        let value = |key: &str| {
            body.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .map(str::to_owned)
                .ok_or_else(|| format!("it has no {key}"))
        };
        match value("version")?.as_str() {
            "1" => {}
            other => return Err(format!("its version {other} is not known (known: 1)")),
        }
        Ok(Self {
            bookie: value("bookie")?,
            instance: value("instance")?,
            data: value("data")?,
            journal_dirs: value("journal-dirs")?,
            ledger_dirs: value("ledger-dirs")?,
        })
    }
}

fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join("|")
}

/// Folders in the order of the settings, each once.
fn folders(config: &BookieConfig) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    let index = config.index_path();
    for dir in config.journal_dirs.iter().chain(&config.ledger_dirs).chain([&index]) {
        if !all.contains(dir) {
            all.push(dir.clone());
        }
    }
    all
}

/// Checks the folders (K1), and marks new ones.
pub(crate) fn check(config: &BookieConfig) -> Result<Cookie, OpenError> {
    let folders = folders(config);
    for dir in &folders {
        fs::create_dir_all(dir).map_err(|e| StorageError::io("make folder", dir, e))?;
    }
    let mut found: Vec<(&PathBuf, Cookie)> = Vec::new();
    let mut without: Vec<&PathBuf> = Vec::new();
    for dir in &folders {
        match fs::read_to_string(dir.join(FILE_NAME)) {
            Ok(text) => {
                let cookie = Cookie::decode(&text)
                    .map_err(|why| OpenError::Identity(format!("the cookie in {} is damaged: {why}", dir.display())))?;
                found.push((dir, cookie));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => without.push(dir),
            Err(error) => return Err(StorageError::io("read the cookie in", dir, error).into()),
        }
    }
    match found.first() {
        None => first_use(config, &folders),
        Some((_, cookie)) => {
            if let Some(dir) = without.first() {
                let marked = found.iter().map(|(dir, _)| dir.display().to_string()).collect::<Vec<_>>().join(", ");
                return Err(OpenError::Identity(format!(
                    "{} carries no cookie but {marked} does: data of this bookie is missing; mount the folder, or \
                     replace the bookie and let its ledgers be re-replicated",
                    dir.display()
                )));
            }
            if let Some((dir, other)) = found.iter().find(|(_, other)| other != cookie) {
                return Err(OpenError::Identity(format!("{} belongs to other folders: {other:?}", dir.display())));
            }
            compare(config, cookie)?;
            Ok(cookie.clone())
        }
    }
}

fn compare(config: &BookieConfig, cookie: &Cookie) -> Result<(), OpenError> {
    let pairs = [
        ("bookie id", cookie.bookie.as_str(), config.id.as_str().to_owned()),
        ("instance", cookie.instance.as_str(), config.instance_id.clone()),
        ("journal folders", cookie.journal_dirs.as_str(), joined(&config.journal_dirs)),
        ("ledger folders", cookie.ledger_dirs.as_str(), joined(&config.ledger_dirs)),
    ];
    for (what, stored, set) in pairs {
        if stored != set {
            return Err(OpenError::Identity(format!("{what} on disk is {stored:?}, the settings say {set:?}")));
        }
    }
    match &config.registered_cookie {
        Some(registered) if Cookie::decode(registered).as_ref() != Ok(cookie) => Err(OpenError::Identity(format!(
            "the cluster knows bookie {} with other data than these folders hold: {registered:?} is registered",
            config.id
        ))),
        _ => Ok(()),
    }
}

fn first_use(config: &BookieConfig, folders: &[PathBuf]) -> Result<Cookie, OpenError> {
    if config.registered_cookie.is_some() {
        return Err(OpenError::Identity(format!(
            "the folders are empty, but the cluster counts on data of bookie {}: it was lost or is not mounted; start \
             it under a new id, or remove its cookie from the cluster after its ledgers were re-replicated",
            config.id
        )));
    }
    for dir in folders {
        let strange = fs::read_dir(dir)
            .map_err(|e| StorageError::io("list", dir, e))?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "journal" || extension == "log"));
        if let Some(path) = strange {
            return Err(OpenError::Identity(format!("{} is data, but the folder has no cookie", path.display())));
        }
    }
    let cookie = Cookie {
        bookie: config.id.as_str().to_owned(),
        instance: config.instance_id.clone(),
        data: format!("{:016x}", random_epoch()),
        journal_dirs: joined(&config.journal_dirs),
        ledger_dirs: joined(&config.ledger_dirs),
    };
    for dir in folders {
        write_cookie(dir, &cookie)?;
    }
    Ok(cookie)
}

fn write_cookie(dir: &Path, cookie: &Cookie) -> Result<(), StorageError> {
    let (temporary, path) = (dir.join("COOKIE.new"), dir.join(FILE_NAME));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(cookie.encode().as_bytes())?;
        file.sync_all()
    });
    written.map_err(|e| StorageError::io("write", &temporary, e))?;
    fs::rename(&temporary, &path).map_err(|e| StorageError::io("rename", &temporary, e))?;
    sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::BookieId;

    fn config(base: &Path) -> BookieConfig {
        BookieConfig::new(BookieId::new("b1"), base.join("journal"), base.join("ledgers"))
    }

    #[test]
    fn golden_text() {
        let cookie = Cookie {
            bookie: "b1".into(),
            instance: "i".into(),
            data: "0f".into(),
            journal_dirs: "/j".into(),
            ledger_dirs: "/l|/m".into(),
        };
        let text = cookie.encode();
        assert!(
            text.starts_with("version=1\nbookie=b1\ninstance=i\ndata=0f\njournal-dirs=/j\nledger-dirs=/l|/m\ncrc32c=")
        );
        assert_eq!(Cookie::decode(&text), Ok(cookie));
        assert!(Cookie::decode(&text.replace("b1", "b2")).is_err());
    }

    #[test]
    fn the_same_folders_start_again_and_others_do_not() {
        let base = tempfile::tempdir().unwrap();
        let cookie = check(&config(base.path())).unwrap();
        assert_eq!(check(&config(base.path())).unwrap(), cookie);
        let other = BookieConfig { id: BookieId::new("b2"), ..config(base.path()) };
        assert!(check(&other).unwrap_err().to_string().contains("\"b1\""));
        let other = BookieConfig { instance_id: "x".into(), ..config(base.path()) };
        assert!(matches!(check(&other), Err(OpenError::Identity(_))));
    }

    #[test]
    fn wiped_data_is_refused_under_the_old_id() {
        let base = tempfile::tempdir().unwrap();
        let cookie = check(&config(base.path())).unwrap();
        fs::remove_dir_all(base.path().join("ledgers")).unwrap();
        assert!(check(&config(base.path())).unwrap_err().to_string().contains("carries no cookie"));
        fs::remove_dir_all(base.path().join("journal")).unwrap();
        let wiped = BookieConfig { registered_cookie: Some(cookie.encode()), ..config(base.path()) };
        fs::remove_dir_all(base.path().join("ledgers")).unwrap();
        assert!(check(&wiped).unwrap_err().to_string().contains("counts on data"));
        check(&config(base.path())).unwrap();
        assert!(check(&wiped).unwrap_err().to_string().contains("other data"));
    }
}
