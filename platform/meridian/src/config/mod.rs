//! From settings to the numbers that each room is run with. Nothing but translation.

pub mod broker;
pub mod storage;

use crate::cli::{Failure, StandaloneArgs};
use meridian_settings::{Notice, Settings};

/// Reads the file, then `--set`, then the arguments that are settings, too.
///
/// # Errors
/// The first line or pair that can't be taken.
pub fn load(args: &StandaloneArgs) -> Result<(Settings, Vec<Notice>), Failure> {
    let mut settings = Settings::default();
    let mut notices = Vec::new();
    if let Some(path) = &args.config {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| meridian_settings::SettingsError::Unreadable { path: shown.clone(), reason: e.to_string() })?;
        notices.extend(settings.read_text(&shown, &text)?);
    }
    for pair in &args.set {
        notices.extend(settings.set_pair("--set", pair)?);
    }
    if let Some(bookies) = args.bookies {
        settings.set_pair("--bookies", &format!("bookies={bookies}"))?;
    }
    Ok((settings, notices))
}
