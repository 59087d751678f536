//! Where keys and password files stand: `file://…`, `data:;base64,…`, a plain path, or base64 text.

use crate::IdentityError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::{Path, PathBuf};

/// The path that a value names, if it names one.
pub fn path(value: &str) -> Option<PathBuf> {
    match value.strip_prefix("file://") {
        Some(path) => Some(PathBuf::from(path)),
        None if value.starts_with('/') || Path::new(value).is_file() => Some(PathBuf::from(value)),
        None => None,
    }
}

/// The bytes that a value names: a file's content, inline data, or base64.
///
/// # Errors
/// [`IdentityError::Config`] naming the setting.
pub fn load(setting: &'static str, value: &str) -> Result<Vec<u8>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting, reason };
    if value.is_empty() {
        return Err(refuse("is not set".to_owned()));
    }
    if let Some(path) = path(value) {
        return std::fs::read(&path).map_err(|e| refuse(format!("{}: {e}", path.display())));
    }
    let encoded = match value.strip_prefix("data:") {
        Some(rest) => rest
            .split_once(";base64,")
            .map(|(_, data)| data)
            .ok_or_else(|| refuse("expected data:;base64,…".to_owned()))?,
        None => value,
    };
    STANDARD.decode(encoded.trim()).map_err(|_| refuse("is neither a file nor base64".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_read() {
        assert_eq!(load("x", "data:;base64,YWJj").unwrap(), b"abc");
        assert_eq!(load("x", "YWJj").unwrap(), b"abc");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, b"\x00\xff").unwrap();
        assert_eq!(load("x", &format!("file://{}", file.display())).unwrap(), b"\x00\xff");
        assert_eq!(load("x", file.to_str().unwrap()).unwrap(), b"\x00\xff");
        assert!(load("x", "").is_err());
        assert!(load("x", "file:///nowhere/at/all").unwrap_err().to_string().contains("/nowhere/at/all"));
    }
}
