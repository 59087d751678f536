//! TLS between brokers and bookies, by three files that both have.
//!
//! Failure: some of the files without the others, or one that can't be used, ends the start with its setting.

use crate::cli::Failure;
use meridian_bookie_api::secure::{ClientSide, ServerSide};
use meridian_identity::tls::{ClientFiles, ClientTls, ServerTls, TlsFiles};
use meridian_settings::{Key, Settings};
use std::sync::Arc;
use std::time::Duration;

/// Certificate, key, authorities; `None` if none is set.
fn files(settings: &Settings) -> Result<Option<[String; 3]>, Failure> {
    let named = [
        ("bookkeeperTLSCertificateFilePath", Key::BookkeeperTLSCertificateFilePath),
        ("bookkeeperTLSKeyFilePath", Key::BookkeeperTLSKeyFilePath),
        ("bookkeeperTLSTrustCertsFilePath", Key::BookkeeperTLSTrustCertsFilePath),
    ];
    let values = named.map(|(_, key)| settings.text(key).to_owned());
    if values.iter().all(String::is_empty) {
        return Ok(None);
    }
    match named.iter().zip(&values).find(|(_, value)| value.is_empty()) {
        Some(((name, _), _)) => Err(format!("{name}: all three bookkeeperTLS… files are needed, or none").into()),
        None => Ok(Some(values)),
    }
}

fn look_again(settings: &Settings) -> Duration {
    Duration::from_secs(settings.count(Key::TlsCertRefreshCheckDurationSec))
}

/// The ports of a bookie.
///
/// # Errors
/// See the head of this file.
pub fn server(settings: &Settings) -> Result<Option<ServerSide>, Failure> {
    let Some([certificate, key, trust]) = files(settings)? else { return Ok(None) };
    let tls = ServerTls::new(TlsFiles {
        certificate,
        key,
        trust,
        require_client_certificate: true,
        alpn: Vec::new(),
        look_again: look_again(settings),
        ..TlsFiles::default()
    })?;
    Ok(Some(ServerSide(Arc::new(move || tls.current()))))
}

/// Connections to bookies.
///
/// # Errors
/// See the head of this file.
pub fn client(settings: &Settings) -> Result<Option<ClientSide>, Failure> {
    let Some([certificate, key, trust]) = files(settings)? else { return Ok(None) };
    let files = ClientFiles { trust, certificate, key, look_again: look_again(settings) };
    let tls = ClientTls::new("bookkeeperTLSTrustCertsFilePath", files)?;
    Ok(Some(ClientSide(Arc::new(move || tls.current()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_files_or_none() {
        let mut settings = Settings::default();
        assert!(server(&settings).expect("none").is_none() && client(&settings).expect("none").is_none());
        settings.set_pair("test", "bookkeeperTLSKeyFilePath=/k").expect("it is a setting");
        let error = server(&settings).expect_err("half").to_string();
        assert_eq!(error, "bookkeeperTLSCertificateFilePath: all three bookkeeperTLS… files are needed, or none");
    }
}
