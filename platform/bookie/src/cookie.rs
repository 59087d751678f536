//! The identity of a node's folders.
//!
//! Layout: text in the file `COOKIE` of every journal, ledger and index folder, one `key=value` a line: `version=1`,
//! `bookie`, `instance`, `data` (drawn when the folders were first used), `journals` and `ledgers` (how many folders of
//! each kind), `folder` (what this folder is: `journal-0`, `ledger-1`, `index`, joined by `+`; empty in the text that is
//! registered with the cluster), and at the end `crc32c` (hex) of the lines before. Paths are not in it: folders may be
//! mounted elsewhere, in the same order.
//! Invariants: K1 (S8) a node starts only if every folder carries the cookie of the same data and it names this id, this
//! instance and this folder's part; or if none carries one, none holds data and the cluster knows no cookie of this id.
//! Failure: [`OpenError::Identity`] with what was found and what was expected.

use crate::config::BookieConfig;
use crate::error::{OpenError, StorageError};
use crate::journal::files::{random_epoch, sync_dir};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) const FILE_NAME: &str = "COOKIE";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    bookie: String,
    instance: String,
    data: String,
    journals: String,
    ledgers: String,
}

impl Cookie {
    /// The text for one folder, or with no folder the one to be registered.
    pub fn encode(&self, folder: &str) -> String {
        let body = format!(
            "version=1\nbookie={}\ninstance={}\ndata={}\njournals={}\nledgers={}\nfolder={folder}\n",
            self.bookie, self.instance, self.data, self.journals, self.ledgers
        );
        let crc = crc32c::crc32c(body.as_bytes());
        format!("{body}crc32c={crc:08x}\n")
    }

    /// Reads the text and the folder's part; the error says what is wrong with it.
    pub fn decode(text: &str) -> Result<(Self, String), String> {
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
        let cookie = Self {
            bookie: value("bookie")?,
            instance: value("instance")?,
            data: value("data")?,
            journals: value("journals")?,
            ledgers: value("ledgers")?,
        };
        Ok((cookie, value("folder")?))
    }
}

/// Folders in the order of the settings, each once, with what they are.
fn folders(config: &BookieConfig) -> Vec<(PathBuf, String)> {
    let journals = config.journal_dirs.iter().enumerate().map(|(at, dir)| (dir.clone(), format!("journal-{at}")));
    let ledgers = config.ledger_dirs.iter().enumerate().map(|(at, dir)| (dir.clone(), format!("ledger-{at}")));
    let mut all: Vec<(PathBuf, String)> = Vec::new();
    for (dir, part) in journals.chain(ledgers).chain([(config.index_path(), "index".to_owned())]) {
        match all.iter_mut().find(|(known, _)| *known == dir) {
            Some((_, parts)) => {
                parts.push('+');
                parts.push_str(&part);
            }
            None => all.push((dir, part)),
        }
    }
    all
}

/// Checks the folders (K1), and marks new ones.
pub(crate) fn check(config: &BookieConfig) -> Result<Cookie, OpenError> {
    let folders = folders(config);
    for (dir, _) in &folders {
        fs::create_dir_all(dir).map_err(|e| StorageError::io("make folder", dir, e))?;
    }
    let mut marked: Vec<(&Path, Cookie)> = Vec::new();
    let mut without: Vec<&Path> = Vec::new();
    for (dir, part) in &folders {
        match fs::read_to_string(dir.join(FILE_NAME)) {
            Ok(text) => {
                let (cookie, found) = Cookie::decode(&text)
                    .map_err(|why| OpenError::Identity(format!("the cookie in {} is damaged: {why}", dir.display())))?;
                if found != *part {
                    let dir = dir.display();
                    return Err(OpenError::Identity(format!("{dir} was set up as {found}, the settings say {part}")));
                }
                marked.push((dir, cookie));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => without.push(dir),
            Err(error) => return Err(StorageError::io("read the cookie in", dir, error).into()),
        }
    }
    let Some((first, cookie)) = marked.first() else { return first_use(config, &folders) };
    if let Some(dir) = without.first() {
        return Err(OpenError::Identity(format!(
            "{} carries no cookie but {} does: data of this bookie is missing; mount the folder, or replace the \
             bookie and let its ledgers be re-replicated",
            dir.display(),
            first.display()
        )));
    }
    if let Some((dir, other)) = marked.iter().find(|(_, other)| other != cookie) {
        return Err(OpenError::Identity(format!("{} belongs to other folders: {other:?}", dir.display())));
    }
    compare(config, cookie)?;
    Ok(cookie.clone())
}

/// Gives an index folder that lost its cookie a new one, if every other folder has its own.
pub(crate) fn restore_index_cookie(config: &BookieConfig) -> Result<(), OpenError> {
    let index_path = config.index_path();
    let all = folders(config);
    let Some((_, part)) = all.iter().find(|(dir, part)| *dir == index_path && part == "index") else { return Ok(()) };
    if index_path.join(FILE_NAME).exists() {
        return Ok(());
    }
    let mut cookie = None;
    for (dir, _) in all.iter().filter(|(dir, _)| *dir != index_path) {
        let text =
            fs::read_to_string(dir.join(FILE_NAME)).map_err(|e| StorageError::io("read the cookie in", dir, e))?;
        let (found, _) = Cookie::decode(&text).map_err(OpenError::Identity)?;
        cookie = Some(found);
    }
    match cookie {
        Some(cookie) => Ok(write_cookie(&index_path, &cookie.encode(part))?),
        None => Ok(()),
    }
}

fn compare(config: &BookieConfig, cookie: &Cookie) -> Result<(), OpenError> {
    let pairs = [
        ("bookie id", cookie.bookie.as_str(), config.id.as_str().to_owned()),
        ("instance", cookie.instance.as_str(), config.instance_id.clone()),
        ("number of journal folders", cookie.journals.as_str(), config.journal_dirs.len().to_string()),
        ("number of ledger folders", cookie.ledgers.as_str(), config.ledger_dirs.len().to_string()),
    ];
    for (what, stored, set) in pairs {
        if stored != set {
            return Err(OpenError::Identity(format!("{what} on disk is {stored:?}, the settings say {set:?}")));
        }
    }
    match &config.registered_cookie {
        Some(registered) if Cookie::decode(registered).ok().is_none_or(|(known, _)| known != *cookie) => {
            Err(OpenError::Identity(format!(
                "the cluster knows bookie {} with other data than these folders hold: {registered:?} is registered",
                config.id
            )))
        }
        _ => Ok(()),
    }
}

fn first_use(config: &BookieConfig, folders: &[(PathBuf, String)]) -> Result<Cookie, OpenError> {
    if config.registered_cookie.is_some() {
        return Err(OpenError::Identity(format!(
            "the folders are empty, but the cluster counts on data of bookie {}: it was lost or is not mounted; start \
             it under a new id, or remove its cookie from the cluster after its ledgers were re-replicated",
            config.id
        )));
    }
    for (dir, _) in folders {
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
        journals: config.journal_dirs.len().to_string(),
        ledgers: config.ledger_dirs.len().to_string(),
    };
    for (dir, part) in folders {
        write_cookie(dir, &cookie.encode(part))?;
    }
    Ok(cookie)
}

fn write_cookie(dir: &Path, text: &str) -> Result<(), StorageError> {
    let (temporary, path) = (dir.join("COOKIE.new"), dir.join(FILE_NAME));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
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
            journals: "1".into(),
            ledgers: "2".into(),
        };
        let text = cookie.encode("ledger-1");
        assert!(
            text.starts_with(
                "version=1\nbookie=b1\ninstance=i\ndata=0f\njournals=1\nledgers=2\nfolder=ledger-1\ncrc32c="
            )
        );
        assert_eq!(Cookie::decode(&text), Ok((cookie, "ledger-1".to_owned())));
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
    fn folders_may_move_but_not_change_places() {
        let base = tempfile::tempdir().unwrap();
        let two = |a: &str, b: &str| {
            let mut two = config(base.path());
            two.ledger_dirs = vec![base.path().join(a), base.path().join(b)];
            two.index_dir = Some(base.path().join("index"));
            two
        };
        check(&two("a", "b")).unwrap();
        assert!(check(&two("b", "a")).unwrap_err().to_string().contains("was set up as ledger-1"));
        fs::rename(base.path().join("b"), base.path().join("c")).unwrap();
        check(&two("a", "c")).unwrap();
    }

    #[test]
    fn wiped_data_is_refused_under_the_old_id() {
        let base = tempfile::tempdir().unwrap();
        let cookie = check(&config(base.path())).unwrap();
        fs::remove_dir_all(base.path().join("ledgers")).unwrap();
        assert!(check(&config(base.path())).unwrap_err().to_string().contains("carries no cookie"));
        fs::remove_dir_all(base.path().join("journal")).unwrap();
        let wiped = BookieConfig { registered_cookie: Some(cookie.encode("")), ..config(base.path()) };
        fs::remove_dir_all(base.path().join("ledgers")).unwrap();
        assert!(check(&wiped).unwrap_err().to_string().contains("counts on data"));
        check(&config(base.path())).unwrap();
        assert!(check(&wiped).unwrap_err().to_string().contains("other data"));
    }
}
